"""Context shift: keys that were rotated to a position are rotated on to another.

A rotation's angle grows with the position alone, so turning a key by the distance is the same as
having rotated it there (but for one more rounding to f16). What angle that is, of each pair, ggml's
own rope is asked: it turns a unit vector to the position `distance`.
"""

from functools import lru_cache
from typing import Any, Final, TypeAlias

import ggml
import numpy as np

from kvalet.core.plan import PageShift
from kvalet.engine import native
from kvalet.engine.ggml.backend import Backend, Context, read, write
from kvalet.engine.ggml.pool import PagePool
from kvalet.engine.ggml.rope import Rope

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

REMEMBERED: Final = 64  # distances


class KeyShift:
    def __init__(
        self, backend: Backend, library: native.NativeLibrary, rope: Rope, head_dim: int
    ) -> None:
        self._backend = backend
        self._library = library
        self._rope = rope
        self._head_dim = head_dim
        self.rotation = lru_cache(REMEMBERED)(self._rotation)

    def run(self, pool: PagePool, shift: PageShift) -> None:
        """Raises EngineError, having changed nothing, for a page outside the pool."""
        for page in shift.pages:
            pool.address(page)
        cosines, sines = self.rotation(shift.distance)
        pages = np.array(shift.pages, np.int32)
        self._library.rotate_keys(pool.layout, pages, cosines, sines, is_split=self._is_split)

    @property
    def _is_split(self) -> bool:
        """Whether a pair is (i, i + half) and not (2i, 2i + 1)."""
        return bool(self._rope.mode != ggml.GGML_ROPE_TYPE_NORMAL)

    def _rotation(self, distance: int) -> tuple[Floats, Floats]:
        """Cosine and sine of every pair's angle at `distance`, each [num_dims / 2]."""
        half = self._rope.num_dims // 2
        unit = np.zeros(self._head_dim, np.float32)
        first = slice(0, half) if self._is_split else slice(0, 2 * half, 2)
        second = slice(half, 2 * half) if self._is_split else slice(1, 2 * half, 2)
        unit[first] = 1.0
        turned = self._turn(unit, distance)
        cosines, sines = turned[first], turned[second]
        scale = np.hypot(cosines, sines)  # yarn's, which the keys have had already
        return (cosines / scale).astype(np.float32), (sines / scale).astype(np.float32)

    def _turn(self, vector: Floats, position: int) -> Floats:
        """`vector` [head_dim] rotated to `position` by ggml."""
        with Context(16 * ggml.ggml_tensor_overhead() + ggml.ggml_graph_overhead()) as context:
            x = context.new(ggml.GGML_TYPE_F32, self._head_dim, 1, 1)
            positions = context.new(ggml.GGML_TYPE_I32, 1)
            rotated = self._rope.apply(context.handle, x, positions)
            graph = ggml.ggml_new_graph(context.handle)
            ggml.ggml_build_forward_expand(graph, rotated)
            buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(
                context.handle, self._backend.buffer_type
            )
            write(x, vector)
            write(positions, np.array([position], np.int32))
            self._backend.compute(graph)
            turned = np.empty(self._head_dim, np.float32)
            read(rotated, turned)
            ggml.ggml_backend_buffer_free(buffer)
        return turned
