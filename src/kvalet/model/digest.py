"""What tells one model file from another without a pass over it (ADR 0011).

The digest covers the size of the file, all of it that is not weights, and of every tensor a sample
at fixed places. Files that differ in none of these are taken for the same.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

from kvalet.model.gguf import GGUFFile, TensorInfo

SAMPLES: Final = 4  # of a tensor, evenly spread from its first bytes to its last
SAMPLE_BYTES: Final = 4096


def model_digest(file: GGUFFile) -> str:
    """In hex. Reads at most SAMPLES * SAMPLE_BYTES of a tensor; a smaller one is read whole."""
    digest = hashlib.blake2b(str(file.num_bytes).encode(), digest_size=32)
    first = min((tensor.offset for tensor in file.tensors.values()), default=file.num_bytes)
    digest.update(file.content(0, first))  # metadata, and what each tensor is and where
    sampled = [sample for tensor in file.tensors.values() for sample in samples(tensor)]
    for sample in sampled:
        file.fetch_ahead(*sample)  # all at once, or a disk would be asked for one after the other
    for sample in sampled:
        digest.update(file.content(*sample))
    return digest.hexdigest()


def samples(tensor: TensorInfo) -> Iterator[tuple[int, int]]:
    """Offsets in the file, and bytes."""
    last = tensor.num_bytes - SAMPLE_BYTES
    if tensor.num_bytes <= SAMPLES * SAMPLE_BYTES:
        yield tensor.offset, tensor.num_bytes
        return
    for index in range(SAMPLES):
        yield tensor.offset + index * last // (SAMPLES - 1), SAMPLE_BYTES
