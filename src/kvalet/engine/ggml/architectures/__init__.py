"""The architectures the engine can compute, by the name a model file gives itself."""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kvalet.engine.ggml.architectures import llama
from kvalet.engine.ggml.architectures.description import ModelDescription
from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile

Describe: TypeAlias = Callable[[GGUFFile], ModelDescription]

ARCHITECTURES: Final[Mapping[str, Describe]] = {"llama": llama.describe}


def describe(file: GGUFFile) -> ModelDescription:
    """Raises ModelFileError for what is missing or not supported; an architecture that is not is
    named, with those that are."""
    name = file.text("general.architecture")
    if name not in ARCHITECTURES:
        raise ModelFileError(
            f"{file.path}: the architecture {name!r} is not supported "
            f"(supported: {', '.join(sorted(ARCHITECTURES))})"
        )
    return ARCHITECTURES[name](file)
