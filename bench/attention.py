"""How long paged attention takes for one step of SmolLM2-135M: write, attend and fold of all layers
as a ggml graph. `python bench/attention.py [threads] [isa ...]`; the last line is JSON."""

import ctypes
import json
import platform
import statistics
import sys
import time
from dataclasses import dataclass

from kvalet.engine import native  # isort: skip  (first: it sets how ggml's threads wait)

import ggml
import numpy as np

NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 30, 9, 3, 64
HEADS_OF_QKV = (NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS)
NUM_PAGES = 256
PARTIALS_FLOATS = 1 << 16  # enough to split one row of each sequence, as the engine has it
CASES = [(1, 1, n) for n in (256, 1000, 2000)] + [(4, 1, n) for n in (256, 1000, 2000)]
CASES += [(1, 512, 512), (1, 512, 2012)]  # sequences, rows of each, cells after the step


@dataclass
class Timing:
    isa: str
    num_seqs: int
    rows: int
    cells: int
    median_ms: float
    best_ms: float


class Bench:
    """A pool full of random cells, and the graph of one step."""

    def __init__(self, library: native.NativeLibrary, num_threads: int) -> None:
        self.library, self.num_threads = library, num_threads
        elements = NUM_LAYERS * 2 * NUM_KV_HEADS * HEAD_DIM * native.PAGE_CELLS
        rng = np.random.default_rng(0)
        page = rng.standard_normal(elements).astype(np.float16)
        self.pages = np.tile(page, (NUM_PAGES, 1))
        self.order = rng.permutation(NUM_PAGES).astype(np.int32)
        self.counters = np.zeros(NUM_LAYERS, np.int32)
        self.partials = np.zeros(PARTIALS_FLOATS, np.float32)
        self.pool = native.Pool(
            self.pages.ctypes.data,
            self.pages.strides[0],
            NUM_PAGES,
            NUM_LAYERS,
            NUM_KV_HEADS,
            HEAD_DIM,
        )

    def time(self, num_seqs: int, rows: int, cells: int, repeats: int) -> list[float]:
        """Milliseconds of `repeats` runs after a warm-up."""
        pages_each = -(-cells // native.PAGE_CELLS)
        tables = self.order[: num_seqs * pages_each].reshape(num_seqs, pages_each).copy()
        row_seq = np.repeat(np.arange(num_seqs, dtype=np.int32), rows)
        row_cell = np.tile(np.arange(cells - rows, cells, dtype=np.int32), num_seqs)
        row_end = row_cell + 1
        batch = native.Batch(
            num_seqs * rows,
            num_seqs,
            row_seq.ctypes.data,
            row_cell.ctypes.data,
            row_end.ctypes.data,
            tables.ctypes.data,
            pages_each,
            self.counters.ctypes.data,
            self.partials.ctypes.data,
            PARTIALS_FLOATS,
        )
        layers = [
            native.Attention(
                ctypes.pointer(self.pool),
                ctypes.pointer(batch),
                None,
                layer,
                NUM_HEADS,
                0,
                HEAD_DIM**-0.5,
                0.0,
            )
            for layer in range(NUM_LAYERS)
        ]
        context = ggml.ggml_init(ggml.ggml_init_params(mem_size=1 << 28))
        graph = ggml.ggml_new_graph(context)
        sources = [self._filled(context, heads, num_seqs * rows) for heads in HEADS_OF_QKV]
        for attention in layers:
            self._add_layer(context, graph, attention, num_seqs * rows, sources)
        backend = ggml.ggml_backend_cpu_init()
        ggml.ggml_backend_cpu_set_n_threads(backend, self.num_threads)
        times = []
        for _ in range(repeats + 2):
            start = time.perf_counter()
            ggml.ggml_backend_graph_compute(backend, graph)
            times.append(1e3 * (time.perf_counter() - start))
        ggml.ggml_backend_free(backend)
        ggml.ggml_free(context)
        return times[2:]

    def _filled(self, context: object, heads: int, width: int) -> object:
        tensor = ggml.ggml_new_tensor_2d(context, ggml.GGML_TYPE_F32, HEAD_DIM * heads, width)
        values = np.random.default_rng(1).standard_normal(HEAD_DIM * heads * width, np.float32)
        ctypes.memmove(ggml.ggml_get_data(tensor), values.ctypes.data, values.nbytes)
        return tensor

    def _add_layer(
        self,
        context: object,
        graph: object,
        attention: native.Attention,
        width: int,
        sources: list[object],
    ) -> None:
        userdata = ctypes.addressof(attention)

        def custom(function: object, size: int, *sources: object) -> object:
            arguments = (ctypes.POINTER(ggml.ggml_tensor) * len(sources))(*sources)
            shape = (size, width if size > 1 else 1, 1, 1)
            kind = ggml.GGML_TYPE_F32
            return ggml.ggml_custom_4d(
                context, kind, *shape, arguments, len(sources), function, -1, userdata
            )

        q, k, v = sources
        written = custom(self.library.write, 1, k, v)
        attended = custom(self.library.attend, HEAD_DIM * NUM_HEADS, q, written)
        fold = ggml.ggml_custom_inplace(context, attended, None, 0, self.library.fold, -1, userdata)
        ggml.ggml_build_forward_expand(graph, fold)


def main() -> None:
    num_threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    timings = []
    print(f"{'isa':8}{'seqs':>6}{'rows':>6}{'cells':>7}{'median ms':>11}{'best ms':>9}{'GB/s':>7}")
    for isa in sys.argv[2:] or [native.load().isa]:
        bench = Bench(native.load(isa), num_threads)
        for num_seqs, rows, cells in CASES:
            times = bench.time(num_seqs, rows, cells, 30 if rows == 1 else 5)
            timing = Timing(isa, num_seqs, rows, cells, statistics.median(times), min(times))
            timings.append(timing)
            read = num_seqs * cells * NUM_KV_HEADS * HEAD_DIM * 4 * NUM_LAYERS
            print(
                f"{isa:8}{num_seqs:6}{rows:6}{cells:7}{timing.median_ms:11.2f}"
                f"{timing.best_ms:9.2f}{read / timing.median_ms / 1e6:7.1f}"
            )
    machine = {"processor": platform.processor(), "num_threads": num_threads}
    print(json.dumps(machine | {"timings": [vars(timing) for timing in timings]}))


if __name__ == "__main__":
    main()
