"""The commands: their arguments, and what each puts together and prints.

Each imports what it needs when it runs, so that `--version` and `tokenize` start at once.
"""

import argparse
import os
import sys
from pathlib import Path

from kvalet import __version__
from kvalet.bench.command import add_benchmarks
from kvalet.cli import config
from kvalet.cli.parser import Parser
from kvalet.errors import RequestError
from kvalet.sim import options


def parser() -> argparse.ArgumentParser:
    top = Parser("kvalet", description="An LLM server that never drops a conversation.")
    top.add_argument("--version", action="version", version=f"kvalet {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="serve a model over HTTP")
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
    )
    options.add_flags(simulate)
    simulate.set_defaults(command=_simulate)

    bench = commands.add_parser("bench", help="measure a server")
    add_benchmarks(bench)
    return top


def _serve(args: argparse.Namespace) -> int:
    from kvalet.cli import serve

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
