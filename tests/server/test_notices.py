"""What a stream says of pauses: exact bytes, order and times (behaviour N1 to N3)."""

import re
import time
from collections.abc import Iterator, Sequence
from queue import SimpleQueue

import pytest

from kvalet.core.request import Request
from kvalet.errors import EngineError
from kvalet.runtime.messages import Delta, Event, Failed, Preempted, Resumed
from kvalet.server.notices import KEEPALIVE_S, Cadence, Notices
from kvalet.server.settings import ServerSettings
from tests.builders import said
from tests.server.edge import LiveEdge, live_edge, raw_request, wait_until
from tests.server.fakes import by_choice, finished, info_of, plays, says, silent

PARKED, RESUMED, KEEPALIVE, PING = (
    f": {word}\n\n".encode() for word in ("preempted", "resumed", "preempt-keepalive", "ping")
)
ENDPOINTS = {
    "/v1/completions": {"prompt": "x", "logprobs": 1},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "x"}],
        "logprobs": True,
        "top_logprobs": 1,
    },
    "/completion": {"prompt": "x", "n_probs": 1},
}


def always(seconds: float) -> Cadence:
    return Cadence(keepalive_s=seconds, ping_s=None)


def test_keepalives_go_by_the_clock_and_end_with_the_pause() -> None:
    notices = Notices(1, always(2.0), now=0.0)
    assert notices.next_at() is None
    assert notices.preempted(0, now=10.0) == "preempted"
    assert notices.next_at() == 12.0
    assert notices.due(11.99) == []
    assert notices.due(12.0) == ["preempt-keepalive"]
    assert notices.due(12.1) == []
    assert notices.next_at() == 14.0  # not of when it was written: it does not drift
    notices.wrote(13.9)  # nor does anything else that is written put it off
    assert notices.due(14.3) == ["preempt-keepalive"]
    assert notices.next_at() == 16.0
    assert notices.resumed(0) == "resumed"
    assert notices.next_at() is None
    assert notices.due(100.0) == []


def test_a_stream_that_could_not_be_written_to_gets_no_burst() -> None:
    notices = Notices(1, always(2.0), now=0.0)
    notices.preempted(0, now=0.0)
    assert notices.due(21.0) == ["preempt-keepalive"]
    assert notices.next_at() == 23.0


def test_pings_follow_silence_that_is_no_pause() -> None:
    notices = Notices(1, Cadence(keepalive_s=2.0, ping_s=30.0), now=100.0)
    assert notices.next_at() == 130.0
    notices.wrote(120.0)
    assert notices.due(149.9) == []
    assert notices.due(150.0) == ["ping"]
    assert notices.next_at() == 180.0
    notices.preempted(0, now=151.0)
    assert [notices.due(float(second)) for second in range(152, 200)].count(["ping"]) == 0
    notices.resumed(0)
    assert notices.next_at() == 199.0 + 30.0  # its last keepalive was at 199


def test_several_keep_their_own_time() -> None:
    notices = Notices(3, Cadence(keepalive_s=2.0, ping_s=5.0), now=0.0)
    assert notices.preempted(0, now=0.0) == "preempted 0"
    assert notices.preempted(2, now=1.0) == "preempted 2"
    assert notices.due(2.0) == ["preempt-keepalive 0"]
    assert notices.due(3.0) == ["preempt-keepalive 2"]
    notices.ended(0)
    assert notices.next_at() == 5.0  # 2's
    assert notices.resumed(2) == "resumed 2"
    assert notices.next_at() == 8.0  # the ping: two are silent, and not parked
    notices.ended(2)
    notices.preempted(1, now=6.0)
    assert notices.due(7.9) == []  # all who are left are parked


@pytest.mark.parametrize(
    ("server_s", "request_s", "expected"),
    [
        (30.0, None, Cadence(2.0, 30.0)),
        (1.0, None, Cadence(2.0, 1.0)),
        (0.0, None, Cadence(2.0, None)),
        (-1.0, None, Cadence(2.0, None)),
        (30.0, 1.0, Cadence(1.0, 1.0)),
        (30.0, 7.0, Cadence(2.0, 7.0)),
        (30.0, -1.0, Cadence(2.0, None)),
        (0.0, 0.5, Cadence(0.5, 0.5)),
    ],
)
def test_intervals_of_server_and_request(
    server_s: float, request_s: float | None, expected: Cadence
) -> None:
    assert KEEPALIVE_S == 2.0
    assert Cadence.of(server_s, request_s) == expected


class Puppet:
    """A script whose events the test gives, one batch at a time."""

    def __init__(self) -> None:
        self._batches: SimpleQueue[Sequence[Event]] = SimpleQueue()
        self.generation: Request | None = None

    def __call__(self, generation: Request) -> Iterator[Sequence[Event]]:
        self.generation = generation
        while True:
            yield [] if self._batches.empty() else self._batches.get()

    def does(self, *events: Event) -> None:
        self._batches.put(events)

    def says(self, char: str) -> Delta:
        assert self.generation is not None
        return said(char, info_of(ord(char), self.generation))

    def ends(self) -> Event:
        assert self.generation is not None
        return finished(self.generation, 2)


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_pause_on_the_wire(live: LiveEdge, path: str) -> None:
    """Parked before its first token and again later: the whole body, to the byte."""
    puppet = Puppet()
    live.says(puppet)
    body = {**ENDPOINTS[path], "stream": True, "sse_ping_interval": 0.1}
    with raw_request(live.url, path, body) as stream:
        wait_until(lambda: puppet.generation is not None)
        puppet.does(Preempted())
        stream.read_until(KEEPALIVE)
        puppet.does(Resumed(), puppet.says("a"))
        stream.read_until(b"data: ")
        puppet.does(puppet.says("b"), Preempted())
        stream.read_until(PARKED + KEEPALIVE * 2)
        puppet.does(Resumed(), puppet.ends())
        whole = stream.read_to_end()
    away = PARKED + b"(" + KEEPALIVE + b")+" + RESUMED
    data = rb"(data: [^\n]+\n\n)+"
    assert re.fullmatch(away + data + away + data, whole), whole


@pytest.mark.parametrize("path", ENDPOINTS)
def test_events_are_the_same_bytes_with_pauses_and_without(live: LiveEdge, path: str) -> None:
    body = {**ENDPOINTS[path], "stream": True, "seed": 3}

    def play(*pauses: Event) -> bytes:
        puppet = Puppet()
        live.says(puppet)
        with raw_request(live.url, path, body) as stream:
            wait_until(lambda: puppet.generation is not None)
            puppet.does(*pauses)
            puppet.does(puppet.says("a"), *pauses, puppet.says("b"))
            puppet.does(*pauses, puppet.ends())
            return stream.read_to_end()

    parked, quiet = play(Preempted(), Resumed()), play()
    assert parked.count(PARKED + RESUMED) == 3
    assert b"preempted" not in quiet
    assert without_head(parked.replace(PARKED + RESUMED, b"")) == without_head(quiet)


def without_head(body: bytes) -> bytes:
    """Ids and times of creation differ between any two responses."""
    return re.sub(rb'"(id":"\w+-\w+|created":\d+)', b"", body)


def test_keepalives_come_every_so_often(live: LiveEdge) -> None:
    puppet = Puppet()
    live.says(puppet)
    body = {"prompt": "x", "stream": True, "sse_ping_interval": 0.1}
    with raw_request(live.url, "/v1/completions", body) as stream:
        wait_until(lambda: puppet.generation is not None)
        began = time.monotonic()
        puppet.does(Preempted())
        stream.read_until(KEEPALIVE * 5)
        took = time.monotonic() - began
        puppet.does(puppet.ends())
        rest = stream.read_to_end()
    assert took >= 0.49
    assert RESUMED not in rest  # it ended while it was parked


def test_nothing_is_resumed_after_the_end(live: LiveEdge) -> None:
    live.says(plays([said("a"), Preempted()], [Failed(EngineError("it broke"))]))
    with raw_request(live.url, "/v1/completions", {"prompt": "x", "stream": True}) as stream:
        whole = stream.read_to_end()
    assert whole.count(PARKED) == 1
    assert whole.index(PARKED) < whole.index(b'data: {"error"')
    assert RESUMED not in whole


def test_a_silent_stream_opens_with_pings(live: LiveEdge) -> None:
    live.says(silent)
    body = {"prompt": "x", "stream": True, "sse_ping_interval": 0.1}
    with raw_request(live.url, "/v1/completions", body) as stream:
        assert stream.read_until(PING * 3).startswith(PING * 3)
    wait_until(lambda: live.service.num_live == 0)


def test_the_servers_ping_interval_is_for_requests_that_do_not_say() -> None:
    with live_edge(ServerSettings(sse_ping_interval_s=0.1)) as live:
        puppet = Puppet()
        live.says(puppet)
        with raw_request(live.url, "/completion", {"prompt": "x", "stream": True}) as stream:
            assert stream.read_until(PING).startswith(PING)
        live.says(puppet)
        body = {"prompt": "x", "stream": True, "sse_ping_interval": -1}
        with raw_request(live.url, "/completion", body) as stream:
            wait_until(lambda: live.service.num_live == 1)
            time.sleep(0.3)
            puppet.does(puppet.ends())
            assert PING not in stream.read_to_end()


def test_a_stream_that_speaks_is_not_pinged(live: LiveEdge) -> None:
    live.says(says("x" * 200))
    live.service.step_s = 0.002
    body = {"prompt": "x", "stream": True, "sse_ping_interval": 0.2}
    with raw_request(live.url, "/v1/completions", body) as stream:
        assert PING not in stream.read_to_end()
    live.service.step_s = 0.0005


def test_choices_keep_their_notices_apart(live: LiveEdge) -> None:
    puppets = [Puppet(), Puppet()]
    live.says(by_choice(*puppets))
    body = {"prompt": "x", "n": 2, "stream": True, "sse_ping_interval": 0.1}
    with raw_request(live.url, "/v1/completions", body) as stream:
        wait_until(lambda: live.service.num_live == 2)
        puppets[1].does(Preempted())
        stream.read_until(b": preempt-keepalive 1\n\n")
        puppets[0].does(Preempted())
        stream.read_until(b": preempt-keepalive 0\n\n")
        puppets[1].does(Resumed(), puppets[1].ends())
        stream.read_until(b": resumed 1\n\n")
        puppets[0].does(Resumed(), puppets[0].ends())
        whole = stream.read_to_end()
    assert whole.startswith(b": preempted 1\n\n: preempt-keepalive 1\n\n")
    for notice in ("preempted 0", "preempted 1", "resumed 0", "resumed 1"):
        assert whole.count(f": {notice}\n\n".encode()) == 1
    after = whole.partition(b": resumed 1\n\n")[2]
    assert b"keepalive 1" not in after


def test_a_refusal_is_a_status_whatever_was_announced(live: LiveEdge) -> None:
    live.says(plays([Preempted(), Failed(EngineError("it broke"))]))
    with raw_request(live.url, "/v1/completions", {"prompt": "x", "stream": True}) as stream:
        stream.read_until(b"it broke")
        assert stream.head.startswith(b"HTTP/1.1 500 ")
    with raw_request(live.url, "/v1/completions", {"prompt": "x" * 200, "stream": True}) as stream:
        stream.read_until(b"exceed_context_size_error")
        assert stream.head.startswith(b"HTTP/1.1 400 ")


def test_a_request_that_does_not_stream_sees_no_notice(live: LiveEdge) -> None:
    puppet = Puppet()
    live.says(puppet)
    with raw_request(live.url, "/completion", {"prompt": "x", "sse_ping_interval": 0.1}) as stream:
        wait_until(lambda: puppet.generation is not None)
        puppet.does(Preempted())
        time.sleep(0.25)
        puppet.does(Resumed(), puppet.says("a"), puppet.ends())
        whole = stream.read_until(b'"timings"')
    assert whole.startswith(b"{")
    assert b": preempt" not in whole
