"""The command line. Here a process begins and ends: a command's result or failure, as exit code.

Every error kvalet raises on purpose is one line on stderr and exit code 2. Nothing heavy is
imported outside of `main`, so that a Ctrl-C finds it ready.
"""

import os
import sys
from collections.abc import Sequence

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    from kvalet.cli.commands import parser
    from kvalet.cli.signals import end_on_sigterm
    from kvalet.errors import KvaletError

    end_on_sigterm()
    try:
        args = parser().parse_args(argv)
        code: int = args.command(args)
        return code
    except KvaletError as error:
        print(f"kvalet: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return EXIT_ERROR
