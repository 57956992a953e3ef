"""ggml's CPU backend: threads, buffer types, tensors in and out, running a graph.

The rest of the engine reaches ggml's devices through this class alone. ggml ends the process on a
failed assertion, so callers check what they pass; what can fail without that is an EngineError.
"""

import ctypes
import logging
import time
from typing import Any, Final, Self, TypeAlias

import ggml
import numpy as np

from kvalet.errors import EngineError, EngineFatal

Tensor: TypeAlias = Any  # a pointer to ggml_tensor: a class that ctypes makes at run time
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Handle: TypeAlias = int  # an opaque pointer of ggml's

logger = logging.getLogger(__name__)

# Other extra buffer types (AMX) may be announced by a processor that then refuses to run them.
REPACK_BUFFER_TYPE: Final = "CPU_REPACK"

_LEVELS: Final = {
    ggml.GGML_LOG_LEVEL_DEBUG: logging.DEBUG,
    ggml.GGML_LOG_LEVEL_INFO: logging.DEBUG,
    ggml.GGML_LOG_LEVEL_WARN: logging.WARNING,
    ggml.GGML_LOG_LEVEL_ERROR: logging.ERROR,
}


def _log_line(level: int, text: bytes, _user: object) -> None:
    line = text.decode("utf-8", "replace").strip()
    if line:
        logger.log(_LEVELS.get(level, logging.DEBUG), "ggml: %s", line)


_log_callback = ggml.ggml_log_callback(_log_line)  # ggml keeps the pointer


class Backend:
    """The CPU with `threads` threads."""

    def __init__(self, threads: int) -> None:
        ggml.ggml_log_set(_log_callback, None)
        self._device: Handle = ggml.ggml_backend_dev_by_type(ggml.GGML_BACKEND_DEVICE_TYPE_CPU)
        self._handle: Handle | None = ggml.ggml_backend_cpu_init()
        if self._handle is None:
            raise EngineFatal("ggml's CPU backend cannot be started")
        ggml.ggml_backend_cpu_set_n_threads(self._handle, threads)
        self.threads = threads
        self.buffer_type: Handle = ggml.ggml_backend_get_default_buffer_type(self._handle)
        self.repack_buffer_type = _extra_buffer_types(self._device).get(REPACK_BUFFER_TYPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self._handle is not None:
            ggml.ggml_backend_free(self._handle)
            self._handle = None

    @property
    def description(self) -> str:
        return str(ggml.ggml_backend_dev_description(self._device).decode())

    def can_compute(self, kind: int) -> bool:
        """Whether weights of ggml type `kind` can be multiplied and looked up. ggml's own answer
        (`supports_op`) is yes for types that it then crashes on."""
        return bool(ggml.ggml_get_type_traits_cpu(kind).contents.vec_dot)

    def takes_linear(self, kind: int, shape: tuple[int, ...], buffer_type: Handle) -> bool:
        """Whether a weight that can be computed with may lie in an extra buffer type."""
        with Context(3 * ggml.ggml_tensor_overhead()) as context:
            weight = context.new(kind, *shape)
            vector = context.new(ggml.GGML_TYPE_F32, shape[0])
            buffer = ggml.ggml_backend_buft_alloc_buffer(buffer_type, 0)
            weight.contents.buffer = buffer
            product = ggml.ggml_mul_mat(context.handle, weight, vector)
            taken = bool(ggml.ggml_backend_dev_supports_op(self._device, product))
            ggml.ggml_backend_buffer_free(buffer)
        return taken

    def wrap(self, address: int, num_bytes: int) -> "Buffer":
        """A buffer over memory that somebody else owns and keeps."""
        handle = ggml.ggml_backend_dev_buffer_from_host_ptr(
            self._device, address, num_bytes, num_bytes
        )
        return Buffer(handle, num_bytes)

    def allocate(self, num_bytes: int, buffer_type: Handle | None = None) -> "Buffer":
        handle = ggml.ggml_backend_buft_alloc_buffer(buffer_type or self.buffer_type, num_bytes)
        return Buffer(handle, num_bytes)

    def compute(self, graph: Handle) -> float:
        """Run `graph` to its end; returns the seconds it took. Raises EngineError."""
        start = time.perf_counter()
        status = ggml.ggml_backend_graph_compute(self._handle, graph)
        elapsed = time.perf_counter() - start
        if status != ggml.GGML_STATUS_SUCCESS:
            raise EngineError(f"ggml could not compute the step (status {status})")
        return elapsed


class Buffer:
    """Device memory. Tensors placed in it must not be used after `close`."""

    def __init__(self, handle: Handle | None, num_bytes: int) -> None:
        if handle is None:
            raise EngineFatal(f"no memory for a buffer of {num_bytes} bytes")
        self.handle: Handle | None = handle
        self.num_bytes = num_bytes
        self.base: int = ggml.ggml_backend_buffer_get_base(handle)

    def place(self, tensor: Tensor, address: int) -> Tensor:
        """Give `tensor` its memory, all of it within the buffer; returns it."""
        ggml.ggml_backend_tensor_alloc(self.handle, tensor, address)
        return tensor

    def close(self) -> None:
        if self.handle is not None:
            ggml.ggml_backend_buffer_free(self.handle)
            self.handle = None


class Context:
    """Descriptions of tensors (and of one graph), without their data."""

    def __init__(self, num_bytes: int) -> None:
        params = ggml.ggml_init_params(mem_size=num_bytes, mem_buffer=None, no_alloc=True)
        self._handle: Handle | None = ggml.ggml_init(params)
        if self._handle is None:
            raise EngineFatal(f"no memory for {num_bytes} bytes of tensor descriptions")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def handle(self) -> Handle:
        if self._handle is None:
            raise ValueError("the context is closed")
        return self._handle

    @property
    def used_bytes(self) -> int:
        return int(ggml.ggml_used_mem(self.handle))

    def new(self, kind: int, *shape: int) -> Tensor:
        dims = (ctypes.c_int64 * len(shape))(*shape)
        return ggml.ggml_new_tensor(self.handle, kind, len(shape), dims)

    def close(self) -> None:
        if self._handle is not None:
            ggml.ggml_free(self._handle)
            self._handle = None


def write(tensor: Tensor, values: Array) -> None:
    """Fill `tensor` from the beginning of a contiguous array at least as large."""
    ggml.ggml_backend_tensor_set(tensor, values.ctypes.data, 0, ggml.ggml_nbytes(tensor))


def read(tensor: Tensor, values: Array) -> None:
    """Fill a contiguous array from the beginning of `tensor`."""
    ggml.ggml_backend_tensor_get(tensor, values.ctypes.data, 0, values.nbytes)


def _extra_buffer_types(device: Handle) -> dict[str, Handle]:
    registry = ggml.ggml_backend_dev_backend_reg(device)
    address = ggml.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return {}
    function = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
    found: dict[str, Handle] = {}
    types = function(device)
    index = 0
    while types and types[index]:
        found[ggml.ggml_backend_buft_name(types[index]).decode()] = types[index]
        index += 1
    return found
