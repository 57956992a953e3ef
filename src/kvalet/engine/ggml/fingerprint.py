"""What a page's bytes depend on beside its tokens: the root of the page names.

Two engines with one fingerprint compute the same bits. It covers the model file, as far as its
digest does, the type of keys and values, the bytes of the libraries that compute, as built on this
machine, and which of them multiply by what.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import ggml

from kvalet.engine.native import NativeLibrary
from kvalet.model.digest import model_digest
from kvalet.model.gguf import GGUFFile

KV_TYPE: Final = "f16"


def fingerprint(file: GGUFFile, library: NativeLibrary, kinds: Mapping[str, int]) -> bytes:
    """32 bytes. `kinds`: which kernels multiply by how many weights of which type."""
    kernels = (f"{kind}: {count}" for kind, count in kinds.items())
    parts = (model_digest(file), KV_TYPE, *builds(library), *kernels)
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=32).digest()


def builds(library: NativeLibrary) -> tuple[str, ...]:
    """A line for each library that computes."""
    folder = Path(ggml.__file__).parent / "lib"
    libraries = [library.path, *sorted(path for path in folder.iterdir() if path.is_file())]
    version = ggml.ggml_version().decode()
    return f"ggml {version}", *(f"{path.name} {_sha256(path)}" for path in libraries)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
