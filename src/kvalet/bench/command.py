"""The flags of `kvalet bench`. Each benchmark imports what it needs when it runs."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from kvalet.errors import ConfigError
from kvalet.settings import integer, number

if TYPE_CHECKING:
    from rich.console import Console

    from kvalet.bench.target import Where

Benchmarks: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_benchmarks(parser: argparse.ArgumentParser) -> None:
    """Each sets `command`, which takes the parsed arguments and returns the exit code."""
    benchmarks: Benchmarks = parser.add_subparsers(
        title="benchmarks", metavar="WHAT", required=True
    )
    for add in (_short, _decode, _pressure, _stall, _latency, _prefix, _exact):
        add(benchmarks)


def _short(benchmarks: Benchmarks) -> None:
    short = benchmarks.add_parser("short", help="a short version of each, in one table")
    _add_server(short)
    short.set_defaults(command=_run_short)


def _run_short(args: argparse.Namespace) -> int:
    from kvalet.bench import short

    return short.run(_console(), _where(args))


def _decode(benchmarks: Benchmarks) -> None:
    decode = benchmarks.add_parser(
        "decode",
        help="tokens per second of one chat and of four, and what of a step is not ggml's",
    )
    _add_tokens(decode, 300)
    _add_rounds(decode)
    _add_server(decode)
    _add_record(decode)
    decode.set_defaults(command=_run_decode)


def _run_decode(args: argparse.Namespace) -> int:
    from kvalet.bench import decode

    return decode.run(_console(), decode.Options(_where(args), args.tokens, args.rounds))


def _pressure(benchmarks: Benchmarks) -> None:
    pressure = benchmarks.add_parser(
        "pressure",
        help="chats that do not fit together: complete, as alone, at what cost",
        description="Chats at once against a server that is started for it, 2048 cells for four "
        "slots unless its flags say otherwise, and the same chats alone.",
    )
    kinds = pressure.add_mutually_exclusive_group()
    kinds.add_argument("--matrix", action="store_true", help="a table of budgets and policies")
    kinds.add_argument(
        "--uneven", action="store_true", help="eight uneven chats, in both entry orders"
    )
    pressure.add_argument("--chats", type=_at_least_one, default=4, metavar="N", help="default: 4")
    _add_tokens(pressure, 700)
    pressure.add_argument(
        "--small", action="store_true", help="beside one small request after another"
    )
    _add_urls(pressure)
    _add_server(pressure)
    _add_record(pressure)
    pressure.set_defaults(command=_run_pressure)


def _run_pressure(args: argparse.Namespace) -> int:
    from kvalet.bench import pressure

    kind = "matrix" if args.matrix else "uneven" if args.uneven else "once"
    if kind != "once" and (args.url or args.vs):
        raise ConfigError(f"--{kind} starts servers of its own: leave --url and --vs out")
    options = pressure.Options(_where(args), args.chats, args.tokens, args.small)
    return pressure.run(_console(), options, kind)


def _stall(benchmarks: Benchmarks) -> None:
    stall = benchmarks.add_parser(
        "stall",
        help="what a park costs the chats beside it",
        description="Four chats in an ample pool, each parked after every 64 tokens: gaps between "
        "tokens with and without a copy beside them, copies asynchronous and not; throughput. "
        "Needs kvalet servers of its own.",
    )
    stall.add_argument(
        "--mirror", action="store_true", help="parks under pressure, with pages copied ahead or not"
    )
    _add_tokens(stall, 700)
    _add_rounds(stall)
    for flag in ("--url", "--vs"):
        stall.add_argument(flag, help=argparse.SUPPRESS)
    _add_server(stall)
    stall.set_defaults(command=_run_stall)


def _run_stall(args: argparse.Namespace) -> int:
    from kvalet.bench import mirror, stall

    if args.url or args.vs:
        raise ConfigError("stall forces parks, which only a kvalet server that it starts can do")
    given = (args.model, args.tokens, args.rounds, tuple(args.flags))
    if args.mirror:
        return mirror.run(_console(), mirror.Options(*given))
    return stall.run(_console(), stall.Options(*given))


def _latency(benchmarks: Benchmarks) -> None:
    latency = benchmarks.add_parser(
        "latency",
        help="how long clients wait when requests come as they please",
        description="Requests of mixed lengths arrive at random, at each of several rates: time "
        "to first token, gaps between tokens, and how many a second were good.",
    )
    latency.add_argument(
        "--rates",
        type=_rates,
        default=(0.5, 1.0, 2.0),
        metavar="R,R,...",
        help="requests a second; default: 0.5,1,2",
    )
    add = latency.add_argument
    add("--requests", type=_at_least_one, default=40, metavar="N", help="a rate; default: 40")
    add(
        "--max-first",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="to the first token of a good request; default: 1",
    )
    add(
        "--max-gap",
        type=_seconds,
        default=0.1,
        metavar="SECONDS",
        help="between tokens of a good request, on average; default: 0.1",
    )
    add("--seed", type=int, default=1, metavar="N", help="of arrivals and lengths; default: 1")
    _add_urls(latency)
    _add_server(latency)
    _add_record(latency)
    latency.set_defaults(command=_run_latency)


def _run_latency(args: argparse.Namespace) -> int:
    from kvalet.bench import latency

    options = latency.Options(
        _where(args), args.rates, args.requests, args.max_first, args.max_gap, args.seed
    )
    return latency.run(_console(), options)


def _prefix(benchmarks: Benchmarks) -> None:
    prefix = benchmarks.add_parser(
        "prefix",
        help="second turns, with the first one's pages in the pool, on the host, on disk",
        description="Chats of two turns with a history of about 1,500 tokens: time to first token "
        "and what was computed, against the same turn asked cold. With --url or --vs: against the "
        "same turn with a history that the server has not seen.",
    )
    _add_urls(prefix)
    _add_server(prefix)
    prefix.set_defaults(command=_run_prefix)


def _run_prefix(args: argparse.Namespace) -> int:
    from kvalet.bench import prefix, turns

    where = _where(args)
    if where.url or where.vs:
        return turns.run(_console(), where)
    return prefix.run(_console(), prefix.Options(where.model, where.num_rounds, where.flags))


def _exact(benchmarks: Benchmarks) -> None:
    exact = benchmarks.add_parser(
        "exact",
        help="is a text the same however it is asked for?",
        description="Greedy and sampled chats alone, again, beside others; parked, with other "
        "batches and threads, after a restart. With --url or --vs: alone, again, beside others.",
    )
    _add_tokens(exact, 200)
    exact.add_argument(
        "--every", type=_at_least_one, default=16, metavar="N", help="tokens between parks"
    )
    _add_urls(exact)
    _add_server(exact)
    exact.set_defaults(command=_run_exact)


def _run_exact(args: argparse.Namespace) -> int:
    from kvalet.bench import exact

    return exact.run(_console(), exact.Options(_where(args), args.tokens, args.every))


def _add_tokens(benchmark: argparse.ArgumentParser, default: int) -> None:
    benchmark.add_argument(
        "--tokens",
        type=_at_least_one,
        default=default,
        metavar="N",
        help=f"of each chat; default: {default}",
    )


def _add_rounds(benchmark: argparse.ArgumentParser) -> None:
    benchmark.add_argument(
        "--rounds", type=_at_least_one, default=3, metavar="N", help="default: 3"
    )


def _add_urls(benchmark: argparse.ArgumentParser) -> None:
    benchmark.add_argument("--url", help="of an OpenAI-compatible server that runs already")
    benchmark.add_argument(
        "--vs", metavar="URL", help="of a second one: rounds on both by turns, and ratios"
    )
    _add_rounds(benchmark)


def _add_server(benchmark: argparse.ArgumentParser) -> None:
    benchmark.add_argument("-m", "--model", help="what the started server serves")
    benchmark.add_argument(
        "flags", nargs="*", metavar="-- FLAGS", help="flags of `kvalet serve` for the server"
    )


def _add_record(benchmark: argparse.ArgumentParser) -> None:
    benchmark.add_argument(
        "--record",
        metavar="FILE",
        help="a line about every step of the started server, for `kvalet simulate --calibrate`",
    )


def _where(args: argparse.Namespace) -> "Where":
    from kvalet.bench.target import Where

    found = vars(args)
    return Where(
        url=found.get("url"),
        vs=found.get("vs"),
        num_rounds=found.get("rounds", 1),
        model=args.model,
        flags=tuple(args.flags),
        record=found.get("record"),
    )


def _console() -> "Console":
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False, markup=False)


def _parsed(parse: Callable[[str], float], given: str) -> float:
    try:
        return parse(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected {error}, not {given!r}") from None


def _at_least_one(given: str) -> int:
    return int(_parsed(integer(1), given))


def _seconds(given: str) -> float:
    return _parsed(number(0), given)


def _rates(given: str) -> tuple[float, ...]:
    return tuple(_parsed(number(0.01), word) for word in given.split(","))
