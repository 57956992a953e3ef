"""What else clients and operators do: malformed requests, half ones, slots parked, saved, restored
and erased by hand."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from random import Random
from typing import Final

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
    ("POST", "/slots/0?action=restore", b'{"filename": "never saved"}', 404),
    ("GET", "/no/such/page", b"", 404),
)
CONTROL_STATUSES: Final = (200, 404, 409)
STATE_FILES: Final = ("one", "two", "three")


@dataclass(frozen=True, slots=True)
class Troublemaker:
    http: httpx.AsyncClient
    random: Random
    num_slots: int
    complaints: list[str] = field(default_factory=list[str])  # what was not answered as it should

    async def act(self) -> None:
        """One of the things, at random."""
        slot, file = self._any_slot(), {"filename": self.random.choice(STATE_FILES)}
        match self.random.choice(("park", "park", "save", "restore", "erase", "malformed", "half")):
            case "park":
                timeout = {"timeout": self.random.choice((0.2, 5.0))}
                other = {"id": "of another request"} if self.random.random() < 0.2 else {}
                await self._and_resume(slot, "park", {**timeout, **other}, share=1.0)
            case "restore":  # resumed now and then; else it waits for its request or its time
                await self._and_resume(slot, "restore", file, share=0.5)
            case "malformed":
                await self._malformed()
            case "half":
                await self._half()
            case "save":
                await self._control(slot, "save", file)
            case _:
                await self._control(slot, "erase")

    async def resume_all(self) -> None:
        for slot in range(self.num_slots):
            await self._control(slot, "resume")

    def _any_slot(self) -> int:
        return self.random.randrange(self.num_slots)

    async def _and_resume(self, slot: int, action: str, body: object, *, share: float) -> None:
        """`share`: of those that worked, resumed after a while."""
        if await self._control(slot, action, body) == 200 and self.random.random() < share:
            await asyncio.sleep(self.random.expovariate(2.0))
            await self._control(slot, "resume")

    async def _control(self, slot: int, action: str, body: object = None) -> int:
        path = f"/slots/{slot}?action={action}"
        status = (await self.http.post(path, json=body or {})).status_code
        if status not in CONTROL_STATUSES:
            self.complaints.append(f"{path}: {status}")
        return status

    async def _malformed(self) -> None:
        method, path, body, expected = self.random.choice(MALFORMED)
        headers = {"content-type": "application/json"}
        response = await self.http.request(method, path, content=body, headers=headers)
        if response.status_code != expected:
            what = f"{method} {path} {body[:60]!r}"
            self.complaints.append(f"{what}: {response.status_code}, not {expected}")

    async def _half(self) -> None:
        """A request that breaks off in its head or in its body; its answer is not waited for."""
        url = self.http.base_url
        head = b"POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Length: 50\r\n\r\n{"
        sent = head % url.host.encode()
        _, writer = await asyncio.open_connection(url.host, url.port or 80)
        writer.write(sent[: self.random.randrange(1, len(sent) + 1)])
        with contextlib.suppress(OSError):
            await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()
