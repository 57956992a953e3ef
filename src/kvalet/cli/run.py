"""What comes of a command: an exit code, and a line on stderr if it failed.

Every error kvalet raises on purpose is one line and exit code 2, and so is a standard output that
cannot be written to, a full disk say. A reader that has left ends the command silently.
"""

import errno
import os
import sys
from collections.abc import Sequence
from typing import Final

from kvalet.cli.commands import parser
from kvalet.cli.signals import end_on_sigterm
from kvalet.errors import KvaletError

EXIT_ERROR: Final = 2

# Of a write. Files that are named are written where their errors are known by their names, so this
# is the standard output.
UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Raises KeyboardInterrupt."""
    end_on_sigterm()
    _open_what_is_closed()
    try:
        code = _run(argv)
        sys.stdout.flush()  # rather than at the interpreter's end, where nothing can be said
        return code
    except KvaletError as error:
        return _fail(str(error))
    except BrokenPipeError:
        _give_up_stdout()
        return EXIT_ERROR
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        _give_up_stdout()
        return _fail(f"cannot write the output: {error.strerror}")


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = parser().parse_args(argv)
    except SystemExit as end:  # what was asked for is printed: --help, --version
        return int(end.code or 0)
    code: int = args.command(args)
    return code


def _fail(message: str) -> int:
    print(f"kvalet: {message}", file=sys.stderr)
    return EXIT_ERROR


def _open_what_is_closed() -> None:
    """Started with `>&-`, Python has None there, and the next file opened would have its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the rest of the process


def _give_up_stdout() -> None:
    """What is still buffered would be tried once more at the interpreter's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
