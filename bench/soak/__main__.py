"""A soak: a real server on a tiny model under random load, faults and flags, and its account.

    python -m bench.soak [--minutes 10] [--seed 0]

Every phase is a server of its own with other flags; contexts shift in every second one. The exit
code is 0 if nobody was lost and nothing leaked.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from bench.soak.phase import Account, random_settings, soak
from tests.engine.tiny_models import write_tiny_llama

PHASE_S = 40.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random, total, num_phases = Random(args.seed), Account(), 0
    deadline = time.monotonic() + 60 * args.minutes
    seconds = min(PHASE_S, 60 * args.minutes / 3)  # of load; its account takes a while too
    with tempfile.TemporaryDirectory() as folder:
        # Pages of 64 KiB: a budget of 1 MiB holds some of what is parked, and not all.
        path = Path(folder) / "tiny.gguf"
        model = write_tiny_llama(path, n_kv_head=4, head_dim=64, n_ctx_train=8192)
        while num_phases < 2 or time.monotonic() + seconds < deadline:
            num_phases += 1
            own = Path(folder) / f"phase {num_phases}"
            settings = random_settings(random, model, own, endless=num_phases % 2 == 0)
            print(f"phase {num_phases}: {settings.describe()}", flush=True)
            account = asyncio.run(soak(settings, Random(random.random()), seconds))
            print(f"  {account.describe()}", flush=True)
            total.add(account)
    print(
        f"soak seed {args.seed}: requests {total.num_requests}, parks {total.num_parks}, "
        f"lost {len(total.lost)}, leaked {len(total.leaked)}"
    )
    return 0 if total.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
