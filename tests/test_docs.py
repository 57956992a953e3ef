"""What documents promise exists: tests that invariants name, links, commands, generated pages."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvalet.core.config import SchedulerConfig
from kvalet.core.plan import SeqId
from kvalet.core.request import Request, SamplingParams
from kvalet.core.scheduler import Scheduler
from kvalet.core.sequence import Sequence
from kvalet.engine.fake import FakeEngine

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(p for p in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def _matches(pattern: str, text: str) -> Iterator[str]:
    return (match.group(1) for match in re.finditer(pattern, text, re.MULTILINE))


def test_every_invariant_names_a_test_that_exists() -> None:
    text = (ROOT / "docs/invariants.md").read_text()
    named = list(_matches(r"`(tests/\S+::\w+)`", text))
    assert len(re.findall(r"^## INV-\d+", text, re.MULTILINE)) > 5
    for section in text.split("\n## ")[1:]:
        assert re.search(r"`tests/\S+::\w+`", section), section.splitlines()[0]
    for name in named:
        path, _, test = name.partition("::")
        assert re.search(rf"\b(def|class) {test}\b", (ROOT / path).read_text()), name
    assert named


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in _matches(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_readme_and_contributing_name_only_targets_that_exist() -> None:
    targets = set(_matches(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text()))
    for name in ("README.md", "CONTRIBUTING.md"):
        used = set(_matches(r"\bmake ([a-z]+)\b", (ROOT / name).read_text()))
        assert used
        assert used <= targets


def test_the_example_in_architecture_happens_as_told() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    told = {int(step): (int(a), int(b)) for step, a, b in _example_rows(text)}
    assert len(told) > 5
    happened = _pages_of_two_chats(num_steps=max(told))
    assert told == {step: happened[step] for step in told}


def _example_rows(text: str) -> list[tuple[str, str, str]]:
    return re.findall(r"^\| (\d+) \| (\d+), (\d+) \|", text, re.MULTILINE)


def _pages_of_two_chats(num_steps: int) -> dict[int, tuple[int, int]]:
    """Pages that A and B hold after each step; B arrives after the first."""
    engine = FakeEngine(num_pages=10)
    scheduler = Scheduler(SchedulerConfig(num_slots=4, n_ctx=320), num_pages=10, root=b"")
    a = Sequence(SeqId(0), Request("a", tuple(range(200)), 100, SamplingParams(temperature=0)))
    b = Sequence(SeqId(1), Request("b", tuple(range(50, 110)), 100, SamplingParams(temperature=0)))
    happened = {}
    scheduler.add(a)
    for step in range(1, num_steps + 1):
        plan = scheduler.plan(float(step))
        scheduler.commit(plan, engine.execute(plan))
        happened[step] = (len(a.table), len(b.table))
        if step == 1:
            scheduler.add(b)
    assert not scheduler.has_work
    return happened


def test_reference_pages_are_what_the_code_says() -> None:
    command = [sys.executable, "docs/generate.py", "--check"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
