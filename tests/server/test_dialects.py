"""What a dialect decides by itself: framing, events, errors. A foreign one, and all of ours."""

from collections.abc import Mapping, Sequence

import orjson
import pytest

from kvalet.core.request import Request
from kvalet.errors import EngineError, RequestError
from kvalet.runtime.messages import Delta, Failed, Finished, Preempted, Resumed
from kvalet.server.app import DIALECTS, create_app
from kvalet.server.dialects.body import Body
from kvalet.server.dialects.dialect import Choice, Defaults, Dialect, Job
from kvalet.server.dialects.error import ErrorReport
from kvalet.server.dialects.framing import Framing
from kvalet.server.errors import report_of
from kvalet.server.model import ServedModel
from kvalet.server.settings import ServerSettings
from kvalet.server.state import AppState
from tests.builders import said
from tests.server.edge import Edge
from tests.server.fakes import FakeService, finished, make_model, plays, says

LINES = Framing("application/x-ndjson", lambda words: b"")


def line(body: object) -> bytes:
    return orjson.dumps(body) + b"\n"


class Asked(Body):
    ask: str
    live: bool = False


class LinesAnswer:
    """An object a line, as some clients have it: no comments, no end mark, errors of its own."""

    framing = LINES

    def begin(self) -> bytes:
        return line("begin")

    def delta(self, index: int, delta: Delta) -> bytes:
        return line({"says": delta.content})

    def close(self, index: int, finished: Finished) -> bytes:
        return line({"done": finished.num_tokens})

    def end(self) -> bytes:
        return b""

    def error(self, report: ErrorReport) -> bytes:
        return line({"wrong": report.message})

    def whole(self, choices: Sequence[Choice]) -> object:
        return [choice.content for choice in choices]


class Lines:
    paths = ("/lines",)
    body = Asked

    def parse(self, model: ServedModel, defaults: Defaults, raw: bytes) -> Job:
        asked = Asked.parse(raw)
        prompt = tuple(model.tokenizer.encode(asked.ask))
        request = Request("lines-1", prompt, defaults.max_new_tokens)
        return Job((request,), LinesAnswer(), asked.live, ping_interval_s=0.1)

    def error(self, report: ErrorReport) -> object:
        return {"wrong": report.message, "at": report.param}


def speaking(service: FakeService, **settings: object) -> Edge:
    edge = Edge(service)
    edge.state = AppState(ServerSettings(**settings))  # type: ignore[arg-type]  # a test's own
    edge.state.open(make_model(service, template=True, add_bos=True, props={}))
    edge.app = create_app(edge.state, [Lines()])
    return edge


def test_a_dialect_brings_its_own_framing() -> None:
    silence = [()] * 300  # long enough for pings, if there were any
    parked = plays([Preempted()], *silence, [Resumed()], [said("hi")], [ended(2)])
    edge = speaking(FakeService(script=parked))
    response = edge.post("/lines", {"ask": "x", "live": True})
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.content == b'"begin"\n{"says":"hi"}\n{"done":2}\n'
    edge.close()


def ended(num_tokens: int) -> Finished:
    return finished(Request("", (1,), None), num_tokens)


def test_a_dialect_brings_its_own_errors() -> None:
    edge = speaking(FakeService(), api_keys=("key",), max_body_bytes=40)
    key = {"Authorization": "Bearer key"}
    for response, status, error in (
        (edge.post("/lines", {"ask": "x"}), 401, {"wrong": "Invalid API Key", "at": None}),
        (edge.post("/lines", {"ask": 5}, key), 400, {"at": "ask"}),
        (edge.post("/lines", {"ask": "x" * 50}, key), 413, {"at": None}),
        (edge.get("/lines", key), 405, {"wrong": "Method Not Allowed"}),
        (edge.get("/lines", {"Origin": "https://evil.example"}), 403, {"at": None}),
    ):
        assert response.status_code == status
        assert error.items() <= response.json().items()
    assert edge.post("/other", {}, key).json()["error"]["code"] == 404  # nobody's path
    edge.close()


def test_an_error_of_a_foreign_dialect_comes_before_or_in_the_stream() -> None:
    edge = speaking(FakeService(script=plays([Failed(RequestError("no", "ask"))])))
    refused = edge.post("/lines", {"ask": "x", "live": True})
    assert (refused.status_code, refused.json()) == (400, {"wrong": "no", "at": "ask"})
    edge.service.script = plays([said("a")], [Failed(EngineError("lost"))])
    cut = edge.post("/lines", {"ask": "x", "live": True})
    assert cut.content == b'"begin"\n{"says":"a"}\n{"wrong":"lost"}\n'
    edge.close()


SAMPLES: Mapping[str, object] = {
    "prompt": "x",
    "messages": [{"role": "user", "content": "x"}],
    "max_tokens": 9,
    "model": "tiny",
}


def asking(dialect: Dialect) -> dict[str, object]:
    """The least that can be asked."""
    fields = dialect.body.model_fields
    return {name: SAMPLES[name] for name, field in fields.items() if field.is_required()}


def name_of(dialect: Dialect) -> str:
    return type(dialect).__name__


@pytest.mark.parametrize("dialect", DIALECTS, ids=name_of)
@pytest.mark.parametrize("stream", [False, True])
def test_every_dialect_tells_an_error_before_and_after_the_first_byte(
    edge: Edge, dialect: Dialect, stream: bool
) -> None:
    lost = EngineError("the page is lost")
    told = dialect.error(report_of(lost))
    for path in dialect.paths:
        body = {**asking(dialect), "stream": stream}
        edge.service.script = plays([Failed(lost)])
        early = edge.post(path, body)
        assert (early.status_code, early.json()) == (500, told)
        edge.service.script = plays([said("a")], [Failed(lost)])
        late = edge.post(path, body)
        if stream:
            assert late.status_code == 200
            assert late.text.count("the page is lost") == 1
        else:
            assert (late.status_code, late.json()) == (500, told)


@pytest.mark.parametrize("dialect", DIALECTS, ids=name_of)
def test_every_dialect_takes_requests_from_first_to_last_event(
    edge: Edge, dialect: Dialect
) -> None:
    for path in dialect.paths:
        edge.service.script = plays(
            [Preempted()], [Resumed(), said("one")], [said("two"), ended(2)]
        )
        assert "onetwo" in edge.post(path, {**asking(dialect), "stream": False}).text
        streamed = edge.post(path, {**asking(dialect), "stream": True})
        assert streamed.headers["content-type"].startswith(("text/event-stream", "application/x-"))
        assert streamed.text.index("one") < streamed.text.index("two")


@pytest.mark.parametrize("dialect", DIALECTS, ids=name_of)
def test_what_a_dialect_lists_is_what_it_does(edge: Edge, dialect: Dialect) -> None:
    edge.service.script = says("x")
    body, path = dialect.body, dialect.paths[0]
    assert not body.ignored & body.model_fields.keys()
    assert not body.refused.keys() & body.ignored
    fields = dict.fromkeys(body.ignored, "anything")
    assert edge.post(path, {**asking(dialect), **fields}).status_code == 200
    for name in body.refused.keys() - body.model_fields.keys():
        refused = edge.post(path, {**asking(dialect), name: {"no": "such value"}})
        assert refused.status_code == 400
        assert f"'{name}'" in refused.text
