"""`kvalet simulate` as it is typed."""

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

import kvalet.sim
from kvalet.cli.run import run
from kvalet.core.policy import LINE_ORDERS, VICTIM_POLICIES
from kvalet.sim.calibration import StepRecord
from kvalet.sim.costs import CostModel
from kvalet.sim.scenario import LOAD, SETTINGS

SMALL = ("simulate", "--tokens", "150", "-c", "512", "--chats", "4", "--seeds", "2", "-j", "1")
ONE = (*SMALL, "--preempt-policy", "smallest", "--preempt-resume", "head")
PNG = b"\x89PNG\r\n"


def _output(capsys: pytest.CaptureFixture[str], args: Sequence[str]) -> str:
    assert run(args) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def _complaint(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_every_policy_and_order_is_compared_unless_told_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = json.loads(_output(capsys, (*SMALL, "--json")))
    pairs = [
        (cell["scenario"]["preempt_policy"], cell["scenario"]["preempt_resume"])
        for cell in found["cells"]
    ]
    assert pairs == [(policy, order) for policy in VICTIM_POLICIES for order in LINE_ORDERS]
    assert found["seeds"] == [1, 2]
    assert found["costs"] == asdict(CostModel())
    first = found["cells"][0]
    assert first["figures"]["parks"]["mean"] > 0
    assert first["vs_first"]["makespan_s"] == {"value": 1.0, "se": 0.0}


def test_the_same_seeds_give_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ((), ("--json",), ("--csv",)):
        alone = _output(capsys, (*ONE, *form))
        assert _output(capsys, (*ONE, "-j", "2", *form)) == alone


def test_the_table_shows_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    out = _output(capsys, (*ONE, "--ctx-size", "512,4096"))
    about, _, headings, small, large, _, legend = out.splitlines()
    assert about.startswith("workload measured, arrivals together, chats 4, tokens 150, parallel 4")
    assert headings.split()[:4] == ["ctx", "size", "makespan", "s"]
    assert small.startswith("512 ")
    assert large.startswith("4096 ")
    assert legend.startswith("±: standard deviation")


def test_the_queue_of_the_highest_priority_is_told_where_there_are_several(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heading = "of the highest priority s"
    waiting = (*ONE, "--chats", "5", "-np", "2")
    assert heading not in _output(capsys, waiting)
    assert heading in _output(capsys, (*waiting, "--priorities", "2"))


def test_a_trace_that_is_called_like_a_workload_is_a_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "heavy"
    path.write_text('{"arrival_s": 0, "prompt_tokens": 40, "output_tokens": 20}\n')
    out = _output(capsys, ("simulate", "--trace", str(path), "-j", "1"))
    assert out.startswith("trace heavy, ctx size 2048, parallel 4;")
    assert "chats" not in out.splitlines()[0]


def test_csv_has_a_row_for_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(_output(capsys, (*ONE, "--csv")))))
    assert [row["seed"] for row in rows] == ["1", "2"]
    assert all(float(row["makespan_s"]) > 0 for row in rows)
    assert set(LOAD) < set(rows[0])
    assert len(rows[0]) == len(SETTINGS) + 15


def test_a_trace_is_played(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"arrival_s": 1, "prompt_tokens": 40, "output_tokens": 20}\n' * 3)
    found = json.loads(_output(capsys, ("simulate", "--trace", str(path), "--json", "-j", "1")))
    assert found["cells"][0]["figures"]["requests"] == {"mean": 3.0, "sd": 0.0}
    assert found["cells"][0]["scenario"]["workload"] == "mine.jsonl"


def test_pictures_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot, timeline = tmp_path / "plot.png", tmp_path / "timeline.png"
    _output(capsys, (*SMALL, "--plot", str(plot), "--timeline", str(timeline)))
    assert plot.read_bytes().startswith(PNG)
    assert timeline.read_bytes().startswith(PNG)


def test_pictures_need_an_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("plot", "gantt"):
        monkeypatch.delattr(kvalet.sim, name, raising=False)
        monkeypatch.delitem(sys.modules, f"kvalet.sim.{name}", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    complaint = _complaint(capsys, *ONE, "--plot", "x.png")
    assert "need matplotlib: pip install 'kvalet[plot]'" in complaint


def test_costs_are_fitted_and_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    record, costs = tmp_path / "record.jsonl", tmp_path / "costs.json"
    steps = [
        StepRecord(n + 1, n + 1, 90 * (i % 7), 0, 0, i % 2, 0.5 + 0.25 * n, 1.0 + n, page_bytes=64)
        for i, n in enumerate([0, 1, 2] * 20)
    ]
    record.write_text("".join(json.dumps(asdict(step)) + "\n" for step in steps))
    out = _output(capsys, ("simulate", "--calibrate", str(record), "--costs", str(costs)))
    assert out.split()[:8] == ["predicted", "of", "median", "error", "p90", "error", "sum", "slow"]
    assert "left at their defaults, since the record does not tell them: prefill_cell_s" in out
    assert CostModel.load(costs).row_s == pytest.approx(0.25)
    found = json.loads(_output(capsys, (*ONE, "--json", "--costs", str(costs))))
    assert found["costs"]["source"] == "record.jsonl, 60 steps"


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("--preempt-policy", "tallest"), "--preempt-policy: expected smallest, largest"),
        (("--chats", "4,0"), "--chats: expected an integer of at least 1, not '0'"),
        (("--chats", ""), "--chats: expected an integer of at least 1, not ''"),
        (("--ctx-size", "63"), "-c/--ctx-size: expected an integer of at least 64"),
        (("--gap", "0"), "--gap: expected a number of at least 0.001"),
        (("--seeds", "none"), "--seeds: expected an integer from 1 to 100000"),
        (("--preempt-high", "80"), "--preempt-low 80 must be below --preempt-high 80"),
        (("--json", "--csv"), "--csv: not allowed with argument --json"),
        (("--trace", "x.jsonl", "--chats", "4"), "--trace takes the place of"),
        (("--gap", "1e300", "--arrivals", "poisson"), "--gap: expected a number of at least"),
        (("--plot", "x.png", "--timeline", "x.png"), "name the same file"),
        (("--plot", "/x.png/../proc/none/x.png"), "there is no folder"),
        (("--seeds", "9" * 20), "--seeds: expected an integer from 1 to"),
        (("--trace", "x.jsonl", "--tokens", "4"), "--trace takes the place of"),
        (("--preempt-async", "off", "--preempt-mirror", "on"), "--preempt-mirror on needs"),
        (("--calibrate", "x", "--costs", "y", "--first-seed", "0"), "simulates nothing"),
        (("--trace", "x.jsonl", "--first-seed", "3"), "--trace is the same for every seed"),
        (("--calibrate", "x", "--costs", "y", "--json"), "--calibrate simulates nothing"),
        (("--calibrate", "x", "--costs", "y", "--chats", "3"), "--calibrate simulates nothing"),
        (("--trace", "x.jsonl", "--seeds", "4"), "--trace is the same for every seed"),
        (("--trace", "no.jsonl"), "no.jsonl: No such file"),
        (("--costs", "no.json"), "no.json: No such file"),
        (("--calibrate", "no.jsonl"), "--calibrate needs --costs"),
        (("--calibrate", "no.jsonl", "--costs", "x.json"), "no.jsonl"),
        (("--plot", "x.bmp"), "x.bmp: the name of a picture ends in one of"),
        (("--plot", "none/x.png"), "there is no folder none"),
        (("--chat", "4"), "unknown flag --chat; did you mean --chats?"),
    ],
)
def test_what_cannot_be_honoured_is_named(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], part: str
) -> None:
    assert part in _complaint(capsys, "simulate", *args)
