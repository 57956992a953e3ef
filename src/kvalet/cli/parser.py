"""The argument parser: what it does not know is named, with the nearest name that it knows."""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from typing_extensions import override

from kvalet.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

N = TypeVar("N")

DOWNLOADS: Final = ("-hf", "--hf-", "-mu", "--model-url", "-dr", "--docker-repo")  # llama.cpp's
_NUMBER: Final = re.compile(r"-\.?\d")
NEAR: Final = 0.7  # of 1, how alike names must be


class Parser(argparse.ArgumentParser):
    """Says what is wrong by raising ConfigError."""

    @override
    def parse_known_args(
        self, args: Iterable[str] | None = None, namespace: N | None = None
    ) -> tuple[N, list[str]]:
        words = list(sys.argv[1:] if args is None else args)
        for word in self._flags(words):
            if not self._knows(word):
                raise ConfigError(self._unknown(word))
        return super().parse_known_args(words, namespace)  # type: ignore[return-value]

    def _flags(self, words: list[str]) -> Iterator[str]:
        """Those among `words` that can only be flags, up to the name of a command."""
        for word in words:
            is_flag = word.startswith("-") and word != "-" and " " not in word
            if word == "--" or (self._subparsers and not is_flag):
                return
            if is_flag and not _NUMBER.match(word):
                yield word.partition("=")[0]

    def _knows(self, word: str) -> bool:
        """Also with a number attached, as in `-c2048`; `-ngl` is not `-n gl`."""
        known = self._option_string_actions
        short = known.get(word[:2])
        takes_value = short is not None and short.nargs != 0
        return word in known or (takes_value and word[2:].isdecimal())

    def _unknown(self, word: str) -> str:
        if word.startswith(DOWNLOADS):
            return (
                f"{word} is not supported yet: name a file with -m, or fetch a model with "
                "`kvalet pull NAME`"
            )
        near = self._nearest(word)
        question = f"; did you mean {near}?" if near else ""
        return f"unknown flag {word}{question} (see {self.prog} --help)"

    def _nearest(self, word: str) -> str:
        from difflib import get_close_matches

        given = word.lstrip("-")
        names = {name.lstrip("-"): name for name in self._option_string_actions if name[1] == "-"}
        longer = [name for name in names if name.startswith(given)]
        found = longer or get_close_matches(given, names, n=1, cutoff=NEAR)
        return names[found[0]] if found else ""

    @override
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")

    @override
    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        """argparse keeps it to itself when this fails."""
        if message and file:
            file.write(message)
