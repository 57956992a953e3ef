"""What a setting is: a field of a dataclass with its spellings, its limits and its explanation.

A setting is declared once, where what it sets is (the scheduler's in `core/config.py`), and is
found by all others from there: the command lines, `/props`, tables and the reference page. A
configuration is a dataclass of settings, and of further such dataclasses, its groups; the name of a
setting is that of its flag, wherever in a configuration it stands. Knows no setting in particular,
nor how a command line is read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Config = TypeVar("Config", bound="DataclassInstance")

_SWITCH_WORDS = {  # llama.cpp's
    **dict.fromkeys(("1", "true", "on", "enabled"), True),
    **dict.fromkeys(("0", "false", "off", "disabled"), False),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field is to a user."""

    flags: tuple[str, ...]  # empty: settable by its variable only
    env: str  # empty: by its flags only
    parse: Callable[[str], object]  # raises ValueError with what it expected
    metavar: str  # empty: a switch
    default: object
    shown: str  # the default, to a reader
    about: str

    @property
    def is_switch(self) -> bool:
        return not self.metavar

    @property
    def name(self) -> str:
        long = next((flag for flag in self.flags if flag.startswith("--")), "")
        variable = self.env.removeprefix("LLAMA_SERVER_").removeprefix("LLAMA_ARG_")
        return long.removeprefix("--").replace("-", "_") or variable.lower()


def setting(
    spelling: str,
    env: str,
    parse: Callable[[str], T],
    default: T,
    about: str,
    *,
    shown: str | None = None,
) -> T:
    """A field's default. `spelling` is as in a manual: `-c, --ctx-size CELLS`; without a value it
    is a switch, without flags a test knob."""
    words = spelling.replace(",", "").split()
    flags = tuple(word for word in words if word.startswith("-"))
    metavar = "".join(word for word in words if not word.startswith("-"))
    found = Setting(flags, env, parse, metavar, default, shown or show(default), about)
    value: T = field(default=default, metadata={"setting": found})
    return value


def settings_of(kind: "type[DataclassInstance]") -> Iterator[Setting]:
    """Of a configuration and its groups, in the order of the fields."""
    for item in fields(kind):
        factory: object = item.default_factory
        if found := item.metadata.get("setting"):
            yield found
        elif isinstance(factory, type) and is_dataclass(factory):
            yield from settings_of(factory)


def _is_group(value: object) -> bool:
    return is_dataclass(value)


def values_of(config: "DataclassInstance") -> dict[str, object]:
    """By name, those of groups included."""
    values: dict[str, object] = {}
    for item in fields(config):
        found, value = item.metadata.get("setting"), getattr(config, item.name)
        if found:
            values[found.name] = value
        elif _is_group(value):
            values |= values_of(value)
    return values


def changed(config: Config, **values: object) -> Config:
    """`config` with other values, by name, also of the settings of its groups."""
    if unknown := values.keys() - values_of(config):
        raise TypeError(f"{type(config).__name__} has no setting {', '.join(sorted(unknown))}")
    return _changed(config, values)


def _changed(config: Config, values: Mapping[str, object]) -> Config:
    news: dict[str, object] = {}
    for item in fields(config):
        found, value = item.metadata.get("setting"), getattr(config, item.name)
        if found and found.name in values:
            news[item.name] = values[found.name]
        elif _is_group(value):
            news[item.name] = _changed(value, values)
    return replace(config, **news)


def show(value: object) -> str:
    """A value as a user would write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def integer(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    limits = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError(f"an integer {limits}")
        return value

    return parse


def number(minimum: float, maximum: float = inf) -> Callable[[str], float]:
    limit = f" and at most {maximum:g}" if isfinite(maximum) else ""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= maximum or not isfinite(value):
            raise ValueError(f"a number of at least {minimum:g}{limit}")
        return value

    return parse


class Choice:
    """One of several names."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __call__(self, text: str) -> str:
        if text not in self.names:
            raise ValueError(f"{', '.join(self.names[:-1])} or {self.names[-1]}")
        return text


def text(given: str) -> str:
    if not given:
        raise ValueError("a text that is not empty")
    return given


def switch(given: str) -> bool:
    if given.lower() not in _SWITCH_WORDS:
        raise ValueError("1, true, on, enabled, 0, false, off or disabled")
    return _SWITCH_WORDS[given.lower()]
