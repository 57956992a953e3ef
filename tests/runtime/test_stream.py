"""One sequence's events, where a whole loop would only be in the way."""

from collections.abc import Sequence

from tests.runtime.clients import LETTERS, generation

from kvalet.core.changes import Change, ChangeKind
from kvalet.core.plan import FinishReason, Sampled, SeqId, StepOutcome, StepPlan
from kvalet.errors import EngineFatal
from kvalet.runtime.messages import Delta, Event, Failed, Finished, Resumed
from kvalet.runtime.stream import Stream
from kvalet.runtime.totals import Totals


def stream_into(events: list[Event]) -> Stream:
    def sink(news: Sequence[Event]) -> None:
        events.extend(news)

    return Stream.of(SeqId(1), generation(), sink)


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
    assert events[1:3] == [Resumed(), Delta("a", ())]
    assert isinstance(events[3], Finished)


def test_text_of_a_step_is_told_before_its_failure() -> None:
    events: list[Event] = []
    stream = stream_into(events)
    stream.draw(Sampled(0), LETTERS)
    stream.note(change(ChangeKind.FAILED, message="lost"), 1.0)
    stream.send()
    assert events[0] == Delta("a", ())
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
    totals = Totals()
    totals.count_step(StepPlan(step=1), StepOutcome(compute_s=0.25), 1.0)
    assert (totals.compute_seconds_total, totals.step_seconds_total) == (0.25, 1.0)
    assert totals.n_decode_total == 0  # nothing was computed in a step without rows
