"""What documents promise exists: rows and decisions that are cited, tests that are named, links,
commands, generated pages."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
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


def behaviour() -> dict[str, str]:
    """Text of each row of docs/behaviour.md by its id: a section, or a line of a table."""
    text = (ROOT / "docs/behaviour.md").read_text()
    sections = re.findall(r"^### ([A-Z]\d+)\. (.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^\| ([A-Z]\d+) (\|.*)$", text, re.MULTILINE)
    rows = dict([*sections, *lines])
    assert len(rows) == len(sections) + len(lines), "a row has its id twice"
    return rows


def sources() -> Iterator[tuple[Path, str]]:
    """Everything that may cite a row or a decision, with line ends and comment signs as spaces."""
    folders = [ROOT / name for name in ("src", "tests", "bench", "docs")]
    found = [path for folder in folders for path in folder.rglob("*")]
    for path in [*found, *ROOT.glob("*.md")]:
        if path.suffix in (".py", ".md", ".c", ".h"):
            yield path, re.sub(r"\s+(?:[#*] )?\s*", " ", path.read_text())


@cache
def defined_in(path: Path) -> frozenset[str]:
    """Functions and classes at the top of a test file."""
    body = ast.parse(path.read_text()).body
    return frozenset(n.name for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef))


def named_tests(text: str) -> list[str]:
    """All of which exist."""
    named = re.findall(r"`(tests/\S+\.py::\w+)`", text)
    for name in named:
        path, _, test = name.partition("::")
        assert (ROOT / path).exists(), name
        assert test in defined_in(ROOT / path), name
    return named


def test_every_row_that_is_built_names_tests_that_exist() -> None:
    for row, text in behaviour().items():
        is_planned = re.search(r"^\*Planned\*[.,]|\| \*planned\* \|$", text, re.MULTILINE)
        assert bool(named_tests(text)) != bool(is_planned), row


def test_every_cited_row_exists() -> None:
    rows, cited = behaviour(), set[str]()
    for path, text in sources():
        loose = re.findall(r"(?<!\()behaviour [A-Z]\d+|(?:SPEC|DESIGN) [A-Z]\d+", text)
        assert not loose, f"{path} cites {loose} otherwise than as (behaviour P1)"
        for citation in re.findall(r"\(behaviour ([A-Z]\d.*?)\)", text):
            ids = re.split(", | to ", citation)
            assert rows.keys() >= set(ids), f"{path}: {citation}"
            cited |= set(ids)
    assert len(cited) > 30


def test_rows_refer_to_rows() -> None:
    rows = behaviour()
    for row, text in rows.items():
        assert rows.keys() >= set(re.findall(r"\b[A-Z]\d+\b", text)), row


def test_every_cited_decision_exists() -> None:
    for path, text in sources():
        for numbers in re.findall(r"\bADRs? (\d{4}(?:(?:, | and )\d{4})*)", text):
            for number in re.findall(r"\d{4}", numbers):
                assert list((ROOT / "docs/adr").glob(f"{number}-*.md")), f"{path}: ADR {number}"


def test_every_invariant_names_a_test_that_exists() -> None:
    text = (ROOT / "docs/invariants.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert len(sections) > 5
    for section in sections:
        assert named_tests(section), section.splitlines()[0]


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
    scheduler = Scheduler(SchedulerConfig(n_ctx=320), num_pages=10, root=b"")
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
