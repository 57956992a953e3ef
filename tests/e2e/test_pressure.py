"""Chats that do not fit together: all finish, each with the text it has alone."""

import asyncio
from typing import Any

import pytest

from kvalet.bench.chats import Chat, ChatState, stream_chat
from kvalet.bench.process import ServerProcess
from kvalet.bench.prompts import pressing_chats
from kvalet.bench.target import Target
from tests.e2e.client import complete, complete_together, metrics, wait_until

NUM_TOKENS = 200


def _streamed(url: str, bodies: list[tuple[str, dict[str, Any]]]) -> list[Chat]:
    async def ask() -> list[Chat]:
        async with Target(url).client() as http:
            asked = [stream_chat(http, Chat(name, body)) for name, body in bodies]
            return await asyncio.gather(*asked)

    return asyncio.run(ask())


@pytest.mark.model
@pytest.mark.timeout(240)
def test_four_chats_in_a_pool_for_two(smollm2: ServerProcess) -> None:
    before = metrics(smollm2.url)
    bodies = pressing_chats(NUM_TOKENS)
    together = _streamed(smollm2.url, bodies)
    alone = [
        chat
        for name, body in bodies
        for chat in _streamed(smollm2.url, [(name, {**body, "cache_prompt": False})])
    ]
    assert [chat.error for chat in together] == [""] * 4
    assert all(chat.state is ChatState.DONE for chat in together)
    assert [chat.num_tokens for chat in together] == [NUM_TOKENS] * 4
    assert [chat.text for chat in together] == [chat.text for chat in alone]
    parks = sum(chat.num_parks for chat in together)
    assert parks > 0
    after = metrics(smollm2.url)
    assert after["n_preempt_total"] - before["n_preempt_total"] == parks
    assert after["preempt_bytes_in_total"] > before["preempt_bytes_in_total"]


def test_a_long_line_through_a_small_pool(tiny_model: str) -> None:
    """Twelve requests, four slots, a pool that holds two of them: nobody is lost, nothing held."""
    bodies = [
        {
            "prompt": f"{index} times I have seen the water go down",
            "max_tokens": 150,
            "temperature": 0,
            "ignore_eos": True,
        }
        for index in range(12)
    ]
    with ServerProcess("-m", str(tiny_model), "-c", "384", "--check") as server:
        together = complete_together(server.url, bodies)
        wait_until(lambda: metrics(server.url)["requests_processing"] == 0)
        after = metrics(server.url)
        alone = [complete(server.url, {**body, "cache_prompt": False}) for body in bodies]
    assert [choice["text"] for choice in together] == [choice["text"] for choice in alone]
    assert after["n_preempt_total"] > 0
    assert after["n_resume_total"] == after["n_preempt_total"]
    assert after["preempt_bytes_in_total"] > 0
    assert after["kv_cells_used"] == after["preempt_ram_bytes"] == after["requests_preempted"] == 0
