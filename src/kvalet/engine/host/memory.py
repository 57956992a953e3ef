"""Memory by address, outside Python's heap."""

import ctypes
import mmap
from contextlib import suppress
from typing import Final

from kvalet.errors import EngineError

HUGE_PAGE_BYTES: Final = 2 << 20


class Memory:
    """Anonymous memory, which really goes back to the system when it is closed."""

    def __init__(self, num_bytes: int) -> None:
        try:
            self._map = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise EngineError(f"no memory for {num_bytes} bytes on the host") from error
        if num_bytes >= HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            # Otherwise the first copy into new memory takes five times as long as the next.
            with suppress(OSError):
                self._map.madvise(mmap.MADV_HUGEPAGE)
        # The ctypes object holds on to the map; only the number is kept.
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def close(self) -> None:
        self._map.close()


def copy(target: int, source: int, num_bytes: int) -> None:
    """Between two addresses, without the GIL."""
    ctypes.memmove(target, source, num_bytes)


def view(address: int, num_bytes: int) -> memoryview:
    """Of memory that somebody else keeps."""
    return memoryview((ctypes.c_ubyte * num_bytes).from_address(address)).cast("B")
