"""What a setting is: a field of a dataclass with its spellings, its limits and its explanation.

Knows no setting in particular; `config.py` lists them. The command line parser and the reference
page are made from the fields. A flag wins over its environment variable, which wins over the
default.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from math import inf, isfinite
from typing import Any, TypeVar

from typing_extensions import override

from kvalet.errors import ConfigError

T = TypeVar("T")

_SWITCH_WORDS = {  # llama.cpp's
    **dict.fromkeys(("1", "true", "on", "enabled"), True),
    **dict.fromkeys(("0", "false", "off", "disabled"), False),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field is to a user."""

    flags: tuple[str, ...]  # empty: settable by its variable only
    env: str
    parse: Callable[[str], object]  # raises ValueError with what it expected
    metavar: str  # empty: a switch
    default: str  # as shown to a reader
    about: str

    @property
    def is_switch(self) -> bool:
        return not self.metavar


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
    found = Setting(flags, env, parse, metavar, shown or show(default), about)
    value: T = field(default=default, metadata={"setting": found})
    return value


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


def choice(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{', '.join(names[:-1])} or {names[-1]}")
        return text

    return parse


def text(given: str) -> str:
    if not given:
        raise ValueError("a text that is not empty")
    return given


def switch(given: str) -> bool:
    if given.lower() not in _SWITCH_WORDS:
        raise ValueError("1, true, on, enabled, 0, false, off or disabled")
    return _SWITCH_WORDS[given.lower()]


def settings_of(kind: type[Any]) -> Iterator[tuple[str, Setting]]:
    """Field names and what they are to a user, in the order of the dataclass `kind`."""
    for item in fields(kind):
        yield item.name, item.metadata["setting"]


class _Switch(argparse.Action):
    """`--x` is on, `--no-x` is off."""

    @override
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        is_off = option_string is not None and option_string.startswith("--no-")
        setattr(namespace, self.dest, "off" if is_off else "on")


def add_flags(parser: argparse.ArgumentParser, kind: type[Any]) -> None:
    """Give `parser` the flags. Values stay text: `parse_all` reads flags and variables alike."""
    for name, item in settings_of(kind):
        if not item.flags:
            continue
        about = f"{item.about} (default: {item.default}; env {item.env})".replace("%", "%%")
        if item.is_switch:
            parser.add_argument(*item.flags, dest=name, action=_Switch, nargs=0, help=about)
        else:
            parser.add_argument(*item.flags, dest=name, metavar=item.metavar, help=about)


def parse_all(
    kind: type[Any], flags: Mapping[str, str | None], environ: Mapping[str, str]
) -> dict[str, object]:
    """Values by field name, of those given, from the text of flags (None: not given) and of
    environment variables. Raises ConfigError, naming the one whose value cannot be honoured."""
    values: dict[str, object] = {}
    for name, item in settings_of(kind):
        given, source = flags.get(name), "/".join(item.flags)
        if given is None:
            given, source = environ.get(item.env), item.env
        if given is not None:
            values[name] = _parsed(item, source, given)
    return values


def _parsed(item: Setting, source: str, given: str) -> object:
    try:
        return item.parse(given)
    except ValueError as error:
        raise ConfigError(f"{source}: expected {error}, not {given!r}") from None
