"""What a step costs by how deep its sequences are, on the engine alone.

    python bench/steps.py [-m MODEL] [--threads N]

Steps are the engine's own, on cells that nothing was written to. What a step takes longer than the
shallowest one of as many rows is attention; GB/s are of the cells that a decoding step reads more.
The last line is JSON.
"""

import argparse
import json
import os
import statistics
from collections.abc import Iterator

from kvalet.bench.figures import ratio
from kvalet.bench.report import circumstances, markdown, spread
from kvalet.core.plan import PAGE_CELLS, Grant, PageId, Phase, SeqId, StepPlan, pages_for
from kvalet.engine.ggml.engine import GgmlEngine, load_engine
from kvalet.model import sources
from kvalet.model.gguf import GGUFFile

SHAPES = ((1, 1), (4, 1), (1, 512))  # sequences, rows of each
DEPTHS = (32, 256, 1000, 2000)  # cells before the step
NUM_PAGES = 4 * pages_for(max(DEPTHS) + 512)
NUM_STEPS = 20  # of each kind, after WARM_UP that build the graph
WARM_UP = 2
HEADINGS = ("sequences", "rows", "cells", "median ms", "best ms", "attention ms", "GB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-m", "--model", help="default: the default model")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    circumstances()
    file = GGUFFile.open(sources.resolve(args.model))
    engine = load_engine(file, num_pages=NUM_PAGES, threads=args.threads)
    found = [row for shape in SHAPES for row in rows(engine, *shape)]
    engine.close()
    print(*markdown(HEADINGS, ([spread([value]) for value in row] for row in found)), "", sep="\n")
    told = [dict(zip(HEADINGS, row, strict=True)) for row in found]
    print(json.dumps({**circumstances(), "threads": args.threads, "steps": told}))


def rows(engine: GgmlEngine, num_seqs: int, num_rows: int) -> Iterator[tuple[float | None, ...]]:
    """Under HEADINGS."""
    cell_bytes = engine.info.page_bytes / PAGE_CELLS
    medians: list[float] = []
    for depth in DEPTHS:
        times = times_ms(engine, num_seqs, num_rows, depth)
        medians.append(statistics.median(times))
        more_ms = medians[-1] - medians[0] if len(medians) > 1 else None
        read = num_seqs * (depth - DEPTHS[0]) * cell_bytes if num_rows == 1 else None
        told = (num_seqs, num_rows, depth, medians[-1], min(times), more_ms)
        yield (*told, ratio(read, None if more_ms is None else 1e6 * more_ms))


def times_ms(engine: GgmlEngine, num_seqs: int, num_rows: int, depth: int) -> list[float]:
    each = pages_for(depth + num_rows)
    phase = Phase.DECODE if num_rows == 1 else Phase.PREFILL
    pages = [tuple(map(PageId, range(seq * each, (seq + 1) * each))) for seq in range(num_seqs)]
    grants = tuple(
        Grant(SeqId(seq), phase, depth, (5,) * num_rows, held) for seq, held in enumerate(pages)
    )
    plans = (StepPlan(step=number, grants=grants) for number in range(NUM_STEPS + WARM_UP))
    return [1e3 * engine.execute(plan).compute_s for plan in plans][WARM_UP:]


if __name__ == "__main__":
    main()
