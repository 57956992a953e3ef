"""The flags of `kvalet simulate`. Those of a scenario take lists; every combination is a cell."""

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from kvalet.errors import ConfigError
from kvalet.machine import num_processors
from kvalet.settings import Choice, Setting, changed, integer
from kvalet.sim.scenario import DRAWN, SETTINGS, Scenario

T = TypeVar("T")

ALL: Final = "all"
DEFAULT_SEEDS: Final = 60
COMPARED: Final = ("preempt_policy", "preempt_resume")  # all of them, unless told otherwise


@dataclass(frozen=True, slots=True)
class Options:
    scenarios: tuple[Scenario, ...]
    seeds: tuple[int, ...]
    jobs: int
    costs: Path | None  # None: the built-in ones
    trace: Path | None
    form: str  # "table", "json" or "csv"
    plot: Path | None
    timeline: Path | None
    calibrate: Path | None


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "scenarios", "each may be a list, as in `--ctx-size 2048,4096`; every combination is tried"
    )
    for item in SETTINGS:
        group.add_argument(
            *(flag for flag in item.flags if not flag.startswith("--no-")),
            dest=item.name,
            type=partial(_values, item),
            metavar=item.metavar or "on|off",
            help=_about(item).replace("%", "%%"),
        )
    _add_run_flags(parser)


def _about(item: Setting) -> str:
    each = f"; {ALL}: each of them" if _names(item) else ""
    shown = ALL if item.name in COMPARED else item.shown
    return f"{item.about}{each} (default: {shown})"


def _names(item: Setting) -> tuple[str, ...]:
    """What `all` stands for."""
    return item.parse.names if isinstance(item.parse, Choice) else ()


def _values(item: Setting, text: str) -> list[object]:
    """Each once. Raises ArgumentTypeError."""
    words = _names(item) if text == ALL and _names(item) else text.split(",")
    return list(dict.fromkeys(_parsed(item.parse, word) for word in words))


def _parsed(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected {error}, not {text!r}") from None


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--trace", type=Path, metavar="FILE.jsonl", help="requests from a file, not a workload")
    add(
        "--seeds",
        type=_whole(1, 100_000),
        metavar="N",
        help=f"runs of each scenario (default: {DEFAULT_SEEDS}; 1 with --trace)",
    )
    add("--first-seed", type=_whole(0, 10**9), metavar="N", help="(default: 1)")
    add("-j", "--jobs", type=_whole(1), metavar="N", help="processes (default: one a processor)")
    add("--costs", type=Path, metavar="FILE.json", help="what a step and a copied page take")
    add(
        "--calibrate",
        type=Path,
        metavar="RECORD.jsonl",
        help="fit --costs to a record of steps and write them there; nothing is simulated",
    )
    form = parser.add_mutually_exclusive_group()
    for name, about in (("json", "means and spread"), ("csv", "every run")):
        form.add_argument(
            f"--{name}", dest="form", action="store_const", const=name, default="table", help=about
        )
    add("--plot", type=Path, metavar="FILE.png", help="the table as a picture")
    add("--timeline", type=Path, metavar="FILE.png", help="what held the pool in the first run")


def _whole(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    return partial(_parsed, integer(minimum, maximum))


def options_of(args: argparse.Namespace) -> Options:
    """Raises ConfigError for what does not go together."""
    given = [item.name for item in SETTINGS if getattr(args, item.name) is not None]
    unused = (args.trace, args.seeds, args.first_seed, args.jobs, args.plot, args.timeline)
    is_run = given or any(value is not None for value in unused) or args.form != "table"
    if args.calibrate and is_run:
        raise ConfigError("--calibrate simulates nothing: leave all flags but --costs out")
    if args.trace and (drawn := [name for name in DRAWN if name in given]):
        raise ConfigError(f"--trace takes the place of --{', --'.join(drawn)}")
    if args.trace and ((args.seeds or 1) > 1 or args.first_seed is not None):
        raise ConfigError("--trace is the same for every seed: leave --seeds and --first-seed out")
    count = args.seeds or (1 if args.trace else DEFAULT_SEEDS)
    first = 1 if args.first_seed is None else args.first_seed
    return Options(
        scenarios=tuple(_scenarios(args)),
        seeds=tuple(range(first, first + count)),
        jobs=args.jobs or num_processors(),
        costs=args.costs,
        trace=args.trace,
        form=args.form,
        plot=args.plot,
        timeline=args.timeline,
        calibrate=args.calibrate,
    )


def _scenarios(args: argparse.Namespace) -> Iterator[Scenario]:
    base = Scenario(is_trace=args.trace is not None)
    lists = [_chosen(item, args) for item in SETTINGS]
    for values in itertools.product(*lists):
        named = dict(zip((item.name for item in SETTINGS), values, strict=True))
        if args.trace:
            named["workload"] = args.trace.name
        if not named["preempt_async"]:
            named["preempt_mirror"] = _mirror_without_copier(args)
        yield changed(base, **named)


def _mirror_without_copier(args: argparse.Namespace) -> bool:
    """As `kvalet serve` has it."""
    if args.preempt_mirror and True in args.preempt_mirror:
        raise ConfigError("--preempt-mirror on needs --preempt-async on")
    return False


def _chosen(item: Setting, args: argparse.Namespace) -> list[object]:
    given: list[object] | None = getattr(args, item.name)
    if given is not None:
        return given
    return list(_names(item)) if item.name in COMPARED else [item.default]
