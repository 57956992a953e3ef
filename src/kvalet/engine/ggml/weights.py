"""The model's tensors: in the mapped file, or packed into memory for the kernels that multiply.

Owns the buffers; the map is the file's and outlives them. Knows no architecture: it is asked for
what a table of needs lists. Linear weights go to our own kernels where these have their type, else
to ggml's, repacked where a table says so, never a measurement: each gives other bits (ADR 0003).
"""

import ctypes
import platform
from collections import Counter
from dataclasses import dataclass
from typing import Final

import ggml

from kvalet.engine import native
from kvalet.engine.ggml.architectures.tensors import Need, Needs, Use, find
from kvalet.engine.ggml.backend import Backend, Buffer, Context, Tensor
from kvalet.errors import ModelFileError
from kvalet.model.gguf import GGUFFile, TensorInfo

# Column granularity by weight type: a token's result has the same bits in every multiplication
# whose number of columns is a multiple of it. Measured on x86-64 with AVX-512: plain types all
# have 1; repacked k-quants take four columns at once and use another kernel for the rest.
REPACKED_GRANULARITY: Final = {"q4_0": 1, "iq4_nl": 1, "mxfp4": 1, "q4_K": 4, "q2_K": 4}
# ARM's i8mm kernels take columns of plain weights in pairs; repacked ones are not measured there.
ARM_GRANULARITY: Final = 2


@dataclass(frozen=True, slots=True)
class Weight:
    tensor: Tensor  # for ggml; of packed ones it is not read, but has type and shape
    bias: Tensor | None = None
    packed: native.Linear | None = None  # for our kernels, the bias included


class Weights:
    def __init__(
        self, file: GGUFFile, backend: Backend, library: native.NativeLibrary | None
    ) -> None:
        """`library`: that of our kernels; None: ggml multiplies everything."""
        self.granularity = ARM_GRANULARITY if ggml.ggml_cpu_has_matmul_int8() else 1
        self._file = file
        self._backend = backend
        self._library = library
        self._can_repack = platform.machine() in {"x86_64", "AMD64"}
        self._context = Context(2 * len(file.tensors) * ggml.ggml_tensor_overhead())
        self._map = _map_buffer(file, backend)
        self._copies: list[Buffer] = []  # of weights, as kernels want them
        self._in_map: dict[str, Tensor] = {}
        self._kinds: Counter[str] = Counter()

    def load(self, needs: Needs) -> dict[str, Weight]:
        """By the keys of `needs`. Raises ModelFileError for what is missing, of another shape, or
        of a type that cannot be used so."""
        return {key: self._load(need) for key, need in needs.items()}

    @property
    def copied_bytes(self) -> int:
        return sum(buffer.num_bytes for buffer in self._copies)

    @property
    def kinds(self) -> dict[str, int]:
        """How many linear weights there are of each type."""
        return dict(sorted(self._kinds.items()))

    def close(self) -> None:
        for buffer in (*self._copies, self._map):
            buffer.close()
        self._context.close()

    def _load(self, need: Need) -> Weight:
        info = find(self._file, need)
        match need.use:
            case Use.VECTOR:
                return Weight(self._mapped(info))
            case Use.ROWS:
                self._require_computable(info)
                return Weight(self._mapped(info))
            case Use.LINEAR:
                bias = self._bias(need.bias)
                packed = self._packed(info, bias)
                tensor = self._multiplied(info) if packed is None else self._mapped(info)
                return Weight(tensor, bias, packed)

    def _bias(self, need: Need) -> Tensor | None:
        has_bias = need.tensor_name in self._file.tensors
        return self._mapped(find(self._file, need)) if has_bias else None

    def _multiplied(self, info: TensorInfo) -> Tensor:
        """Repacked where that is faster and a column keeps its bits."""
        self._require_computable(info)
        granularity = self._repacked_granularity(info)
        if not granularity:
            self._kinds[info.type_name] += 1
            return self._mapped(info)
        self.granularity = max(self.granularity, granularity)
        self._kinds[f"{info.type_name} repacked"] += 1
        return self._repacked(info)

    def _packed(self, info: TensorInfo, bias: Tensor | None) -> native.Linear | None:
        """None where ggml multiplies."""
        if self._library is None:
            return None
        num_in, num_out = info.shape
        num_bytes = self._library.packed_bytes(info.type, num_in, num_out)
        if not num_bytes:
            return None
        buffer = self._backend.allocate(num_bytes)
        self._copies.append(buffer)
        self._library.pack(info.type, buffer.base, self._file.address(info), num_in, num_out)
        self._kinds[f"{info.type_name} packed"] += 1
        data = None if bias is None else bias.contents.data
        return native.Linear(buffer.base, data, info.type, num_in, num_out)

    def _mapped(self, info: TensorInfo) -> Tensor:
        if info.name not in self._in_map:
            tensor = self._context.new(info.type, *info.shape)
            self._in_map[info.name] = self._map.place(tensor, self._file.address(info))
        return self._in_map[info.name]

    def _require_computable(self, info: TensorInfo) -> None:
        if not self._backend.can_compute(info.type):
            raise ModelFileError(
                f"{self._file.path}: tensor {info.name!r} has the type {info.type_name}, "
                "which cannot be computed with here"
            )

    def _repacked_granularity(self, info: TensorInfo) -> int:
        """0 where the weight stays plain."""
        buffer_type = self._backend.repack_buffer_type
        if buffer_type is None or not self._can_repack:
            return 0
        granularity = REPACKED_GRANULARITY.get(info.type_name, 0)
        if granularity and self._backend.takes_linear(info.type, info.shape, buffer_type):
            return granularity
        return 0

    def _repacked(self, info: TensorInfo) -> Tensor:
        tensor = self._context.new(info.type, *info.shape)
        buffer_type = self._backend.repack_buffer_type
        num_bytes = ggml.ggml_backend_buft_get_alloc_size(buffer_type, tensor)
        buffer = self._backend.allocate(num_bytes, buffer_type)
        self._copies.append(buffer)
        buffer.place(tensor, buffer.base)
        source = ctypes.c_void_p(self._file.address(info))
        ggml.ggml_backend_tensor_set(tensor, source, 0, info.num_bytes)
        return tensor


def _map_buffer(file: GGUFFile, backend: Backend) -> Buffer:
    first = next(iter(file.tensors.values()), None)
    if first is None:
        raise ModelFileError(f"{file.path}: there are no tensors in it (a vocabulary only)")
    return backend.wrap(file.address(first) - first.offset, file.num_bytes)
