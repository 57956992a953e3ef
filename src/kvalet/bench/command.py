"""The flags of `kvalet bench`, and the benchmark that they ask for. What a benchmark needs is
imported when it runs."""

import argparse
import secrets
from collections.abc import Callable, Mapping
from dataclasses import fields
from os import environ
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from kvalet.settings import integer, number

if TYPE_CHECKING:
    from rich.console import Console

    from kvalet.bench.harness import Benchmark
    from kvalet.bench.target import Where

T = TypeVar("T")
Arguments: TypeAlias = argparse.Namespace
Flags: TypeAlias = Mapping[str, Mapping[str, Any]]  # spellings, and what argparse is told

NUM_ROUNDS: Final = 3
# Of the first prompts of two invocations: more than one usually sends, and a multiple of the number
# of subjects, so these always come in the same order.
APART: Final = 1000


def add_benchmarks(parser: argparse.ArgumentParser) -> None:
    """Each sets `command`, which takes the parsed arguments and returns the exit code."""
    benchmarks = parser.add_subparsers(title="benchmarks", metavar="WHAT", required=True)
    short = benchmarks.add_parser("short", help="a short version of each, in one table")
    _add(short, SERVER, _short)
    for name, (about, flags) in BENCHMARKS.items():
        benchmark = benchmarks.add_parser(name, help=about, description=about)
        _add(benchmark, {**flags, **WHERE, **SERVER}, _run)
        benchmark.set_defaults(benchmark=name)


def _add(
    parser: argparse.ArgumentParser, flags: Flags, command: Callable[[Arguments], int]
) -> None:
    for spelling, options in flags.items():
        parser.add_argument(*spelling.split(), **options)
    parser.set_defaults(command=command)


def _short(args: Arguments) -> int:
    from kvalet.bench import short

    return short.run(_console(), where_of(args, 1))


def _run(args: Arguments) -> int:
    from kvalet.bench import harness

    benchmark = benchmark_of(args)
    return harness.run(_console(), where_of(args, benchmark.ROUNDS), benchmark)


def benchmark_of(args: Arguments) -> "Benchmark":
    """With its options. Raises ConfigError."""
    from kvalet.bench.decode import Decode
    from kvalet.bench.exact import Exact
    from kvalet.bench.latency import Latency
    from kvalet.bench.prefix import Prefix
    from kvalet.bench.pressure import Pressure
    from kvalet.bench.stall import Stall

    kinds = (Decode, Exact, Latency, Prefix, Pressure, Stall)
    kind = next(kind for kind in kinds if kind.__name__.lower() == args.benchmark)
    return kind(**{option.name: getattr(args, option.name) for option in fields(kind)})


def where_of(args: Arguments, usual_rounds: int) -> "Where":
    """`usual_rounds`: of one server. Raises ConfigError."""
    from kvalet.bench.target import Where

    found = vars(args)
    url, vs, first = found.get("url"), tuple(found.get("vs") or ()), found.get("first")
    if first is None:
        first = _fresh() if url or vs else 0
    names_model = any(word.split("=")[0] in ("-m", "--model") for word in args.flags)
    return Where(
        url=url,
        vs=vs,
        num_rounds=found.get("rounds") or (NUM_ROUNDS if vs else usual_rounds),
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


def typed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """As argparse wants it."""

    def parsed(given: str) -> T:
        try:
            return parse(given)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"expected {error}, not {given!r}") from None

    return parsed


def rates(given: str) -> tuple[float, ...]:
    """Each once."""
    return tuple(dict.fromkeys(map(typed(number(0.01)), given.split(","))))


COUNT: Final = typed(integer(1))
SECONDS: Final = typed(number(0))


def _flag(kind: Callable[[str], object], metavar: str, about: str, default: object = None) -> Any:  # noqa: ANN401  # argparse's own
    told = about if default is None else f"{about}; default: {default}"
    return {"type": kind, "metavar": metavar, "default": default, "help": told}


def _tokens(default: int) -> Flags:
    return {"--tokens": _flag(COUNT, "N", "of each chat", default)}


WHERE: Final[Flags] = {
    "--url": {"help": "of an OpenAI-compatible server that runs already"},
    "--vs": {
        "metavar": "URL",
        "action": "append",
        "help": "of another one: rounds by turns, and ratios; may be given again",
    },
    "--rounds": _flag(
        COUNT, "N", "default: 3 with --vs, and of `decode`, `stall` and `prefix`; else 1"
    ),
    "--first": _flag(
        typed(integer(0)),
        "N",
        "number of the first prompt; default: 0 for a server that is started, another one each "
        "time with --url or --vs, so that no prompt is in a cache",
    ),
    "--record": {
        "metavar": "FILE",
        "help": "a line about every step of the started servers, for `kvalet simulate --calibrate`",
    },
}
SERVER: Final[Flags] = {
    "-m --model": {"help": "what the started server serves"},
    "flags": {
        "nargs": "*",
        "metavar": "-- FLAGS",
        "help": "flags of `kvalet serve` for the server",
    },
}


BENCHMARKS: Final[Mapping[str, tuple[str, Flags]]] = {
    "decode": (
        "tokens per second of one chat and of four, and what of a step is not ggml's",
        _tokens(300),
    ),
    "pressure": (
        "chats that do not fit together: complete, as alone, at what cost",
        {
            "--matrix": {"action": "store_true", "help": "with every budget and victim policy"},
            "--chats": _flag(COUNT, "N", "at once", 4),
            **_tokens(700),
            "--small": {"action": "store_true", "help": "beside one small request after another"},
        },
    ),
    "stall": ("what a park costs the chats beside it", _tokens(700)),
    "latency": (
        "how long clients wait when requests come as they please",
        {
            "--rates": _flag(rates, "R,R,...", "requests a second", "0.5,1,2"),
            "--requests": _flag(COUNT, "N", "a rate", 40),
            "--max-first": _flag(SECONDS, "SECONDS", "to the first token of a good request", 1.0),
            "--max-gap": _flag(SECONDS, "SECONDS", "between its tokens, on average", 0.1),
            "--seed": _flag(int, "N", "of arrivals and lengths", 1),
        },
    ),
    "prefix": ("second turns, with the first one's pages in the pool, on the host, on disk", {}),
    "exact": (
        "is a text the same: alone, again, beside others, parked, in other batches, restarted?",
        {**_tokens(200), "--every": _flag(COUNT, "N", "tokens between parks; default: 16")},
    ),
}


def _console() -> "Console":
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False, markup=False)
