"""The architectures the engine can compute, by the name a model file gives itself."""

from typing import Final

from kvalet.engine.ggml.architectures.llama import Llama
from kvalet.engine.ggml.weights import Weights
from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile

ARCHITECTURES: Final = {"llama": Llama}


def load_architecture(file: GGUFFile, weights: Weights) -> Llama:
    """Raises ModelFileError naming an architecture that is not supported, and those that are."""
    name = file.text("general.architecture")
    if name not in ARCHITECTURES:
        raise ModelFileError(
            f"{file.path}: the architecture {name!r} is not supported "
            f"(supported: {', '.join(sorted(ARCHITECTURES))})"
        )
    return ARCHITECTURES[name](file, weights)
