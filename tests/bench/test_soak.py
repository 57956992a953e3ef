"""What a soak (bench/soak) asks, and what it takes for a fault."""

import itertools
from pathlib import Path
from random import Random

import pytest
from bench.soak.answers import Answer, Disorder, Fate
from bench.soak.flags import random_settings
from bench.soak.phase import Account
from bench.soak.requests import Dialect, Ending, Request, requests

from kvalet.cli import commands, config

SHORT = Request(Dialect.NATIVE, {"n_predict": 3, "n": 1, "stream": True}, Ending.READS_ALL, 1.0)
TEXT = 'data: {"index": 0, "content": "a", "stop": false, "tokens_predicted": 1, '
TEXT += '"tokens_evaluated": 10}'
END = 'data: {"index": 0, "content": "", "stop": true, "tokens_predicted": %d, '
END += '"tokens_evaluated": 10}'


def test_the_flags_of_every_seed_are_taken(tmp_path: Path) -> None:
    for seed in range(60):
        settings = random_settings(seed, Path("tiny.gguf"), tmp_path / str(seed))
        assert settings.endless is (seed % 2 == 1)
        args = commands.parser().parse_args(["serve", *settings.flags])
        config.load(vars(args), {})


def test_a_seed_gives_the_same_requests() -> None:
    first, second = (requests(Random(3), 384, 4, endless=False) for _ in range(2))
    found = list(itertools.islice(first, 200))
    assert found == list(itertools.islice(second, 200))
    assert {one.dialect for one in found} == set(Dialect)
    assert {one.ending for one in found} == set(Ending)


def read(*lines: str) -> Answer:
    answer = Answer(SHORT)
    for line in lines:
        answer.take_line(line)
    answer.check_complete(100, endless=False)
    return answer


def test_an_answer_in_order() -> None:
    parked = (": preempted", ": preempt-keepalive", ": resumed", ": ping")
    assert read(TEXT, *parked, TEXT, END % 3).texts == {0: "aa"}


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ((TEXT,), "have ended"),
        ((TEXT, END % 2), "not 3"),
        ((": preempted", TEXT), "while it is parked"),
        ((END % 3, TEXT), "after its end"),
        ((": resumed",), "out of order"),
        ((": preempted", ": preempted"), "out of order"),
        ((": paused",), "unknown notice"),
        (('data: {"error": "no room"}',), "no room"),
    ],
)
def test_disorder(lines: tuple[str, ...], what: str) -> None:
    with pytest.raises(Disorder, match=what):
        read(*lines)


def test_the_verdict_is_one_line() -> None:
    account, other = Account(), Account(num_compared=2, wrong=["not as alone"])
    other.fates.update([Fate.DONE.value, Fate.LEFT.value])
    account.add(other)
    assert (Account().is_clean, account.is_clean) == (True, False)
    assert str(account) == (
        "2 requests (1 done, 1 left), 0 parks, 2 compared: lost 0, leaked 0, wrong 1"
    )
