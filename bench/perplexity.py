"""Perplexity of bench/text.txt: the engine's, and that of the plain numpy model of the tests.

The engine decodes the text token by token: a bias forces the token that comes next, and its
reported log-probability is that of the raw logits. The last line is JSON.
"""

import json
import math
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from tests.engine.reference_llama import ReferenceLlama

from kvalet.core.plan import Draw, Grant, PageId, Phase, SeqId, StepPlan, pages_for
from kvalet.core.request import SamplingParams
from kvalet.engine.ggml.engine import load_engine
from kvalet.model import sources
from kvalet.model.gguf import GGUFFile
from kvalet.model.tokenizer import Tokenizer

TEXT = Path(__file__).parent / "text.txt"
FORCED = 1e4


def engine_logprobs(path: Path, tokens: list[int]) -> list[float]:
    """Of each token after the first."""
    num_pages = pages_for(len(tokens))
    engine = load_engine(GGUFFile.open(path), num_pages=num_pages, threads=2, max_seqs=1)
    logprobs = []
    for start, (token, following) in enumerate(pairwise(tokens)):
        params = SamplingParams(temperature=0, logit_bias=((following, FORCED),), logprobs=True)
        pages = tuple(PageId(page) for page in range(pages_for(start + 1)))
        grant = Grant(SeqId(0), Phase.DECODE, start, (token,), pages, (Draw(params, start),))
        (drawn,) = engine.execute(StepPlan(step=start, grants=(grant,))).sampled[SeqId(0)]
        if drawn.token != following or drawn.logprob is None:
            raise SystemExit(f"the engine drew {drawn}, not {following}")
        logprobs.append(drawn.logprob)
    engine.close()
    return logprobs


def main() -> None:
    path = sources.resolve(None)
    with GGUFFile.open(path) as file:
        tokens = Tokenizer.from_gguf(file).encode(TEXT.read_text())
    start = time.perf_counter()
    engine = np.array(engine_logprobs(path, tokens))
    seconds = time.perf_counter() - start
    all_logprobs = ReferenceLlama(path).logprobs(tokens)
    reference = all_logprobs[np.arange(len(tokens) - 1), tokens[1:]]
    result = {
        "model": path.name,
        "tokens": len(tokens),
        "perplexity": math.exp(-engine.mean()),
        "reference": math.exp(-reference.mean()),
        "mean_difference": float(np.abs(engine - reference).mean()),
        "max_difference": float(np.abs(engine - reference).max()),
        "tokens_per_s": len(tokens) / seconds,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
