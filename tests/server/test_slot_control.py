"""POST /slots/{id}?action=...: parking and resuming by hand (behaviour P14)."""

import pytest

from kvalet.server.settings import ServerSettings
from tests.server.edge import Edge


def test_park_and_resume_answer_with_the_slot(edge: Edge) -> None:
    parked = edge.answer("/slots/0?action=park", {"id": "cmpl-1", "timeout": 2.5})
    resumed = edge.answer("/slots/0?action=resume", {"id": "cmpl-1"})
    assert edge.service.asked == [("park", 0, 2.5, "cmpl-1"), ("resume", 0, "cmpl-1")]
    for slot in (parked, resumed):
        assert (slot["id"], slot["request_id"], slot["is_held"]) == (0, "cmpl-1", True)


def test_the_body_may_be_absent_and_the_server_has_a_timeout() -> None:
    edge = Edge(settings=ServerSettings(park_timeout_s=42.0))
    assert edge.request("POST", "/slots/0?action=park").status_code == 200
    assert edge.post("/slots/0?action=park", {}).status_code == 200
    assert edge.service.asked == [("park", 0, 42.0, None)] * 2
    edge.close()


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/slots/1?action=park", {}, 409, None),
        ("/slots/1?action=resume", {}, 409, None),
        ("/slots/0?action=park", {"id": "cmpl-2"}, 409, None),
        ("/slots/2?action=park", {}, 404, "id_slot"),
        ("/slots/-1?action=park", {}, 404, "id_slot"),
        ("/slots/first?action=park", {}, 404, "id_slot"),
        ("/slots/99999999999999?action=resume", {}, 404, "id_slot"),
        ("/slots/0", {}, 400, "action"),
        ("/slots/0?action=", {}, 400, "action"),
        ("/slots/0?action=Park", {}, 400, "action"),
        ("/slots/0?action=saved", {}, 400, "action"),
        ("/slots/0?action=park", {"id": 7}, 400, "id"),
        ("/slots/0?action=park", {"timeout": 0}, 400, "timeout"),
        ("/slots/0?action=park", {"timeout": "1"}, 400, "timeout"),
        ("/slots/0?action=park", {"id_task": 1}, 400, "id_task"),
        ("/slots/0?action=resume", {"filename": "x"}, 400, "filename"),
    ],
)
def test_what_cannot_be_done_is_named(
    edge: Edge, path: str, body: dict[str, object], status: int, param: str | None
) -> None:
    error = edge.error(path, body, status)
    assert (error["code"], error["param"]) == (status, param)
