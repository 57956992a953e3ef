"""A model file, loaded: its weights placed on a device, ready to have graphs built of them."""

from contextlib import ExitStack, closing

from kvalet.engine import native
from kvalet.engine.ggml.architectures import describe
from kvalet.engine.ggml.architectures.decoder import Decoder
from kvalet.engine.ggml.backend import Backend
from kvalet.engine.ggml.linear import LinearKernels
from kvalet.engine.ggml.model import Model
from kvalet.engine.ggml.weights import Weights
from kvalet.model.gguf import GGUFFile


class LoadedModel:
    def __init__(self, file: GGUFFile, threads: int, *, own_linear: bool = True) -> None:
        """Takes over `file` and closes it. `own_linear`: our kernels multiply by the weights whose
        types they have, not ggml's. Raises ModelFileError for what is wrong with the file."""
        with ExitStack() as stack:
            stack.enter_context(file)
            self.backend = stack.enter_context(Backend(threads))
            self.library = native.load()
            packs = self.library if own_linear else None
            self.weights = stack.enter_context(closing(Weights(file, self.backend, packs)))
            self.kernels = LinearKernels(self.library)
            self.model: Model = Decoder(describe(file), self.weights)
            self._resources = stack.pop_all()
        if self.weights.copied_bytes:
            file.drop_resident()  # most of what was read is in memory a second time

    def close(self) -> None:
        """Safe to call twice."""
        self._resources.close()
