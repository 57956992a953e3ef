"""The flags of `kvalet bench`. Each benchmark imports what it needs when it runs."""

import argparse
from typing import TYPE_CHECKING, Final, TypeAlias

from kvalet.bench import flags
from kvalet.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

NUM_CHATS: Final = 4
EVERY: Final = 16  # tokens between parks

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
    flags.add_server(short)
    short.set_defaults(command=_run_short)


def _run_short(args: argparse.Namespace) -> int:
    from kvalet.bench import short

    return short.run(_console(), flags.where(args))


def _decode(benchmarks: Benchmarks) -> None:
    decode = benchmarks.add_parser(
        "decode",
        help="tokens per second of one chat and of four, and what of a step is not ggml's",
    )
    flags.add_tokens(decode, 300)
    flags.add_rounds(decode)
    flags.add_server(decode)
    flags.add_record(decode)
    decode.set_defaults(command=_run_decode)


def _run_decode(args: argparse.Namespace) -> int:
    from kvalet.bench import decode

    return decode.run(_console(), decode.Options(flags.where(args), args.tokens))


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
    pressure.add_argument(
        "--chats", type=flags.at_least_one, metavar="N", help=f"default: {NUM_CHATS}"
    )
    flags.add_tokens(pressure, 700)
    pressure.add_argument(
        "--small", action="store_true", help="beside one small request after another"
    )
    flags.add_urls(pressure)
    flags.add_server(pressure)
    flags.add_record(pressure)
    pressure.set_defaults(command=_run_pressure)


def _run_pressure(args: argparse.Namespace) -> int:
    from kvalet.bench import pressure

    kind = "matrix" if args.matrix else "uneven" if args.uneven else "once"
    if kind != "once" and (args.url or args.vs):
        raise ConfigError(f"--{kind} starts servers of its own: leave --url and --vs out")
    if kind == "uneven" and args.chats:
        raise ConfigError("--chats: --uneven has eight chats of its own")
    flags.refuse_rounds_of_one(args)
    chats = args.chats or NUM_CHATS
    options = pressure.Options(flags.where(args), chats, args.tokens, args.small)
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
    flags.add_tokens(stall, 700)
    flags.add_rounds(stall)
    for flag in ("--url", "--vs"):
        stall.add_argument(flag, help=argparse.SUPPRESS)
    flags.add_server(stall)
    stall.set_defaults(command=_run_stall)


def _run_stall(args: argparse.Namespace) -> int:
    from kvalet.bench import mirror, stall

    if args.url or args.vs:
        raise ConfigError("stall forces parks, which only a kvalet server that it starts can do")
    options = stall.Options(flags.where(args), args.tokens)
    if args.mirror:
        return mirror.run(_console(), options)
    return stall.run(_console(), options)


def _latency(benchmarks: Benchmarks) -> None:
    latency = benchmarks.add_parser(
        "latency",
        help="how long clients wait when requests come as they please",
        description="Requests of mixed lengths arrive at random, at each of several rates: time "
        "to first token, gaps between tokens, and how many a second were good.",
    )
    latency.add_argument(
        "--rates",
        type=flags.rates,
        default=(0.5, 1.0, 2.0),
        metavar="R,R,...",
        help="requests a second; default: 0.5,1,2",
    )
    add = latency.add_argument
    add("--requests", type=flags.at_least_one, default=40, metavar="N", help="a rate; default: 40")
    add(
        "--max-first",
        type=flags.seconds,
        default=1.0,
        metavar="SECONDS",
        help="to the first token of a good request; default: 1",
    )
    add(
        "--max-gap",
        type=flags.seconds,
        default=0.1,
        metavar="SECONDS",
        help="between tokens of a good request, on average; default: 0.1",
    )
    add("--seed", type=int, default=1, metavar="N", help="of arrivals and lengths; default: 1")
    flags.add_urls(latency)
    flags.add_server(latency)
    flags.add_record(latency)
    latency.set_defaults(command=_run_latency)


def _run_latency(args: argparse.Namespace) -> int:
    from kvalet.bench import latency

    flags.refuse_rounds_of_one(args)
    options = latency.Options(
        flags.where(args), args.rates, args.requests, args.max_first, args.max_gap, args.seed
    )
    return latency.run(_console(), options)


def _prefix(benchmarks: Benchmarks) -> None:
    prefix = benchmarks.add_parser(
        "prefix",
        help="second turns, with the first one's pages in the pool, on the host, on disk",
        description="Chats of two turns with a history of about 1,400 tokens: time to first token "
        "and what was computed, against the same turn asked cold. With --url or --vs: against the "
        "same turn with a history that the server has not seen.",
    )
    flags.add_urls(prefix, of="")
    flags.add_server(prefix)
    prefix.set_defaults(command=_run_prefix)


def _run_prefix(args: argparse.Namespace) -> int:
    from kvalet.bench import prefix, turns

    if args.url or args.vs:
        return turns.run(_console(), flags.where(args))
    return prefix.run(_console(), flags.where(args))


def _exact(benchmarks: Benchmarks) -> None:
    exact = benchmarks.add_parser(
        "exact",
        help="is a text the same however it is asked for?",
        description="Greedy and sampled chats alone, again, beside others; parked, with other "
        "batches and threads, after a restart. With --url or --vs: alone, again, beside others.",
    )
    flags.add_tokens(exact, 200)
    exact.add_argument(
        "--every",
        type=flags.at_least_one,
        metavar="N",
        help=f"tokens between parks of the started server; default: {EVERY}",
    )
    flags.add_urls(exact)
    flags.add_server(exact)
    exact.set_defaults(command=_run_exact)


def _run_exact(args: argparse.Namespace) -> int:
    from kvalet.bench import exact

    if args.every and (args.url or args.vs):
        raise ConfigError("--every: with --url or --vs nothing is parked on purpose")
    flags.refuse_rounds_of_one(args)
    return exact.run(_console(), exact.Options(flags.where(args), args.tokens, args.every or EVERY))


def _console() -> "Console":
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False, markup=False)
