"""Two servers under the same load, by turns, and how many times of the second one's figures the
first one's are.

What a round sends, no earlier one has sent. Who goes first changes with every round.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from rich.console import Console

from kvalet.bench.report import circumstances, markdown, spread
from kvalet.bench.target import Target, Where, at
from kvalet.errors import ConfigError

HEADINGS: Final = ("", "first (range)", "second (range)", "first / second (range)")


class Result(Protocol):
    """A dataclass: what a round on one server came to."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def is_right(self) -> bool: ...

    @property
    def errors(self) -> Sequence[str]: ...  # different ones, of chats that failed

    def comparable(self) -> Mapping[str, float]:
        """A time that there is none of is left out: as 0 it would be the best of all."""
        ...


Measure: TypeAlias = Callable[[Target, int], Result]  # of a server and the number of the round


@dataclass(frozen=True, slots=True)
class Round:
    first: Result
    second: Result


def run(
    console: Console,
    where: Where,
    flags: Sequence[str],
    about: Mapping[str, Any],
    measure: Measure,
) -> int:
    """`flags`: of the server, if one is started. `about`: goes into the result. 0 if the first
    server's rounds were all right, else 1."""
    if where.vs is None:
        raise ConfigError("--vs: the URL of a second server is missing")
    second = at(where.vs)
    with where.served(*flags) as first:
        rounds = list(_rounds(console, (first, second), where.num_rounds, measure))
    ratios = ratios_of(rounds)
    console.print(f"first: {_named(first)}", f"second: {_named(second)}", "", sep="\n")
    console.print(*table(rounds), "", sep="\n")
    console.print(*errors(rounds), sep="\n")
    result = {
        **circumstances(),
        **about,
        "rounds": [{"first": asdict(r.first), "second": asdict(r.second)} for r in rounds],
        "ratios": ratios,
    }
    console.print(json.dumps(result))
    return 0 if all(r.first.is_right for r in rounds) else 1


def errors(rounds: Sequence[Round]) -> Iterator[str]:
    """Why chats failed, each reason once."""
    told = [("first", error) for one in rounds for error in one.first.errors]
    told += [("second", error) for one in rounds for error in one.second.errors]
    for name, error in dict.fromkeys(told):
        yield f"{name}: a chat failed: {error}"


def _rounds(
    console: Console, targets: tuple[Target, Target], count: int, measure: Measure
) -> Iterator[Round]:
    for number in range(count):
        found: dict[int, Result] = {}
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            console.print(f"round {number + 1}, {_named(targets[which])}")
            found[which] = measure(targets[which], number)
        yield Round(found[0], found[1])


def _named(target: Target) -> str:
    if target.is_kvalet:
        return f"{target.url} (kvalet)"
    told = f" ({target.model})" if target.model else ""
    refused = "".join(f", refuses {name}" for name in target.refused)
    return f"{target.url}{told}{refused}"


def ratios_of(rounds: Iterable[Round]) -> dict[str, list[float]]:
    """By round, where both have the figure and the second one's is not 0."""
    found: dict[str, list[float]] = {}
    for one in rounds:
        first, second = one.first.comparable(), one.second.comparable()
        for name in {**first, **second}:
            of_name = found.setdefault(name, [])
            if name in first and second.get(name):
                of_name.append(first[name] / second[name])
    return found


def table(rounds: Sequence[Round]) -> Iterator[str]:
    """Medians and ranges."""
    firsts = [one.first.comparable() for one in rounds]
    seconds = [one.second.comparable() for one in rounds]
    rows = (
        [
            name,
            _spread([figures[name] for figures in firsts if name in figures]),
            _spread([figures[name] for figures in seconds if name in figures]),
            spread(ratios, 2),
        ]
        for name, ratios in ratios_of(rounds).items()
    )
    return markdown(HEADINGS, rows)


def _spread(values: Sequence[float]) -> str:
    """With as many digits as their size asks for."""
    are_whole = all(float(value).is_integer() for value in values)
    return spread(values, 0 if are_whole or statistics.median(values) >= 100 else 2)
