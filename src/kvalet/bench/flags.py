"""Flags that several benchmarks of `kvalet bench` have, and what they say together."""

import argparse
import secrets
from collections.abc import Callable
from os import environ
from typing import TYPE_CHECKING, Final

from kvalet.errors import ConfigError
from kvalet.settings import integer, number

if TYPE_CHECKING:
    from kvalet.bench.target import Where

NUM_ROUNDS: Final = 3
# Of the first prompts of two invocations: more than one usually sends, and a multiple of the number
# of subjects, so these always come in the same order.
APART: Final = 1000


def add_tokens(benchmark: argparse.ArgumentParser, default: int) -> None:
    benchmark.add_argument(
        "--tokens",
        type=at_least_one,
        default=default,
        metavar="N",
        help=f"of each chat; default: {default}",
    )


def add_rounds(benchmark: argparse.ArgumentParser, of: str = "") -> None:
    benchmark.add_argument(
        "--rounds", type=at_least_one, metavar="N", help=f"{of}default: {NUM_ROUNDS}"
    )


def add_urls(benchmark: argparse.ArgumentParser, of: str = "with --vs; ") -> None:
    benchmark.add_argument("--url", help="of an OpenAI-compatible server that runs already")
    benchmark.add_argument(
        "--vs", metavar="URL", help="of a second one: rounds on both by turns, and ratios"
    )
    add_rounds(benchmark, of)
    benchmark.add_argument(
        "--first",
        type=_at_least_none,
        metavar="N",
        help="number of the first prompt; default: 0 for a server that is started, another one "
        "each time with --url or --vs, so that no prompt is in a cache",
    )


def refuse_rounds_of_one(args: argparse.Namespace) -> None:
    """Raises ConfigError."""
    if args.rounds and not args.vs:
        raise ConfigError("--rounds is for two servers by turns, and --vs names no second one")


def add_server(benchmark: argparse.ArgumentParser) -> None:
    benchmark.add_argument("-m", "--model", help="what the started server serves")
    benchmark.add_argument(
        "flags", nargs="*", metavar="-- FLAGS", help="flags of `kvalet serve` for the server"
    )


def add_record(benchmark: argparse.ArgumentParser) -> None:
    benchmark.add_argument(
        "--record",
        metavar="FILE",
        help="a line about every step of the started server, for `kvalet simulate --calibrate`",
    )


def where(args: argparse.Namespace) -> "Where":
    """Raises ConfigError."""
    from kvalet.bench.target import Where

    found = vars(args)
    url, vs, first = found.get("url"), found.get("vs"), found.get("first")
    if first is None:
        first = _fresh() if url or vs else 0
    names_model = any(word.split("=")[0] in ("-m", "--model") for word in args.flags)
    return Where(
        url=url,
        vs=vs,
        num_rounds=found.get("rounds") or NUM_ROUNDS,
        first=first,
        model=args.model or (None if url or names_model else _default_model()),
        flags=tuple(args.flags),
        record=found.get("record"),
    )


def _fresh() -> int:
    """A first number that hardly any earlier invocation has had. Of as many digits each time, also
    divided by the number of subjects, so that prompts are of about the same length."""
    return APART * (40_000 + secrets.randbelow(60_000))


def _default_model() -> str:
    """What a server serves that is not told what."""
    from kvalet.model.sources import DEFAULT_MODEL

    return environ.get("LLAMA_ARG_MODEL") or DEFAULT_MODEL


def _parsed(parse: Callable[[str], float], given: str) -> float:
    try:
        return parse(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected {error}, not {given!r}") from None


def at_least_one(given: str) -> int:
    return int(_parsed(integer(1), given))


def _at_least_none(given: str) -> int:
    return int(_parsed(integer(0), given))


def seconds(given: str) -> float:
    return _parsed(number(0), given)


def rates(given: str) -> tuple[float, ...]:
    """Each once."""
    found = (_parsed(number(0.01), word) for word in given.split(","))
    return tuple(dict.fromkeys(found))
