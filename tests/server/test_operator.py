"""The front, health, props, slots, metrics, models; keys."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvalet import __version__
from kvalet.errors import Overloaded
from kvalet.server.app import create_app
from kvalet.server.settings import ServerSettings
from kvalet.server.state import AppState
from tests.server.edge import Edge
from tests.server.fakes import FakeService

LOCKED = ServerSettings(api_keys=("one", "two"))


def test_the_front_says_what_is_served_and_where(edge: Edge) -> None:
    for accept in ("*/*", "application/json", "application/json, text/html", "text/plain"):
        front = edge.get("/", {"Accept": accept})
        assert front.headers["vary"] == "Accept, Origin"
        about = front.json()
        assert (about["name"], about["version"]) == ("kvalet", __version__)
        assert (about["model"], about["status"]) == ("tiny", "ok")
        assert {"GET /health", "POST /v1/chat/completions"} <= {*about["endpoints"]}
        assert not any(one.startswith("HEAD") for one in about["endpoints"])


def test_browsers_get_the_front_as_a_page(edge: Edge) -> None:
    page = edge.get("/", {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert f"kvalet {__version__}" in page.text
    assert "Model: tiny. Status: ok." in page.text
    assert "<li><code>POST /v1/chat/completions</code>" in page.text


def test_the_front_is_there_before_the_model() -> None:
    state = AppState(ServerSettings())
    edge = Edge()
    edge.app = create_app(state)
    front = edge.get("/")
    assert front.status_code == 200
    assert (front.json()["model"], front.json()["status"]) == (None, "Loading model")
    edge.close()
    state.shut()


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/props", "/slots", "/metrics"])
def test_what_can_be_looked_at_answers_head(edge: Edge, path: str) -> None:
    assert edge.request("HEAD", path).status_code == 200
    wrong = edge.request("PUT", path)
    assert wrong.status_code == 405
    assert {*wrong.headers["allow"].split(", ")} == {"GET", "HEAD"}


def test_health_says_what_is_wrong(edge: Edge) -> None:
    assert edge.get("/health").json() == {"status": "ok"}
    assert edge.get("/v1/health").status_code == 200
    edge.service.alive, edge.service.failure = False, "it broke"
    response = edge.get("/health")
    assert response.status_code == 503
    assert "it broke" in response.json()["error"]["message"]


def test_everything_waits_for_the_model(edge: Edge) -> None:
    edge.state = AppState(ServerSettings())
    edge.app = create_app(edge.state)
    for response in (
        edge.get("/health"),
        edge.get("/props"),
        edge.get("/v1/models"),
        edge.post("/v1/completions", {"prompt": "x"}),
        edge.post("/tokenize", {"content": "x"}),
    ):
        assert response.status_code == 503
        assert response.json()["error"] == {
            "code": 503,
            "message": "Loading model",
            "type": "unavailable_error",
            "param": None,
        }
    edge.state.shut()


def test_nothing_is_begun_while_closing(edge: Edge) -> None:
    edge.state.close(Overloaded("the server is shutting down"))
    assert edge.get("/health").status_code == 503
    assert edge.error("/v1/completions", {"prompt": "x"}, 503)["message"].endswith("shutting down")


def test_props() -> None:
    props = {"exactness": {"attention": "exact"}}
    edge = Edge(settings=ServerSettings(max_new_tokens=50), props=props)
    body = edge.get("/props").json()
    assert body["total_slots"] == 2
    assert body["model_path"] == "/models/tiny.gguf"
    assert body["default_generation_settings"]["n_ctx"] == 128
    params = body["default_generation_settings"]["params"]
    assert (params["temperature"], params["top_k"], params["n_predict"]) == (0.8, 40, 50)
    assert (body["bos_token"], body["eos_token"]) == ("<s>", "</s>")
    assert body["chat_template"]
    assert body["exactness"] == {"attention": "exact"}
    edge.close()


def test_the_servers_limit_is_for_requests_that_have_none() -> None:
    edge = Edge(settings=ServerSettings(max_new_tokens=2))
    assert edge.answer("/completion", {"prompt": "x"})["content"] == "he"
    assert edge.answer("/completion", {"prompt": "x", "n_predict": 3})["content"] == "hel"
    assert edge.answer("/completion", {"prompt": "x", "n_predict": -1})["content"] == "hello"
    edge.close()


def test_models(edge: Edge) -> None:
    for path in ("/v1/models", "/models"):
        (model,) = edge.get(path).json()["data"]
        assert (model["id"], model["object"]) == ("tiny", "model")
        assert model["meta"]["n_ctx_train"] == 256


def test_slots(edge: Edge) -> None:
    busy, idle = edge.get("/slots").json()
    assert (busy["id"], busy["is_processing"], busy["state"]) == (0, True, "decode")
    assert (busy["n_cells"], busy["n_cells_host"], busy["request_id"]) == (32, 64, "cmpl-1")
    assert (busy["is_preempted"], busy["preempt_mode"], busy["is_held"]) == (True, "swap", True)
    assert busy["next_token"] == [{"has_next_token": True, "n_remain": 15, "n_decoded": 5}]
    assert busy["params"]["seed"] == 7
    assert (busy["n_preempt"], busy["n_recompute"], busy["parked_ms"]) == (3, 0, 12.5)
    assert (idle["id"], idle["is_processing"]) == (1, False)
    assert (idle["is_preempted"], idle["preempt_mode"], idle["n_cells"]) == (False, None, 0)
    assert "params" not in idle
    assert edge.get("/slots?fail_on_no_slot=1").status_code == 200


def test_metrics_have_llamacpps_names_and_types(edge: Edge) -> None:
    response = edge.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    families = {f.name: f for f in text_string_to_metric_families(response.text)}
    values = {s.name: s.value for f in families.values() for s in f.samples}
    assert values["llamacpp:prompt_tokens_total"] == 100
    assert values["llamacpp:prompt_tokens_seconds"] == 50
    assert values["llamacpp:predicted_tokens_seconds"] == 0
    assert values["llamacpp:n_busy_slots_per_decode"] == 1.5
    assert values["llamacpp:n_preempt_total"] == 3
    assert values["llamacpp:novel"] == 1
    assert families["llamacpp:prefix_pages_host"].documentation.startswith("Pages of prompts")
    assert families["llamacpp:host_cache_bytes"].type == "gauge"
    assert families["llamacpp:prompt_tokens"].type == "counter"
    assert families["llamacpp:requests_processing"].type == "gauge"


def test_histograms_are_cumulative(edge: Edge) -> None:
    lines = [line for line in edge.get("/metrics").text.splitlines() if "parked_seconds" in line]
    assert lines[1:] == [
        "# TYPE llamacpp:parked_seconds histogram",
        'llamacpp:parked_seconds_bucket{le="0.5"} 1.0',
        'llamacpp:parked_seconds_bucket{le="1"} 1.0',
        'llamacpp:parked_seconds_bucket{le="2.5"} 4.0',
        'llamacpp:parked_seconds_bucket{le="+Inf"} 6.0',
        "llamacpp:parked_seconds_count 6.0",
        "llamacpp:parked_seconds_sum 12.25",
    ]


def test_while_draining_operators_see_and_nothing_begins(edge: Edge) -> None:
    edge.state.drain(Overloaded("the server is shutting down"))
    for path in ("/slots", "/metrics", "/props", "/v1/models"):
        assert edge.get(path).status_code == 200
    assert edge.get("/health").status_code == 503
    for path in ("/v1/completions", "/completion", "/tokenize"):
        error = edge.error(path, {"prompt": "x"}, 503)
        assert error["message"] == "the server is shutting down"
    for action in ("park", "erase"):
        error = edge.error(f"/slots/0?action={action}", {}, 503)
        assert error["message"] == "the server is shutting down"
    assert edge.service.asked == []
    assert edge.post("/slots/0?action=resume", {}).status_code == 200  # to come to its end


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer one"}, 200),
        ({"Authorization": "Bearer two"}, 200),
        ({"X-Api-Key": "one"}, 200),
        ({"X-Api-Key": ""}, 401),
        ({"Authorization": "one"}, 200),
        ({"Authorization": "Basic one"}, 401),
    ],
)
def test_keys(headers: dict[str, str], status: int) -> None:
    edge = Edge(settings=LOCKED)
    response = edge.post("/v1/completions", {"prompt": "x"}, headers)
    assert response.status_code == status
    if status == 401:
        assert response.json()["error"]["type"] == "authentication_error"
        assert edge.service.submitted == []
    edge.close()


def test_public_endpoints_need_no_key() -> None:
    edge = Edge(FakeService(), LOCKED)
    for path in ("/", "/health", "/v1/health", "/models", "/v1/models"):
        assert edge.get(path).status_code == 200
    for path in ("/props", "/slots", "/metrics", "/nothing"):
        assert edge.get(path).status_code == 401
    edge.close()
