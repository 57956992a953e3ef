"""Events in a stream: notices, failures, and what becomes of the sequences behind it."""

import pytest

from kvalet.core.request import Request
from kvalet.errors import EngineError
from kvalet.runtime.messages import Failed, Preempted, Resumed
from tests.builders import said
from tests.server.edge import Edge
from tests.server.fakes import FakeService, by_prompt, finished, plays, silent

BODY = {"prompt": "x"}
PATHS = ["/v1/completions", "/completion"]
GENERATION_ENDS = finished(Request("r", (1, 2), 1, sampling=None), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", PATHS)
def test_a_pause_is_a_comment_where_it_happened(edge: Edge, path: str) -> None:
    edge.service.script = plays(
        [Preempted()],
        [Resumed(), said("a")],
        [said("b"), Preempted()],
        [Resumed(), said("c"), GENERATION_ENDS],
    )
    events = edge.stream(path, BODY)
    kinds = [event if event in (": preempted", ": resumed") else "data" for event in events]
    assert kinds[:7] == [
        ": preempted",
        ": resumed",
        "data",
        "data",
        ": preempted",
        ": resumed",
        "data",
    ]
    assert kinds.count(": preempted") == kinds.count(": resumed") == 2


def test_notices_of_several_prompts_keep_apart(edge: Edge) -> None:
    quiet = plays([said("a")], [], [], [], [GENERATION_ENDS])
    parked = plays([Preempted()], [Resumed(), said("b"), GENERATION_ENDS])
    edge.service.script = by_prompt(q=quiet, p=parked)
    events = edge.stream("/v1/completions", {"prompt": ["q", "p"]})
    comments = [event for event in events if isinstance(event, str)]
    assert comments == [": preempted 1", ": resumed 1", "[DONE]"]


def test_a_whole_answer_does_not_mind_a_pause(edge: Edge) -> None:
    edge.service.script = plays([Preempted()], [Resumed(), said("a"), GENERATION_ENDS])
    assert edge.answer("/v1/completions", BODY)["choices"][0]["text"] == "a"


@pytest.mark.parametrize("path", PATHS)
def test_a_failure_after_the_first_byte_is_an_event(edge: Edge, path: str) -> None:
    edge.service.script = plays([said("a")], [Failed(EngineError("it broke"))])
    *_, last = edge.stream(path, BODY)
    assert last["error"]["message"] == "it broke"
    assert last["error"]["type"] == "server_error"


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_byte_is_a_status(edge: Edge, stream: bool) -> None:
    edge.service.script = plays([Failed(EngineError("it broke"))])
    error = edge.error("/v1/completions", {**BODY, "stream": stream}, 500)
    assert error["message"] == "it broke"


@pytest.mark.parametrize("stream", [False, True])
def test_one_sequence_failing_ends_its_family(edge: Edge, stream: bool) -> None:
    broken = plays([said("a")], [Failed(EngineError("it broke"))])
    edge.service.script = by_prompt(b=broken, s=silent)
    body = {"prompt": ["b", "s"], "stream": stream}
    response = edge.post("/v1/completions", body)
    assert "it broke" in response.text
    assert response.status_code == (200 if stream else 500)
    assert edge.service.num_live == 0
    assert len(edge.service.cancelled) == 1


def test_events_of_one_step_go_out_together() -> None:
    edge = Edge(FakeService(step_s=0.001))
    edge.service.script = plays([said("a"), said("b"), GENERATION_ENDS])
    texts = [event["choices"][0]["text"] for event in edge.stream("/v1/completions", BODY)[:-1]]
    assert texts == ["a", "b", ""]
    edge.close()
