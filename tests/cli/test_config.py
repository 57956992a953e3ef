"""The preemption flags: their variables, limits and refusals, and what the scheduler is told."""

import argparse
import re
from pathlib import Path

import pytest

from kvalet.cli.config import ServeConfig, add_flags, knobs, load, settings
from kvalet.cli.serve import context, props, scheduler_config
from kvalet.core.config import (
    PreemptionConfig,
    SchedulerConfig,
    ShiftConfig,
    SlotConfig,
    StepConfig,
)
from kvalet.core.store import HostBudget
from kvalet.engine.base import EngineInfo, EngineReport
from kvalet.errors import ConfigError
from kvalet.settings import values_of

PAGE_BYTES = 737_280  # SmolLM2's


def parse(*args: str) -> ServeConfig:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return load(vars(parser.parse_args(args)), {})


def scheduling(*args: str) -> SchedulerConfig:
    return scheduler_config(parse(*args), 2048, PAGE_BYTES)


@pytest.mark.parametrize(
    ("env", "text", "field", "value"),
    [
        ("LLAMA_ARG_PREEMPT", "0", "preempt", False),
        ("LLAMA_ARG_PREEMPT", "disabled", "preempt", False),
        ("LLAMA_ARG_PREEMPT", "Enabled", "preempt", True),
        ("LLAMA_ARG_PREEMPT_RAM", "-1", "preempt_ram", -1),
        ("LLAMA_ARG_PREEMPT_ASYNC", "0", "preempt_async", False),
        ("LLAMA_SERVER_PREEMPT_MIRROR", "off", "preempt_mirror", False),
        ("LLAMA_ARG_CACHE_RAM", "0", "cache_ram", 0),
        ("LLAMA_ARG_PREEMPT_DISK", "/", "preempt_disk", Path("/")),
        ("LLAMA_ARG_SLOT_SAVE_PATH", ".", "slot_save_path", Path(".")),
        ("LLAMA_SERVER_PREEMPT_POLICY", "largest", "preempt_policy", "largest"),
        ("LLAMA_SERVER_PREEMPT_TRIGGER", "watermark", "preempt_trigger", "watermark"),
        ("LLAMA_SERVER_PREEMPT_HIGH", "90", "preempt_high", 90),
        ("LLAMA_SERVER_PREEMPT_LOW", "50", "preempt_low", 50),
        ("LLAMA_SERVER_PREEMPT_RESUME", "pass", "preempt_resume", "pass"),
        ("LLAMA_SERVER_PREEMPT_STARVED", "5", "preempt_starved", 5),
        ("LLAMA_SERVER_PREEMPT_REPLAY_MARGIN", "7", "preempt_replay_margin", 7),
        ("LLAMA_SERVER_PREEMPT_ROTATE", "0.5", "preempt_rotate", 0.5),
        ("LLAMA_SERVER_PREEMPT_EVERY", "8", "preempt_every", 8),
        ("LLAMA_SERVER_PREEMPT_PLANNER", "off", "preempt_planner", False),
        ("LLAMA_SERVER_PREFILL_STRETCH", "1.5", "prefill_stretch", 1.5),
        ("LLAMA_ARG_CONTEXT_SHIFT", "true", "context_shift", True),
        ("LLAMA_SERVER_PARK_TIMEOUT", "10", "park_timeout", 10.0),
        ("LLAMA_ARG_SSE_PING_INTERVAL", "-1", "sse_ping_interval", -1),
        ("LLAMA_SERVER_DRAIN_SECONDS", "2", "drain_seconds", 2.0),
    ],
)
def test_variables(env: str, text: str, field: str, value: object) -> None:
    assert values_of(load({}, {env: text}))[field] == value
    with pytest.raises(ConfigError, match=f"^{env}: expected [^\\n]+ not 'x y'$"):
        load({}, {env: "x y"})


def test_the_variable_of_the_disks_limit() -> None:
    disk, limit = "LLAMA_ARG_PREEMPT_DISK", "LLAMA_ARG_PREEMPT_DISK_LIMIT"
    assert load({}, {disk: "/", limit: "-1"}).disk.limit == -1
    with pytest.raises(ConfigError, match=f"^{limit}: expected [^\\n]+ not 'x y'$"):
        load({}, {disk: "/", limit: "x y"})


def test_defaults_are_the_specs() -> None:
    expected = {
        "preempt": True,
        "preempt_ram": 8192,
        "preempt_resume": "head",
        "preempt_trigger": "lookahead",
        "preempt_high": 94,
        "preempt_low": 80,
        "preempt_starved": 3,
        "preempt_rotate": 2.0,
        "prefill_stretch": 2.0,
        "context_shift": False,
        "park_timeout": 300.0,
        "drain_seconds": 0.0,
        "sse_ping_interval": 30,
        "preempt_async": True,
        "preempt_mirror": True,
        "cache_ram": 8192,
        "preempt_disk": None,
        "preempt_disk_limit": 8192,
        "slot_save_path": None,
    }
    assert expected.items() <= values_of(parse()).items()


def test_a_switch_has_two_flags_and_the_last_one_counts() -> None:
    assert parse("--no-preempt").preemption.preempt is False
    assert parse("--no-preempt", "--preempt").preemption.preempt is True
    assert parse("--context-shift").shift.context_shift is True
    assert parse("--context-shift", "--no-context-shift").shift.context_shift is False
    assert parse("--no-preempt-async").copies.beside_steps is False
    assert parse("--no-preempt-async", "--preempt-async").copies.beside_steps is True


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--preempt-policy", "fastest"), "smallest, largest, youngest, oldest or furthest"),
        (("--preempt-trigger", "luck"), "lookahead or watermark"),
        (("--preempt-resume", "tail"), "head, parked or pass"),
        (("--preempt-ram", "-2"), "an integer of at least -1"),
        (("--preempt-ram", "1.5"), "an integer of at least -1"),
        (("--preempt-high", "101"), "an integer from 1 to 100"),
        (("--preempt-starved", "0"), "an integer of at least 1"),
        (("--preempt-rotate", "-1"), "a number of at least 0"),
        (("--preempt-rotate", "inf"), "a number of at least 0"),
        (("--prefill-stretch", "0.9"), "a number of at least 1"),
        (("--sse-ping-interval", "-2"), "an integer of at least -1"),
        (("--cache-ram", "-2"), "an integer of at least -1"),
        (("--preempt-disk-limit", "lots"), "an integer of at least -1"),
        (("--preempt-disk", "/no such folder"), "an existing folder"),
        (("--slot-save-path", "/no such folder"), "an existing folder"),
        (("--slot-save-path", "/proc/version"), "an existing folder"),
        (("--preempt-mirror", "?"), "1, true, on, enabled, 0, false, off or disabled"),
    ],
)
def test_what_cannot_be_honoured_is_one_line(args: tuple[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*args)
    found = next(item for item in settings() if args[0] in item.flags)
    spelling = "/".join(found.flags)
    assert str(caught.value) == f"{spelling}: expected {complaint}, not {args[1]!r}"


def test_slots_are_saved_where_files_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("--slot-save-path", "/proc")
    complaint = "--slot-save-path: expected a folder that can be written to, not '/proc'"
    assert str(caught.value) == complaint
    assert parse("--slot-save-path", str(tmp_path)).http.slot_save_path == tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("--preempt-disk-limit", "8192"), ("--preempt-disk-limit", "--preempt-disk")),
        (("--no-preempt", "--preempt-disk", "."), ("--preempt-disk", "--no-preempt")),
        (
            ("--no-preempt-async", "--preempt-mirror", "on"),
            ("--preempt-mirror on", "--no-preempt-async"),
        ),
    ],
)
def test_what_would_do_nothing_is_refused(args: tuple[str, ...], named: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*args)
    assert "\n" not in str(caught.value)
    assert all(name in str(caught.value) for name in named)


def test_watermarks_must_be_apart() -> None:
    with pytest.raises(ConfigError, match="--preempt-low 80 must be below --preempt-high 70"):
        parse("--preempt-high", "70")


@pytest.mark.parametrize(
    ("given", "pages"), [("-1", None), ("0", 0), ("1", 1), ("150", 213), ("8192", 11650)]
)
def test_the_budget_in_pages(given: str, pages: int | None) -> None:
    assert scheduling("--preempt-ram", given).host_budget.parked == pages


@pytest.mark.parametrize(("given", "pages"), [("-1", None), ("0", 0), ("1", 1), ("150", 213)])
def test_the_cache_in_pages(given: str, pages: int | None) -> None:
    assert scheduling("--cache-ram", given).host_budget.cached == pages


def test_disk_is_used_with_a_folder_only(tmp_path: Path) -> None:
    limit, disk = ("--preempt-disk-limit", "150"), ("--preempt-disk", str(tmp_path))
    assert scheduling().host_budget.disk == 0
    assert scheduling(*limit, *disk).host_budget.disk == 213
    assert scheduling(*disk).host_budget.disk == 11650
    assert scheduling(*disk, "--preempt-disk-limit", "-1").host_budget.disk is None


def test_disk_needs_ram(tmp_path: Path) -> None:
    disk = ("--preempt-disk", str(tmp_path), "--preempt-ram")
    with pytest.raises(ConfigError, match=r"^--preempt-disk needs a --preempt-ram above 0: .+$"):
        parse(*disk, "0")
    for ram in ("1", "-1"):
        assert parse(*disk, ram).disk.folder == tmp_path


def test_copies_beside_steps_look_ahead_and_mirror() -> None:
    told = scheduling()
    assert (told.lookahead_steps, told.mirror) == (8, True)
    told = scheduling("--preempt-mirror", "off")
    assert (told.lookahead_steps, told.mirror) == (8, False)
    told = scheduling("--no-preempt-async")
    assert (told.lookahead_steps, told.mirror) == (1, False)


def test_the_scheduler_is_told() -> None:
    told = scheduling(
        *("-np", "3", "--no-preempt", "--preempt-policy", "oldest", "--preempt-resume", "pass"),
        *("--preempt-trigger", "watermark", "--preempt-high", "70", "--preempt-low", "40"),
        *(
            "--preempt-replay-margin",
            "5",
            "--preempt-starved",
            "9",
            "--preempt-rotate",
            "7",
            "--prefill-stretch",
            "3",
        ),
        *("--context-shift", "--preempt-ram", "-1", "-b", "2"),
    )
    assert told == SchedulerConfig(
        n_ctx=2048,
        slots=SlotConfig(num_slots=3),
        steps=StepConfig(batch_size=2, prefill_stretch=3.0),
        shift=ShiftConfig(context_shift=True, rotate_s=7.0),
        preemption=PreemptionConfig(
            preempt=False,
            victim_policy="oldest",
            entry_order="pass",
            trigger="watermark",
            high_percent=70,
            low_percent=40,
            starved_after=9,
            replay_margin=5,
        ),
        host_budget=HostBudget(parked=None, cached=11650),
        lookahead_steps=8,
        mirror=True,
    )
    assert told.batch_size == 3  # all slots decode in one step


def preemption_props(*args: str) -> dict[str, object]:
    info = EngineInfo(64, PAGE_BYTES, 100, 512, b"", EngineReport(copies="asynchronous"))
    told = props(info, parse(*args), scheduling(*args))["preemption"]
    assert isinstance(told, dict)
    return told


def test_props_tell_policy_and_budget() -> None:
    told = preemption_props("--preempt-ram", "1", "--preempt-trigger", "watermark")
    assert told["preempt_policy"] == "youngest"
    assert (told["preempt_trigger"], told["preempt_resume"]) == ("watermark", "head")
    assert told["host_budget_bytes"] == PAGE_BYTES
    assert (told["lookahead_steps"], told["preempt_mirror"]) == (8, True)
    assert told["copies"] == "asynchronous"


def test_props_tell_every_knob_of_preemption_by_the_name_of_its_flag() -> None:
    names = {item.name for item in settings() if item.name.startswith("preempt")}
    apart = {"preempt_ram", "preempt_disk", "preempt_disk_limit"}  # told in bytes
    assert names - apart <= preemption_props().keys()


def test_props_tell_what_the_host_store_may_hold(tmp_path: Path) -> None:
    def budgets(*args: str) -> tuple[object, ...]:
        told = preemption_props(*args)
        return tuple(told[f"{kind}_budget_bytes"] for kind in ("host", "disk", "cache"))

    disk = ("--preempt-disk", str(tmp_path), "--preempt-disk-limit")
    assert budgets("--preempt-ram", "1", "--cache-ram", "2") == (PAGE_BYTES, 0, 2 * PAGE_BYTES)
    assert budgets(*disk, "3")[1] == 4 * PAGE_BYTES
    assert budgets("--preempt-ram", "-1", *disk, "-1", "--cache-ram", "-1") == (None, None, None)


def test_a_context_that_cannot_shift() -> None:
    assert context(parse("--context-shift", "-c", "64"), 8192) == 64
    for args in (("-c", "63"), ("-c", "0"), ()):
        with pytest.raises(ConfigError, match="--context-shift needs a --ctx-size of at least 64"):
            context(parse("--context-shift", *args), n_ctx_train=32)


def test_a_context_that_holds_no_chat() -> None:
    with pytest.raises(ConfigError, match="--ctx-size: 1 cells"):
        context(parse("-c", "1"), n_ctx_train=32)


def test_no_limit_on_tokens_is_llama_cpp_s_minus_one() -> None:
    assert parse("--predict", "-1").http.max_new_tokens is None


def test_the_server_is_told() -> None:
    told = parse(
        "--park-timeout", "9", "--drain-seconds", "4", "--sse-ping-interval", "0", "--api-key", "k"
    ).http
    assert told.api_keys == ("k",)
    assert (told.park_timeout_s, told.drain_s, told.sse_ping_interval_s) == (9.0, 4.0, 0)
    assert told.slot_save_path is None


def test_knobs_that_are_set() -> None:
    environ = {"LLAMA_SERVER_PREEMPT_EVERY": "8", "LLAMA_SERVER_PREEMPT_PLANNER": "off"}
    assert knobs(load({}, environ)) == [
        "LLAMA_SERVER_PREEMPT_EVERY=8",
        "LLAMA_SERVER_PREEMPT_PLANNER=off",
    ]
    assert knobs(load({}, {"LLAMA_SERVER_PREEMPT_PLANNER": "on"})) == []


def test_help_tells_every_flag_its_default_and_variable() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    shown = re.sub(r"\s+", " ", parser.format_help())
    for setting in settings():
        if setting.flags:
            assert ", ".join(setting.flags[-1:]) in shown
            assert f"(default: {setting.shown}; env {setting.env})" in shown
