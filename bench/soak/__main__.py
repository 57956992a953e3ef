"""A soak: a real server on a tiny model under random load, faults and flags, and its account.

    python -m bench.soak [--minutes 10 | --requests 10000] [--seed 0]

Every phase is a server of its own with other flags, drawn from its own seed: `--seed` and those
that follow it. Contexts shift in every second one. The exit code is 0 if nothing was lost, leaked
or wrong.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from bench.soak.answers import Fate
from bench.soak.flags import random_settings
from bench.soak.phase import Account, soak
from tests.engine.tiny_models import write_tiny_llama

from kvalet.cli.signals import end_on_sigterm

PHASE_S = 40.0


def main() -> int:
    end_on_sigterm()
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--requests", type=int, help="that are not refused, at least, however long it takes"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    seconds = min(PHASE_S, 20 * args.minutes)  # of load; its account takes a while too
    deadline = time.monotonic() + 60 * args.minutes - seconds

    first: int = args.seed
    total, seed = Account(), first

    def is_over() -> bool:
        if args.requests:
            num_taken: int = total.fates.total() - total.fates[Fate.REFUSED.value]
            return num_taken >= int(args.requests)
        return seed >= first + 2 and time.monotonic() > deadline

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Pages of 64 KiB: a budget of 1 MiB holds some of what is parked, and not all.
        path = folder / "tiny.gguf"
        model = write_tiny_llama(path, n_kv_head=4, head_dim=64, n_ctx_train=8192)
        while not is_over():
            settings = random_settings(seed, model, folder / str(seed))
            print(settings, flush=True)
            account = asyncio.run(soak(settings, seconds))
            print(f"  {account}", *account.faults(), sep="\n    ", flush=True)
            total.add(account)
            seed += 1
    print(f"soak of seeds {first} to {seed - 1}: {total}")
    return 0 if total.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
