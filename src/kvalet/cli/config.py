"""`ServeConfig` from flags and environment variables.

`flags.py` lists the settings. A flag wins over its environment variable, which wins over the
default. A value that cannot be honoured is a ConfigError that names where it came from.
"""

import argparse
from collections.abc import Collection, Iterator, Mapping

from typing_extensions import override

from kvalet.cli.flags import ServeConfig
from kvalet.errors import ConfigError
from kvalet.settings import Setting, changed, settings_of, show, values_of

__all__ = ["ServeConfig", "add_flags", "knobs", "load", "settings"]


def settings() -> Iterator[Setting]:
    """In the order in which a reader gets them."""
    return settings_of(ServeConfig)


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


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Values stay text: `load` reads flags and variables alike."""
    for item in settings():
        if not item.flags:
            continue
        about = f"{item.about} (default: {item.shown}; env {item.env})".replace("%", "%%")
        if item.is_switch:
            parser.add_argument(*item.flags, dest=item.name, action=_Switch, nargs=0, help=about)
        else:
            parser.add_argument(*item.flags, dest=item.name, metavar=item.metavar, help=about)


def load(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> ServeConfig:
    """Settings from the text of flags by name (None: not given) and of environment variables.

    Raises ConfigError, naming the flag or variable whose value it cannot honour.
    """
    values = dict(_given(flags, environ))
    config = changed(ServeConfig(), **values)
    _check_together(config, values.keys())
    return config


def _given(
    flags: Mapping[str, str | None], environ: Mapping[str, str]
) -> Iterator[tuple[str, object]]:
    for item in settings():
        given, source = flags.get(item.name), "/".join(item.flags)
        if given is None:
            given, source = environ.get(item.env), item.env
        if given is not None:
            yield item.name, _parsed(item, source, given)


def _parsed(item: Setting, source: str, given: str) -> object:
    try:
        return item.parse(given)
    except ValueError as error:
        raise ConfigError(f"{source}: expected {error}, not {given!r}") from None


def _check_together(config: ServeConfig, given: Collection[str]) -> None:
    """Raises ConfigError for what contradicts, and for what is `given` and would do nothing."""
    if config.disk.folder and not config.memory.parked:
        raise ConfigError("--preempt-disk needs a --preempt-ram above 0: with 0 nothing is copied")
    if config.disk.folder and not config.preemption.preempt:
        raise ConfigError("--preempt-disk does not go with --no-preempt: no running chat is parked")
    if "preempt_disk_limit" in given and not config.disk.folder:
        raise ConfigError("--preempt-disk-limit needs a --preempt-disk: nothing else is limited")
    if "preempt_mirror" in given and config.copies.ahead and not config.copies.beside_steps:
        raise ConfigError("--preempt-mirror on does not go with --no-preempt-async")


def knobs(config: ServeConfig) -> list[str]:
    """Test knobs that are set, to be announced at load (behaviour P8)."""
    values = values_of(config)
    return [
        f"{item.env}={show(values[item.name])}"
        for item in settings()
        if not item.flags and values[item.name] != item.default
    ]
