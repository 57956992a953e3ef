"""The command line. `main` is where a process begins and ends.

A Ctrl-C finds it ready from its first line on: everything else is imported within.
"""

INTERRUPTED = 130  # as a shell has it


def main() -> int:
    """Run the command that the process was started with; returns the exit code."""
    try:
        from kvalet.cli.run import run

        return run()
    except KeyboardInterrupt:
        import sys

        sys.stderr.write("kvalet: interrupted\n")
        return INTERRUPTED
