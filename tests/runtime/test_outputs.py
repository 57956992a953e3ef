"""What the streams of a step are told, where a whole loop would only be in the way."""

from collections.abc import Sequence
from dataclasses import replace

from tests.builders import said
from tests.runtime.clients import LETTERS, generation

from kvalet.core.plan import FinishReason, Sampled, SeqId, StepOutcome
from kvalet.runtime.messages import Event
from kvalet.runtime.metrics import Metrics
from kvalet.runtime.outputs import Outputs
from kvalet.runtime.parks import ParkLog
from kvalet.runtime.stream import Stream

ONE = SeqId(1)


def test_of_several_tokens_of_a_step_those_behind_the_end_never_were() -> None:
    events: list[Event] = []

    def sink(news: Sequence[Event]) -> None:
        events.extend(news)

    metrics = Metrics()
    outputs = Outputs(
        replace(LETTERS, eos_ids=frozenset({25})),
        metrics,
        ParkLog(1, metrics.parked),
        clock=lambda: 1.0,
        on_end=lambda seq_id: None,
    )
    outputs.open(Stream.of(ONE, generation(), sink, 0.0))
    drawn = tuple(Sampled(token) for token in (0, 1, 25, 2))
    judged = outputs.judge(StepOutcome(sampled={ONE: drawn}))
    assert judged.sampled == {ONE: drawn[:3]}
    assert judged.finished == {ONE: FinishReason.EOS}
    outputs.deliver([])
    assert events == [said("ab")]
    assert sum(metrics.first_token.histogram().counts) == 1
    assert sum(metrics.token_gap.histogram().counts) == 2
