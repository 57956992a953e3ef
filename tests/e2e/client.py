"""Short calls to a real server; every one of them with a timeout."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 90.0  # a parked chat's answer waits for the others


def post(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(url + path, json=body, timeout=TIMEOUT_S)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def get(url: str, path: str) -> Any:  # noqa: ANN401  # any JSON
    response = httpx.get(url + path, timeout=TIMEOUT_S)
    assert response.status_code == 200, response.text
    return response.json()


def complete(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The choice of a completion: text, logprobs, finish reason."""
    choice: dict[str, Any] = post(url, "/v1/completions", body)["choices"][0]
    return choice


def complete_together(url: str, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: complete(url, body), bodies))


def metrics(url: str) -> dict[str, float]:
    """Samples without labels, by their names after `llamacpp:`."""
    text = httpx.get(f"{url}/metrics", timeout=TIMEOUT_S).text
    return {
        sample.name.removeprefix("llamacpp:"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }


def wait_until(is_so: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


@contextmanager
def open_stream(url: str, body: dict[str, Any]) -> Iterator[Iterator[str]]:
    """The lines of a streamed completion, of which the first data line has been read."""
    request = {**body, "stream": True}
    with (
        httpx.Client(timeout=TIMEOUT_S) as http,
        http.stream("POST", f"{url}/v1/completions", json=request) as response,
    ):
        assert response.status_code == 200
        lines = response.iter_lines()
        assert any(line.startswith("data: ") for line in lines)
        yield lines
