"""Which web pages may use the server: `Origin`, `Host` and CORS."""

import socket

import pytest

from kvalet.server.settings import ServerSettings
from tests.server.edge import Edge, LiveEdge

ASKING = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-any"}
PAGE = "https://chat.example"


def edge_for(host: str = "127.0.0.1", *origins: str) -> Edge:
    return Edge(settings=ServerSettings(host=host, cors_origins=origins))


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost",
        "http://localhost:5173",
        "http://127.0.0.1:8080",
        "https://127.1.2.3",
        "http://[::1]:3000",
        "http://app.localhost:3000",
        "tauri://localhost",
    ],
)
def test_pages_of_this_machine_may_ask(edge: Edge, origin: str) -> None:
    preflight = edge.request("OPTIONS", "/v1/completions", headers={"Origin": origin, **ASKING})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-headers"] == "x-any"
    answer = edge.post("/v1/completions", {"prompt": "x"}, {"Origin": origin})
    assert answer.status_code == 200
    for response in (preflight, answer):
        assert response.headers["access-control-allow-origin"] == origin
        assert "access-control-allow-credentials" not in response.headers
        assert "Origin" in response.headers["vary"]


@pytest.mark.parametrize(
    "origin",
    [
        "http://page.example",
        "https://localhost.example",
        "http://127.0.0.1.example",
        "http://localhost@page.example",
        "http://page.example/localhost",
        "http://[page",
        "null",
        "",
    ],
)
def test_nothing_is_done_for_other_pages(edge: Edge, origin: str) -> None:
    for refused in (
        edge.request("OPTIONS", "/v1/completions", headers={"Origin": origin, **ASKING}),
        edge.post("/v1/completions", {"prompt": "x"}, {"Origin": origin}),
        edge.post("/slots/1?action=erase", {}, {"Origin": origin}),
        edge.get("/slots", {"Origin": origin}),
    ):
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers
        error = refused.json()["error"]
        assert (error["code"], error["type"]) == (403, "permission_error")
        assert repr(origin) in error["message"]
        assert "--cors-origins" in error["message"]
    assert edge.service.submitted == []
    assert edge.service.asked == []


def test_pages_that_are_named_may_ask() -> None:
    edge = edge_for("127.0.0.1", PAGE, "app://notes")
    for origin in (PAGE, "app://notes", "http://localhost"):
        answer = edge.post("/v1/completions", {"prompt": "x"}, {"Origin": origin})
        assert answer.headers["access-control-allow-origin"] == origin
    for origin in ("http://chat.example", "https://chat.example:444", "https://a.chat.example"):
        assert edge.get("/health", {"Origin": origin}).status_code == 403
    edge.close()


def test_any_page_may_ask_if_that_is_wanted() -> None:
    edge = edge_for("127.0.0.1", "*")
    answer = edge.post("/v1/completions", {"prompt": "x"}, {"Origin": PAGE, "Host": "rebound"})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers
    edge.close()


def test_a_page_that_came_from_the_server_may_ask() -> None:
    edge = edge_for("0.0.0.0")
    own = {"Host": "192.168.1.5:8080", "Origin": "http://192.168.1.5:8080"}
    assert edge.post("/v1/completions", {"prompt": "x"}, own).status_code == 200
    other = {**own, "Origin": "http://192.168.1.5:9000"}
    assert edge.post("/v1/completions", {"prompt": "x"}, other).status_code == 403
    edge.close()


@pytest.mark.parametrize(
    ("listening", "host", "is_served"),
    [
        ("127.0.0.1", "localhost:8080", True),
        ("127.0.0.1", "LOCALHOST", True),
        ("127.0.0.1", "127.0.0.1:1", True),
        ("127.0.0.1", "[::1]:8080", True),
        ("127.0.0.1", "rebound.example:8080", False),
        ("127.0.0.1", "127.0.0.1.example", False),
        ("127.0.0.1", "10.0.0.1", False),
        ("127.0.0.1", "0.0.0.0:8080", False),
        ("127.0.0.1", "[::1", False),
        ("localhost", "localhost", True),
        ("localhost", "rebound.example", False),
        ("box", "box:8080", True),  # a name of this machine that leads to its loopback
        ("box", "rebound.example", False),
        ("0.0.0.0", "box.lan:8080", True),
        ("::", "box.lan:8080", True),
    ],
)
def test_on_a_loopback_address_the_server_has_loopback_names(
    listening: str, host: str, is_served: bool
) -> None:
    edge = edge_for(listening)
    response = edge.post("/v1/completions", {"prompt": "x"}, {"Host": host})
    assert response.status_code == (200 if is_served else 403)
    assert len(edge.service.submitted) == is_served
    edge.close()


def test_a_rebound_page_is_not_our_own(edge: Edge) -> None:
    rebound = {"Host": "page.example:8080", "Origin": "http://page.example:8080"}
    assert edge.get("/slots", rebound).status_code == 403


def test_a_proxy_that_is_named_may_pass_its_host_on() -> None:
    edge = edge_for("127.0.0.1", PAGE)
    assert edge.get("/health", {"Host": "chat.example"}).status_code == 200
    assert edge.get("/health", {"Host": "other.example"}).status_code == 403
    edge.close()


def test_a_request_without_a_host_is_served(live: LiveEdge) -> None:
    """Balancers' looks are HTTP/1.0; browsers always say."""
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.sendall(b"HEAD /health HTTP/1.0\r\n\r\n")
        head, _, body = sock.makefile("rb").read().partition(b"\r\n\r\n")
    assert b" 200 " in head
    assert body == b""
