"""Which server a benchmark speaks to, and what it may say there."""

from pathlib import Path

import pytest

from kvalet.bench.target import OPTIONAL, Target, Where, at
from kvalet.errors import ConfigError, EngineError
from tests.bench.foreign import STANDARD, Foreign, serving

BODY = {
    "messages": [],
    "max_tokens": 3,
    "temperature": 0,
    "seed": 5,
    "ignore_eos": True,
    "cache_prompt": False,
    "id_slot": 0,
}


@pytest.mark.parametrize(
    "takes", [frozenset(OPTIONAL), *(frozenset({name}) for name in OPTIONAL), frozenset[str]()]
)
def test_what_a_foreign_server_refuses_is_not_sent_again(takes: frozenset[str]) -> None:
    with serving(Foreign(takes=takes)) as foreign:
        target = at(foreign.url)
    assert target == Target(foreign.url, is_kvalet=False, model="foreign-1", takes=takes)
    assert foreign.refused <= set(OPTIONAL)
    sent = target.body(BODY)
    assert {name for name, value in sent.items() if value is not None} <= STANDARD | takes
    assert ("ignore_eos" in sent) == ("ignore_eos" in takes)
    assert (sent["stream_options"] is None) == ("stream_options" not in takes)
    assert (sent["max_tokens"], sent["seed"]) == (3, 5)


def test_kvalet_is_sent_everything() -> None:
    assert Target("http://127.0.0.1:1").body(BODY) == BODY


def test_a_server_that_refuses_everything_is_named() -> None:
    with serving(Foreign()) as foreign, pytest.raises(EngineError, match="refuses a plain chat"):
        at(f"{foreign.url}/nowhere")
    with serving(Foreign(is_page=True)) as page, pytest.raises(EngineError, match="Welcome"):
        at(page.url)


def test_what_does_not_answer_and_what_is_no_url() -> None:
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9 does not answer"):
        at("http://127.0.0.1:9")
    for url in ("127.0.0.1:8080", "ftp://x", "http://x:port", "http://127.0.0.1:99999999"):
        with pytest.raises(ConfigError, match="expected a URL like"):
            at(url)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"model": "x.gguf"}, "--model"),
        ({"record": "x.jsonl"}, "--record"),
        ({"flags": ("-c", "64")}, "its flags"),
    ],
)
def test_what_a_running_server_cannot_be_told(given: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError, match=f"{what} (is|are) for a server that is started"):
        Where(url="http://x", **given)  # type: ignore[arg-type]  # each of its field's type


def test_a_record_begins_empty_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text("old")
    Where(record=str(path)).begin_record()
    assert path.read_text() == ""
    with pytest.raises(ConfigError, match=r"--record: .*No such file"):
        Where(record=str(tmp_path / "none" / "x")).begin_record()
