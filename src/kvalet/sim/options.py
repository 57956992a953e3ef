"""The flags of `kvalet simulate`. Those of a scenario take lists; every combination is a cell."""

import argparse
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvalet.core.policy import LINE_ORDERS, VICTIM_POLICIES
from kvalet.errors import ConfigError
from kvalet.settings import choice, integer, number, show, switch
from kvalet.sim.scenario import UNLIMITED, Scenario
from kvalet.sim.workloads import ARRIVALS, WORKLOADS

ALL: Final = "all"
DEFAULT_SEEDS: Final = 60
DRAWN: Final = ("workload", "arrivals", "chats", "tokens", "gap")  # what a trace says itself


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


@dataclass(frozen=True, slots=True)
class Axis:
    """A field of `Scenario` as a flag that takes one value or several."""

    field: str
    flags: tuple[str, ...]
    parse: Callable[[str], object]
    metavar: str
    about: str
    names: tuple[str, ...] = ()  # what `all` stands for
    is_all: bool = False  # by default

    @property
    def shown(self) -> str:
        value = getattr(Scenario(), self.field)
        return ALL if self.is_all else "as serve has it" if value is None else show(value)

    def values(self, text: str) -> list[object]:
        """Raises ArgumentTypeError."""
        words = self.names if text == ALL and self.names else text.split(",")
        return list(dict.fromkeys(self._value(word) for word in words))

    def _value(self, word: str) -> object:
        try:
            return self.parse(word)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"expected {error}, not {word!r}") from None


def _named(field: str, names: Iterable[str], about: str, *flags: str, is_all: bool = False) -> Axis:
    words = tuple(names)
    about = f"{about}: {', '.join(words)}, or {ALL}"
    return Axis(field, flags, choice(*words), "NAME", about, words, is_all)


AXES: Final = (
    _named("workload", WORKLOADS, "how long chats are", "--workload"),
    _named("arrivals", ARRIVALS, "when they come", "--arrivals"),
    Axis("chats", ("--chats",), integer(1), "N", "conversations"),
    Axis("tokens", ("--tokens",), integer(1), "N", "of a typical answer"),
    Axis("gap", ("--gap",), number(0.001, 1e6), "SECONDS", "between arrivals, unless together"),
    Axis("ctx_size", ("-c", "--ctx-size"), integer(64), "CELLS", "of the pool"),
    Axis("parallel", ("-np", "--parallel"), integer(1, 256), "SLOTS", "chats served at once"),
    _named("preempt_policy", VICTIM_POLICIES, "who is parked", "--preempt-policy", is_all=True),
    _named("preempt_resume", LINE_ORDERS, "who enters", "--preempt-resume", is_all=True),
    _named(
        "preempt_trigger", ("lookahead", "watermark"), "when one is parked", "--preempt-trigger"
    ),
    Axis("lookahead", ("--lookahead",), integer(1), "STEPS", "that the trigger looks ahead"),
    Axis("preempt_high", ("--preempt-high",), integer(1, 100), "PERCENT", "watermark: park above"),
    Axis("preempt_low", ("--preempt-low",), integer(1, 100), "PERCENT", "watermark: enter below"),
    Axis("preempt_starved", ("--preempt-starved",), integer(1), "N", "parks until passed over"),
    Axis(
        "preempt_replay_margin",
        ("--preempt-replay-margin",),
        integer(0),
        "STEPS",
        "room after a replay, to begin it",
    ),
    Axis(
        "preempt_ram",
        ("--preempt-ram",),
        integer(UNLIMITED),
        "MiB",
        "host memory for parked chats; -1: no limit, 0: compute again instead",
    ),
    Axis(
        "cache_ram",
        ("-cram", "--cache-ram"),
        integer(UNLIMITED),
        "MiB",
        "host memory for pages that left the pool; -1: no limit",
    ),
    Axis("preempt_async", ("--preempt-async",), switch, "on|off", "copies run beside steps"),
    Axis("preempt_mirror", ("--preempt-mirror",), switch, "on|off", "pages are copied ahead"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "scenarios", "each may be a list, as in `--ctx-size 2048,4096`; every combination is tried"
    )
    for axis in AXES:
        about = f"{axis.about} (default: {axis.shown})".replace("%", "%%")
        group.add_argument(
            *axis.flags, dest=axis.field, type=axis.values, metavar=axis.metavar, help=about
        )
    _add_run_flags(parser)


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
    add("--timeline", type=Path, metavar="FILE.png", help="who held the pool in the first run")


def _whole(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    parse = integer(minimum, maximum)

    def parsed(text: str) -> int:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"expected {error}, not {text!r}") from None

    return parsed


def options_of(args: argparse.Namespace) -> Options:
    """Raises ConfigError for what does not go together."""
    given = [axis.field for axis in AXES if getattr(args, axis.field) is not None]
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
        jobs=args.jobs or _num_processors(),
        costs=args.costs,
        trace=args.trace,
        form=args.form,
        plot=args.plot,
        timeline=args.timeline,
        calibrate=args.calibrate,
    )


def _scenarios(args: argparse.Namespace) -> Iterator[Scenario]:
    lists = [_chosen(axis, args) for axis in AXES]
    for values in itertools.product(*lists):
        fields: dict[str, Any] = dict(zip((axis.field for axis in AXES), values, strict=True))
        if args.trace:
            fields.update(workload=args.trace.name)
        if not fields["preempt_async"]:
            fields.update(preempt_mirror=_mirror_without_copier(args))
        if fields["preempt_low"] >= fields["preempt_high"]:
            low, high = fields["preempt_low"], fields["preempt_high"]
            raise ConfigError(f"--preempt-low {low} must be below --preempt-high {high}")
        yield Scenario(**fields)


def _mirror_without_copier(args: argparse.Namespace) -> bool:
    """As `kvalet serve` has it."""
    if args.preempt_mirror and True in args.preempt_mirror:
        raise ConfigError("--preempt-mirror on needs --preempt-async on")
    return False


def _chosen(axis: Axis, args: argparse.Namespace) -> list[object]:
    given: list[object] | None = getattr(args, axis.field)
    if given is not None:
        return given
    return list(axis.names) if axis.is_all else [getattr(Scenario(), axis.field)]


def _num_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
