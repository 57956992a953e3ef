"""Context shift: keys that were rotated to a position are rotated on to another.

A rotation's angle grows with the position alone, so turning a key by the distance is the same as
having rotated it there (but for one more rounding to f16). What angle that is, of each pair, ggml's
own rope is asked: it turns a unit vector to the position `distance`. Layers that are rotated alike
are turned together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import ggml
import numpy as np

from kvalet.core.plan import PageShift
from kvalet.engine import native
from kvalet.engine.ggml.architectures.description import AttentionMixer, Pairs, Rope
from kvalet.engine.ggml.backend import Backend, Context, Handle, Tensor, read, write
from kvalet.engine.ggml.batch import Int32Array
from kvalet.engine.ggml.planes import Place
from kvalet.engine.ggml.pool import PagePool
from kvalet.errors import EngineError

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

Rotate: TypeAlias = Callable[[Handle, Rope, Tensor, Tensor], Tensor]  # `Model.rotate`

REMEMBERED: Final = 64  # distances


@dataclass(frozen=True, slots=True)
class Alike:
    """Layers of one plane with one rope."""

    plane: int
    layers: Int32Array
    rope: Rope
    head_dim: int


class KeyShift:
    def __init__(
        self,
        backend: Backend,
        library: native.NativeLibrary,
        rotate: Rotate,
        mixers: Sequence[AttentionMixer],
        places: Sequence[Place],
    ) -> None:
        self._backend = backend
        self._library = library
        self._rotate = rotate
        self._alike = tuple(_alike(mixers, places))
        self._rotation = lru_cache(REMEMBERED * len(self._alike))(self._ask_rotation)

    def run(self, pool: PagePool, shift: PageShift) -> None:
        """Raises EngineError, having changed nothing, for a page outside the pool."""
        for page in shift.pages:
            pool.address(page)
        pages = np.array(shift.pages, np.int32)
        turns = [
            self._rotation(alike.rope, alike.head_dim, shift.distance) for alike in self._alike
        ]
        for alike, (cosines, sines) in zip(self._alike, turns, strict=True):
            self._library.rotate_keys(
                pool.layouts[alike.plane],
                pages,
                alike.layers,
                cosines,
                sines,
                is_split=_is_split(alike.rope),
            )

    def _ask_rotation(self, rope: Rope, head_dim: int, distance: int) -> tuple[Floats, Floats]:
        """Cosine and sine of every pair's angle at `distance`, each [num_dims / 2]."""
        half = rope.num_dims // 2
        unit = np.zeros(head_dim, np.float32)
        first = slice(0, half) if _is_split(rope) else slice(0, 2 * half, 2)
        second = slice(half, 2 * half) if _is_split(rope) else slice(1, 2 * half, 2)
        unit[first] = 1.0
        turned = self._turn(rope, unit, distance)
        cosines, sines = turned[first], turned[second]
        scale = np.hypot(cosines, sines)  # yarn's, which the keys have had already
        return (cosines / scale).astype(np.float32), (sines / scale).astype(np.float32)

    def _turn(self, rope: Rope, vector: Floats, position: int) -> Floats:
        """`vector` [head_dim] rotated to `position` by ggml."""
        with Context(16 * ggml.ggml_tensor_overhead() + ggml.ggml_graph_overhead()) as context:
            x = context.new(ggml.GGML_TYPE_F32, vector.size, 1, 1)
            positions = context.new(ggml.GGML_TYPE_I32, 1)
            rotated = self._rotate(context.handle, rope, x, positions)
            graph = ggml.ggml_new_graph(context.handle)
            ggml.ggml_build_forward_expand(graph, rotated)
            buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(
                context.handle, self._backend.buffer_type
            )
            if buffer is None:
                raise EngineError("no memory to shift a context")
            write(x, vector)
            write(positions, np.array([position], np.int32))
            self._backend.compute(graph)
            turned = np.empty_like(vector)
            read(rotated, turned)
            ggml.ggml_backend_buffer_free(buffer)
        return turned


def _alike(mixers: Sequence[AttentionMixer], places: Sequence[Place]) -> Iterator[Alike]:
    layers: dict[tuple[int, Rope, int], list[int]] = {}
    for mixer, place in zip(mixers, places, strict=True):
        layers.setdefault((place.plane, mixer.rope, mixer.head_dim), []).append(place.layer)
    for (plane, rope, head_dim), indices in layers.items():
        yield Alike(plane, np.array(indices, np.int32), rope, head_dim)


def _is_split(rope: Rope) -> bool:
    """Whether a pair is (i, i + half) and not (2i, 2i + 1)."""
    return rope.pairs is Pairs.HALVES
