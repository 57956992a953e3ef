"""Traces as files: gzipped lines, each with the name of its section, made alike every time."""

import gzip
import io
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from tests.replay.driver import Trace
from tests.replay.scenario import Scenario

FOLDER: Final = Path(__file__).parent / "traces"
SCENARIO = TypeAdapter(Scenario)


def names() -> list[str]:
    return sorted(path.name.removesuffix(".gz") for path in FOLDER.glob("*.gz"))


def read(name: str) -> Trace:
    text = gzip.decompress((FOLDER / f"{name}.gz").read_bytes()).decode()
    sections: dict[str, list[str]] = {"scenario": [], "plan": [], "event": [], "counters": []}
    for line in text.splitlines():
        section, _, content = line.partition(" ")
        sections[section].append(content)
    scenario = SCENARIO.validate_json(sections["scenario"][0])
    return Trace(scenario, sections["plan"], sections["event"], sections["counters"][0])


def write(trace: Trace) -> None:
    lines = [
        f"scenario {SCENARIO.dump_json(trace.scenario).decode()}",
        *(f"plan {line}" for line in trace.plans),
        *(f"event {line}" for line in trace.events),
        f"counters {trace.counters}",
    ]
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as packed:
        packed.write(("\n".join(lines) + "\n").encode())
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{trace.scenario.name}.gz").write_bytes(buffer.getvalue())


def difference(recorded: list[str], played: list[str]) -> str | None:
    """The first line that differs, by both."""
    for index in range(max(len(recorded), len(played))):
        before = recorded[index] if index < len(recorded) else "(nothing)"
        after = played[index] if index < len(played) else "(nothing)"
        if before != after:
            return f"line {index + 1}:\n  recorded {before}\n  played   {after}"
    return None
