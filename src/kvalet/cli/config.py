"""`ServeConfig` from flags and environment variables.

`flags.py` lists the settings. A value that cannot be honoured is a ConfigError that names where it
came from.
"""

import argparse
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields

from kvalet.cli.flags import ServeConfig
from kvalet.errors import ConfigError
from kvalet.settings import Setting, parse_all, settings_of, show
from kvalet.settings import add_flags as add_flags_of

__all__ = ["ServeConfig", "add_flags", "knobs", "load", "settings"]


def settings() -> Iterator[tuple[str, Setting]]:
    """Field names and what they are to a user, in the order of the dataclass."""
    return settings_of(ServeConfig)


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_flags_of(parser, ServeConfig)


def load(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> ServeConfig:
    """Settings from the text of flags (None: not given) and of environment variables.

    Raises ConfigError, naming the flag or variable whose value it cannot honour.
    """
    values = parse_all(ServeConfig, flags, environ)
    config = ServeConfig(**values)  # type: ignore[arg-type]  # each parsed by its own field's
    _check_together(config, values.keys())
    return config


def _check_together(config: ServeConfig, given: Collection[str]) -> None:
    """Raises ConfigError for what contradicts, and for what is `given` and would do nothing."""
    if config.preempt_low >= config.preempt_high:
        low, high = config.preempt_low, config.preempt_high
        raise ConfigError(f"--preempt-low {low} must be below --preempt-high {high}")
    if config.preempt_disk and not config.preempt_ram:
        raise ConfigError("--preempt-disk needs a --preempt-ram above 0: with 0 nothing is copied")
    if config.preempt_disk and not config.preempt:
        raise ConfigError("--preempt-disk does not go with --no-preempt: no running chat is parked")
    if "preempt_disk_limit" in given and not config.preempt_disk:
        raise ConfigError("--preempt-disk-limit needs a --preempt-disk: nothing else is limited")
    if "preempt_mirror" in given and config.preempt_mirror and not config.preempt_async:
        raise ConfigError("--preempt-mirror on does not go with --no-preempt-async")


def knobs(config: ServeConfig) -> list[str]:
    """Test knobs that are set, to be announced at load (behaviour P8)."""
    found = dict(settings())
    return [
        f"{found[item.name].env}={show(getattr(config, item.name))}"
        for item in fields(ServeConfig)
        if not found[item.name].flags and getattr(config, item.name) != item.default
    ]
