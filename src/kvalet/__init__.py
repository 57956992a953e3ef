"""kvalet: an LLM server that never drops a conversation."""

import os

__version__ = "0.1.0"

# How long a compute thread spins for the others before it sleeps; libgomp reads this once, when
# ggml loads it. Its own default collapses as soon as another process wants a core: a step of 20 ms
# took 4 s on two cores with four busy processes, 60 ms with this. On a quiet machine it costs 7 %.
os.environ.setdefault("GOMP_SPINCOUNT", "500")

# ggml reads this when it aborts: otherwise it starts a debugger on the dying process.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
