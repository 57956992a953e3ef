"""What the command line of `kvalet bench` makes of its flags."""

import argparse

import pytest

from kvalet.bench import command
from kvalet.bench.exact import Exact
from kvalet.bench.latency import Latency
from kvalet.bench.pressure import Pressure
from kvalet.bench.stall import Stall
from kvalet.bench.target import Where
from kvalet.cli import commands
from kvalet.errors import ConfigError
from kvalet.model.sources import DEFAULT_MODEL

URL = "http://127.0.0.1:9"


def parsed(*args: str) -> argparse.Namespace:
    return commands.parser().parse_args(["bench", *args])


def where_of(*args: str) -> Where:
    given = parsed(*args)
    return command.where_of(given, command.benchmark_of(given).ROUNDS)


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("exact", "--every", "16", "--url", URL), "--every: with --url or --vs"),
        (("exact", "--every", "16", "--vs", URL), "--every: with --url or --vs"),
    ],
)
def test_what_would_be_ignored_is_refused(args: tuple[str, ...], complaint: str) -> None:
    given = parsed(*args)
    with pytest.raises(ConfigError, match=complaint):
        given.command(given)


def test_what_is_not_given_has_a_default() -> None:
    assert command.benchmark_of(parsed("pressure", "--matrix")) == Pressure(matrix=True)
    assert command.benchmark_of(parsed("exact")) == Exact()
    assert command.benchmark_of(parsed("latency", "--rates", "2,2,4")) == Latency((2.0, 4.0))
    assert command.benchmark_of(parsed("latency")) == Latency()
    assert command.benchmark_of(parsed("stall")) == Stall()


def test_rounds() -> None:
    assert where_of("pressure").num_rounds == 1
    assert where_of("pressure", "--vs", URL, "--vs", URL).num_rounds == 3
    assert where_of("pressure", "--rounds", "2").num_rounds == 2
    assert where_of("prefix").num_rounds == 3


@pytest.mark.parametrize("what", ["pressure", "latency", "exact", "prefix"])
def test_a_server_that_runs_already_is_sent_what_no_earlier_run_sent(what: str) -> None:
    for urls in (("--url", URL), ("--vs", URL)):
        firsts = {where_of(what, *urls).first for _ in range(5)}
        assert len(firsts) > 1
        assert all(first >= 1000 and first % 4 == 0 for first in firsts)
        assert where_of(what, *urls, "--first", "12").first == 12
    assert where_of(what).first == 0
    assert where_of(what, "--first", "8").first == 8


def test_the_model_has_a_name_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_ARG_MODEL", raising=False)
    assert where_of("exact").model == DEFAULT_MODEL
    assert where_of("exact", "-m", "x.gguf").model == "x.gguf"
    assert where_of("exact", "--url", URL).model is None
    assert where_of("exact", "--", "-m", "x.gguf").model is None
    monkeypatch.setenv("LLAMA_ARG_MODEL", "y.gguf")
    assert where_of("exact").model == "y.gguf"
