"""What the command line of `kvalet bench` makes of its flags."""

from collections.abc import Sequence
from typing import Any

import pytest

from kvalet.bench import exact, flags, latency, prefix, pressure, turns
from kvalet.bench.target import Where
from kvalet.cli import commands
from kvalet.errors import ConfigError
from kvalet.model.sources import DEFAULT_MODEL

URL = "http://127.0.0.1:9"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options with which a benchmark would run."""
    found: list[Any] = []
    monkeypatch.delenv("LLAMA_ARG_MODEL", raising=False)
    for benchmark in (exact, latency, prefix, pressure, turns):
        monkeypatch.setattr(benchmark, "run", lambda console, given, *more: found.append(given))
    return found


def bench(*args: str) -> None:
    given = commands.parser().parse_args(["bench", *args])
    given.command(given)


def where_of(args: Sequence[str]) -> Where:
    return flags.where(commands.parser().parse_args(["bench", *args]))


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("pressure", "--rounds", "2"), "--rounds is for two servers"),
        (("latency", "--rounds", "2", "--url", URL), "--rounds is for two servers"),
        (("exact", "--rounds", "3"), "--rounds is for two servers"),
        (("pressure", "--uneven", "--chats", "4"), "--chats: --uneven has eight"),
        (("exact", "--every", "16", "--url", URL), "--every: with --url or --vs"),
        (("exact", "--every", "16", "--vs", URL), "--every: with --url or --vs"),
    ],
)
def test_what_would_be_ignored_is_refused(
    asked: list[Any], args: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        bench(*args)
    assert not asked


def test_what_is_not_given_has_a_default(asked: list[Any]) -> None:
    bench("pressure", "--vs", URL, "--rounds", "2")
    bench("exact")
    bench("prefix", "--rounds", "2")
    pressed, compared, second_turns = asked
    assert (pressed.where.num_rounds, pressed.num_chats) == (2, 4)
    assert (compared.where.num_rounds, compared.every) == (3, 16)
    assert second_turns.num_rounds == 2


@pytest.mark.parametrize("what", ["pressure", "latency", "exact", "prefix"])
def test_a_server_that_runs_already_is_sent_what_no_earlier_run_sent(what: str) -> None:
    for urls in (("--url", URL), ("--vs", URL)):
        firsts = {where_of((what, *urls)).first for _ in range(5)}
        assert len(firsts) > 1
        assert all(first >= 1000 and first % 4 == 0 for first in firsts)
        assert where_of((what, *urls, "--first", "12")).first == 12
    assert where_of((what,)).first == 0
    assert where_of((what, "--first", "8")).first == 8


def test_the_model_has_a_name_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_ARG_MODEL", raising=False)
    assert where_of(("exact",)).model == DEFAULT_MODEL
    assert where_of(("exact", "-m", "x.gguf")).model == "x.gguf"
    assert where_of(("exact", "--url", URL)).model is None
    assert where_of(("exact", "--", "-m", "x.gguf")).model is None
    monkeypatch.setenv("LLAMA_ARG_MODEL", "y.gguf")
    assert where_of(("exact",)).model == "y.gguf"
