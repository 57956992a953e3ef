"""The command line: reads arguments, puts the parts together, prints.

Each command imports what it needs when it runs, so that `--version` and `tokenize` start at once.
Every error kvalet raises on purpose is one line on stderr and exit code 2.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from typing_extensions import override

from kvalet import __version__, config
from kvalet.errors import ConfigError, KvaletError, RequestError
from kvalet.sim import options

if TYPE_CHECKING:
    from rich.console import Console

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    @override
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        args = parser().parse_args(argv)
        command: Callable[[argparse.Namespace], int] = args.command
        return command(args)
    except KvaletError as error:
        print(f"kvalet: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return EXIT_ERROR


def parser() -> argparse.ArgumentParser:
    top = _Parser("kvalet", description="An LLM server that never drops a conversation.")
    top.add_argument("--version", action="version", version=f"kvalet {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="serve a model over HTTP", allow_abbrev=False)
    config.add_flags(serve)
    serve.set_defaults(command=_serve)

    pull = commands.add_parser("pull", help="fetch a model and print where it is")
    pull.add_argument("name", metavar="NAME")
    pull.set_defaults(command=_pull)

    tokenize = commands.add_parser("tokenize", help="text on stdin, token ids on stdout, no BOS")
    tokenize.add_argument("-m", "--model", metavar="FILE", type=Path, required=True)
    tokenize.set_defaults(command=_tokenize)

    demo = commands.add_parser(
        "demo", help="four chats that do not fit into one pool, all finished"
    )
    demo.set_defaults(command=_demo)

    simulate = commands.add_parser(
        "simulate",
        help="compare policies in virtual time: the real scheduler, no model",
        allow_abbrev=False,
    )
    options.add_flags(simulate)
    simulate.set_defaults(command=_simulate)

    bench = commands.add_parser("bench", help="measure a server")
    benchmarks = bench.add_subparsers(title="benchmarks", metavar="WHAT", required=True)
    _add_pressure(benchmarks)
    _add_stall(benchmarks)
    _add_prefix(benchmarks)
    return top


def _add_pressure(benchmarks: "argparse._SubParsersAction[_Parser]") -> None:
    pressure = benchmarks.add_parser(
        "pressure",
        help="chats that do not fit together: complete, as alone, at what cost",
        description="Chats at once against a server that is started for it, 2048 cells for four "
        "slots unless its flags say otherwise, and the same chats alone.",
    )
    which = pressure.add_mutually_exclusive_group()
    which.add_argument("--url", help="of a server that runs already")
    which.add_argument("--matrix", action="store_true", help="a table of budgets and policies")
    which.add_argument(
        "--uneven", action="store_true", help="eight uneven chats, in both entry orders"
    )
    pressure.add_argument("--chats", type=int, default=4, metavar="N", help="default: 4")
    pressure.add_argument(
        "--tokens", type=int, default=700, metavar="N", help="of each chat; default: 700"
    )
    pressure.add_argument(
        "--small", action="store_true", help="beside one small request after another"
    )
    _add_server(pressure)
    pressure.set_defaults(command=_pressure)


def _add_stall(benchmarks: "argparse._SubParsersAction[_Parser]") -> None:
    stall = benchmarks.add_parser(
        "stall",
        help="what a park costs the chats beside it",
        description="Four chats in an ample pool, each parked after every 64 tokens: gaps between "
        "tokens with and without a copy beside them, copies asynchronous and not; throughput.",
    )
    stall.add_argument(
        "--mirror", action="store_true", help="parks under pressure, with pages copied ahead or not"
    )
    stall.add_argument(
        "--tokens", type=int, default=700, metavar="N", help="of each chat; default: 700"
    )
    _add_rounds(stall)
    _add_server(stall)
    stall.set_defaults(command=_stall)


def _add_prefix(benchmarks: "argparse._SubParsersAction[_Parser]") -> None:
    prefix = benchmarks.add_parser(
        "prefix",
        help="second turns, with the first one's pages in the pool, on the host, on disk",
        description="Chats of two turns with a history of about 1,500 tokens: time to first token "
        "and what was computed, against the same turn asked cold.",
    )
    _add_rounds(prefix)
    _add_server(prefix)
    prefix.set_defaults(command=_prefix)


def _add_rounds(benchmark: argparse.ArgumentParser) -> None:
    benchmark.add_argument("--rounds", type=int, default=3, metavar="N", help="default: 3")


def _add_server(benchmark: argparse.ArgumentParser) -> None:
    benchmark.add_argument("-m", "--model", help="what the started server serves")
    benchmark.add_argument(
        "flags", nargs="*", metavar="-- FLAGS", help="flags of `kvalet serve` for the server"
    )


def _serve(args: argparse.Namespace) -> int:
    from kvalet import serve

    return serve.run(config.load(vars(args), os.environ))


def _pull(args: argparse.Namespace) -> int:
    from kvalet.model import sources

    print(sources.pull(args.name))
    return 0


def _tokenize(args: argparse.Namespace) -> int:
    from kvalet.model.gguf import GGUFFile
    from kvalet.model.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_gguf(GGUFFile.open(args.model))
    print(*tokenizer.encode(_stdin_text()))
    return 0


def _stdin_text() -> str:
    try:
        return sys.stdin.buffer.read().decode()  # sys.stdin would turn \r\n into \n
    except UnicodeDecodeError as error:
        raise RequestError(f"the text on stdin is not UTF-8: {error}", "stdin") from None


def _demo(args: argparse.Namespace) -> int:
    from rich.console import Console

    from kvalet.bench import demo

    return demo.run(Console())


def _simulate(args: argparse.Namespace) -> int:
    from kvalet.sim import command

    return command.run(options.options_of(args))


def _pressure(args: argparse.Namespace) -> int:
    from kvalet.bench import pressure

    options = pressure.Options(
        args.url, args.model, args.chats, args.tokens, tuple(args.flags), args.small
    )
    kind = "matrix" if args.matrix else "uneven" if args.uneven else "once"
    return pressure.run(_plain_console(), options, kind)


def _stall(args: argparse.Namespace) -> int:
    from kvalet.bench import mirror, stall

    given = (args.model, args.tokens, args.rounds, tuple(args.flags))
    if args.mirror:
        return mirror.run(_plain_console(), mirror.Options(*given))
    return stall.run(_plain_console(), stall.Options(*given))


def _prefix(args: argparse.Namespace) -> int:
    from kvalet.bench import prefix

    options = prefix.Options(args.model, args.rounds, tuple(args.flags))
    return prefix.run(_plain_console(), options)


def _plain_console() -> "Console":
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False, markup=False)
