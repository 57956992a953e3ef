"""A model file, loaded: its weights placed on a device, ready to have graphs built of them."""

from contextlib import ExitStack, closing

from kvalet.engine import native
from kvalet.engine.ggml.architectures import describe
from kvalet.engine.ggml.architectures.decoder import Decoder
from kvalet.engine.ggml.backend import Backend
from kvalet.engine.ggml.model import Model
from kvalet.engine.ggml.weights import Weights
from kvalet.model.gguf import GGUFFile


class LoadedModel:
    def __init__(self, file: GGUFFile, threads: int) -> None:
        """Takes over `file` and closes it. Raises ModelFileError for what is wrong with it."""
        with ExitStack() as stack:
            stack.enter_context(file)
            self.backend = stack.enter_context(Backend(threads))
            self.library = native.load()
            self.weights = stack.enter_context(closing(Weights(file, self.backend)))
            self.model: Model = Decoder(describe(file), self.weights)
            self._resources = stack.pop_all()
        if self.weights.repacked_bytes:
            file.drop_resident()  # most of what was read is in memory a second time

    def close(self) -> None:
        """Safe to call twice."""
        self._resources.close()
