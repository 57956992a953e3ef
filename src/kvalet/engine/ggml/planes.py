"""Where the layers of a model have their cells in a page.

A page is its planes one after the other, and a plane holds the K and V of layers of one shape. So a
page stays one stretch of bytes, whoever computes in which part of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from kvalet.core.plan import PAGE_CELLS
from kvalet.engine.ggml.architectures.description import AttentionMixer

CELL_VALUE_BYTES: Final = 2  # f16


@dataclass(frozen=True, slots=True)
class Plane:
    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def page_bytes(self) -> int:
        """K and V of all its layers of a page's cells."""
        values = self.num_layers * 2 * self.num_kv_heads * self.head_dim
        return values * PAGE_CELLS * CELL_VALUE_BYTES


@dataclass(frozen=True, slots=True)
class Place:
    """Of a layer: the plane, and which of the plane's layers it is."""

    plane: int
    layer: int


def lay_out(mixers: Iterable[AttentionMixer]) -> tuple[tuple[Plane, ...], tuple[Place, ...]]:
    """A plane for every shape of K and V there is, and a place for every mixer."""
    planes: list[Plane] = []
    places: list[Place] = []
    index_of: dict[tuple[int, int], int] = {}
    for mixer in mixers:
        shape = (mixer.num_kv_heads, mixer.head_dim)
        index = index_of.setdefault(shape, len(planes))
        if index == len(planes):
            planes.append(Plane(0, *shape))
        places.append(Place(index, planes[index].num_layers))
        planes[index] = replace(planes[index], num_layers=planes[index].num_layers + 1)
    return tuple(planes), tuple(places)
