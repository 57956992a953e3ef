"""What was found out about model files on this machine, kept in a folder between starts.

Only ever a shortcut: an entry that is missing, damaged or cannot be written costs time, no more.
"""

import hashlib
import json
import logging
from pathlib import Path

from kvalet.partial import remove_leftovers, replacing

logger = logging.getLogger(__name__)


class FactCache:
    """Text facts by key; without a folder it holds nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, *key: object) -> object:
        """What JSON the key's fact is; None if there is none."""
        path = self._path(key)
        try:
            return None if path is None else json.loads(path.read_text())
        except (OSError, ValueError):
            return None

    def put(self, fact: object, *key: object) -> None:
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(path.parent)
            with replacing(path) as file:
                file.write(json.dumps(fact).encode())
        except OSError as error:
            logger.debug("cannot keep %s: %s", path, error)

    def _path(self, key: tuple[object, ...]) -> Path | None:
        if self._folder is None:
            return None
        name = hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest()
        return self._folder / f"{name}.json"
