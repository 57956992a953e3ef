"""What else clients and operators do: malformed requests, half ones, slots parked, saved, restored
and erased by hand."""

import asyncio
import contextlib
from random import Random
from typing import Any, Final

import httpx

# Method, path, body as sent, and the status it must get.
MALFORMED: Final[tuple[tuple[str, str, bytes, int], ...]] = (
    ("POST", "/v1/completions", b"{", 400),
    ("POST", "/v1/completions", b'{"prompt": 5.5}', 400),
    ("POST", "/v1/completions", b'{"prompt": [1, -7]}', 400),
    ("POST", "/v1/completions", b'{"prompt": "a", "n": 0}', 400),
    ("POST", "/v1/completions", b'{"prompt": "a", "n": 2, "best_of": 3}', 400),
    ("POST", "/v1/completions", b'{"prompt": "a", "id_slot": 99}', 400),
    ("POST", "/v1/completions", b'{"prompt": "%s"}' % (b"long " * 5000), 400),
    ("POST", "/v1/chat/completions", b'{"messages": "no list"}', 400),
    ("POST", "/completion", b'{"prompt": "a", "temperature": "hot"}', 400),
    ("POST", "/slots/99?action=park", b"", 404),
    ("POST", "/slots/0?action=sleep", b"", 400),
    ("POST", "/slots/0?action=save", b"{}", 400),
    ("POST", "/slots/0?action=save", b'{"filename": "../there"}', 400),
    ("POST", "/slots/0?action=restore", b'{"filename": "nobody saved this"}', 404),
    ("GET", "/no/such/page", b"", 404),
)
CONTROL_STATUSES: Final = (200, 404, 409)
STATE_FILES: Final = ("one", "two", "three")


class Troublemaker:
    """`complaints`: what the server did not answer as it should."""

    def __init__(self, http: httpx.AsyncClient, random: Random, num_slots: int) -> None:
        self.complaints: list[str] = []
        self.num_parked = 0
        self._http = http
        self._random = random
        self._num_slots = num_slots

    async def act(self) -> None:
        """One of the things, at random."""
        by_hand = (self._park_and_resume, self._park_and_resume, self._save, self._restore)
        actions = (*by_hand, self._erase, self._malformed, self._half)
        await self._random.choice(actions)()

    async def resume_all(self) -> None:
        for slot in range(self._num_slots):
            await self._control(slot, "resume")

    async def _park_and_resume(self) -> None:
        slot = self._any_slot()
        body: dict[str, Any] = {"timeout": self._random.choice((0.2, 5.0))}
        if self._random.random() < 0.2:
            body["id"] = "somebody else's"
        status = await self._control(slot, "park", body)
        if status == 200:
            self.num_parked += 1
            await asyncio.sleep(self._random.expovariate(2.0))
            await self._control(slot, "resume")

    async def _save(self) -> None:
        await self._control(self._any_slot(), "save", self._any_file())

    async def _restore(self) -> None:
        """Resumed now and then; else it waits for its request or its time."""
        slot = self._any_slot()
        status = await self._control(slot, "restore", self._any_file())
        if status == 200 and self._random.random() < 0.5:
            await asyncio.sleep(self._random.expovariate(2.0))
            await self._control(slot, "resume")

    async def _erase(self) -> None:
        await self._control(self._any_slot(), "erase")

    def _any_slot(self) -> int:
        return self._random.randrange(self._num_slots)

    def _any_file(self) -> dict[str, str]:
        return {"filename": self._random.choice(STATE_FILES)}

    async def _control(self, slot: int, action: str, body: object = None) -> int:
        path = f"/slots/{slot}?action={action}"
        status = (await self._http.post(path, json=body or {})).status_code
        if status not in CONTROL_STATUSES:
            self.complaints.append(f"{path}: {status}")
        return status

    async def _malformed(self) -> None:
        method, path, body, expected = self._random.choice(MALFORMED)
        headers = {"content-type": "application/json"}
        response = await self._http.request(method, path, content=body, headers=headers)
        if response.status_code != expected:
            what = f"{method} {path} {body[:60]!r}"
            self.complaints.append(f"{what}: {response.status_code}, not {expected}")

    async def _half(self) -> None:
        """A request that breaks off in its head or in its body; nobody waits for an answer."""
        head = b"POST /v1/completions HTTP/1.1\r\nHost: soak\r\nContent-Length: 50\r\n\r\n{"
        url = self._http.base_url
        _, writer = await asyncio.open_connection(url.host, url.port or 80)
        writer.write(head[: self._random.randrange(1, len(head) + 1)])
        with contextlib.suppress(OSError):
            await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()
