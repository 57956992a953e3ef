"""One sequence's events, where a whole loop would only be in the way."""

from collections.abc import Sequence

import pytest
from tests.builders import said
from tests.runtime.clients import LETTERS, generation

from kvalet.core.changes import Change, ChangeKind
from kvalet.core.plan import FinishReason, Sampled, SeqId, StepOutcome, StepPlan
from kvalet.errors import EngineFatal
from kvalet.runtime.messages import Event, Failed, Finished, Part, PartKind, Preempted, Resumed
from kvalet.runtime.metrics import Metrics
from kvalet.runtime.stream import Stream


def stream_into(events: list[Event]) -> Stream:
    def sink(news: Sequence[Event]) -> None:
        events.extend(news)

    return Stream.of(SeqId(1), generation(), sink, now=0.0)


def change(kind: ChangeKind, **kw: object) -> Change:
    return Change(SeqId(1), kind, **kw)  # type: ignore[arg-type]  # a test names what it is about


def test_a_token_at_the_end_of_a_replay_comes_after_the_notice() -> None:
    events: list[Event] = []
    stream = stream_into(events)
    stream.note(change(ChangeKind.PREEMPTED), 1.0)
    stream.send()
    stream.draw(Sampled(0), LETTERS)
    stream.note(change(ChangeKind.RESUMED), 2.0)
    stream.note(change(ChangeKind.FINISHED, reason=FinishReason.LENGTH), 2.0)
    stream.send()
    assert events[1:3] == [Resumed(), said("a")]
    assert isinstance(events[3], Finished)


def notices(*kinds: ChangeKind) -> list[Event]:
    """What a client is told of changes, a step each."""
    events: list[Event] = []
    stream = stream_into(events)
    for now, kind in enumerate(kinds):
        stream.note(change(kind, message="lost"), float(now))
        stream.send()
    return events


def test_waiting_for_room_is_told_like_a_park() -> None:
    assert notices(ChangeKind.WAITING, ChangeKind.RESUMED) == [Preempted(), Resumed()]


def test_a_park_before_the_resume_is_not_told_again() -> None:
    parked, resumed = ChangeKind.PREEMPTED, ChangeKind.RESUMED
    assert notices(parked, parked, resumed) == [Preempted(), Resumed()]
    assert notices(ChangeKind.WAITING, parked, resumed) == [Preempted(), Resumed()]
    assert notices(parked, resumed, parked, resumed) == [Preempted(), Resumed()] * 2


@pytest.mark.parametrize("away", [ChangeKind.WAITING, ChangeKind.PREEMPTED])
def test_no_resume_is_told_of_an_end_while_away(away: ChangeKind) -> None:
    first, last = notices(away, ChangeKind.FAILED)
    assert first == Preempted()
    assert isinstance(last, Failed)


def test_a_refused_rotation_is_not_the_client_s_business() -> None:
    assert notices(ChangeKind.ROTATION_REFUSED) == []


def test_waiting_for_room_is_no_pause() -> None:
    stream = stream_into([])
    stream.note(change(ChangeKind.WAITING), 1.0)
    stream.stopwatch.start(5.0)
    stream.note(change(ChangeKind.RESUMED), 5.0)
    stream.stopwatch.draw(6.0)
    assert (stream.stopwatch.prompt_s, stream.stopwatch.parked_s(9.0)) == (1.0, 0.0)


def test_what_a_context_shift_is_to_keep_and_drop_reaches_the_sequence() -> None:
    wanted = generation(num_keep=-1, num_discard=64)
    seq = Stream.of(SeqId(1), wanted, lambda events: None, now=0.0).seq
    assert (seq.request.num_keep, seq.request.num_discard) == (-1, 64)


def test_text_of_a_step_is_told_before_its_failure() -> None:
    events: list[Event] = []
    stream = stream_into(events)
    stream.draw(Sampled(0), LETTERS)
    stream.note(change(ChangeKind.FAILED, message="lost"), 1.0)
    stream.send()
    assert events[0] == said("a")
    assert isinstance(events[1], Failed)
    assert str(events[1].error) == "lost"


def test_an_end_that_was_not_told_yet_stays_the_only_one() -> None:
    events: list[Event] = []
    stream = stream_into(events)
    stream.note(change(ChangeKind.FAILED, message="first"), 1.0)
    stream.fail(EngineFatal("second"))
    stream.send()
    assert [str(event.error) for event in events if isinstance(event, Failed)] == ["first"]


def test_an_end_without_any_token_has_a_prompt_time() -> None:
    events: list[Event] = []
    stream = stream_into(events)
    stream.stopwatch.start(1.0)
    stream.note(change(ChangeKind.FINISHED, reason=FinishReason.LENGTH), 3.0)
    stream.send()
    assert isinstance(events[0], Finished)
    assert (events[0].timings.prompt_ms, events[0].timings.predicted_ms) == (2000.0, 0.0)


def test_compute_time_is_told_apart_from_step_time() -> None:
    metrics = Metrics()
    metrics.count_step(StepPlan(step=1), StepOutcome(compute_s=0.25), 1.0)
    totals = metrics.totals
    assert (totals.compute_seconds_total, totals.step_seconds_total) == (0.25, 1.0)
    assert totals.n_decode_total == 0  # nothing was computed in a step without rows


class PairReader:
    """Lets text go two characters at a time, and not its dashes."""

    def __init__(self) -> None:
        self._held = ""

    def read(self, text: str) -> tuple[Part, ...]:
        self._held += text.replace("-", "")
        size = len(self._held) // 2 * 2
        pairs, self._held = self._held[:size], self._held[size:]
        return tuple(Part(PartKind.CONTENT, pairs[i : i + 2]) for i in range(0, size, 2))

    def finish(self) -> tuple[Part, ...]:
        return (Part(PartKind.CONTENT, self._held),)


def test_what_a_reader_holds_back_comes_at_the_end() -> None:
    events: list[Event] = []
    stream = stream_into(events)
    stream.reader = PairReader()
    for token in (0, 1, 2, 3, 4):  # "abcde", the first four in one step
        stream.draw(Sampled(token), LETTERS)
        if token >= 3:
            stream.send()
    stream.note(change(ChangeKind.FINISHED, reason=FinishReason.LENGTH), 1.0)
    stream.send()
    assert events[:2] == [said("abcd"), said("e")]
    assert isinstance(events[2], Finished)
