"""A model's hyper-parameters: the metadata keys that begin with the name of its architecture."""

from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile


class HyperParameters:
    """Keys are named here without the architecture. Getters are those of `GGUFFile`."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self.architecture = file.text("general.architecture")

    def integer(self, name: str, default: int | None = None) -> int:
        return self._file.integer(self._key(name), default)

    def positive(self, name: str) -> int:
        value = self.integer(name)
        if value < 1:
            raise self.fault(f"the metadata key {self._key(name)!r} is {value}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        return self._file.number(self._key(name), default)

    def text(self, name: str, default: str | None = None) -> str:
        return self._file.text(self._key(name), default)

    def fault(self, message: str) -> ModelFileError:
        """To be raised for what is wrong with the file."""
        return ModelFileError(f"{self._file.path}: {message}")

    def _key(self, name: str) -> str:
        return f"{self.architecture}.{name}"
