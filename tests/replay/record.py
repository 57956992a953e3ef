"""`python -m tests.replay.record [name ...]`: play scenarios and write their traces.

Refuses to leave traces that do not exercise what they are for.
"""

import sys

from tests.replay import coverage, traces
from tests.replay.driver import play
from tests.replay.scenarios import SCENARIOS


def main(wanted: list[str]) -> int:
    for scenario in SCENARIOS:
        if wanted and scenario.name not in wanted:
            continue
        trace = play(scenario)
        before = traces.read(scenario.name) if scenario.name in traces.names() else None
        traces.write(trace)
        verdict = "same" if before == trace else "new" if before is None else "CHANGED"
        sys.stdout.write(f"{verdict:8}{scenario.name:32}{len(trace.plans):5} steps\n")
    everything = [traces.read(name) for name in traces.names()]
    for name, count in coverage.counts(everything).items():
        sys.stdout.write(f"{count:8} {name}\n")
    missing = coverage.missing(everything)
    if missing:
        sys.stderr.write(f"not exercised: {', '.join(missing)}\n")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
