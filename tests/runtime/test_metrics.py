"""Histograms: where durations fall, and what is measured (behaviour M1)."""

import pytest
from tests.runtime.clients import Bench, Client, generation

from kvalet.runtime.messages import Delta, Histogram
from kvalet.runtime.metrics import Buckets


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (1.0, 0), (1.001, 1), (2.0, 1), (5.0, 2), (5.1, 3)]
)
def test_a_bound_belongs_to_the_bucket_below_it(seconds: float, bucket: int) -> None:
    buckets = Buckets((1.0, 2.0, 5.0))
    buckets.observe(seconds)
    counts = tuple(int(index == bucket) for index in range(4))
    assert buckets.histogram() == Histogram((1.0, 2.0, 5.0), counts, seconds)


def histograms(bench: Bench, *clients: Client) -> dict[str, Histogram]:
    """After all of them have ended."""
    bench.run(*clients)
    return bench.at_the_end.result(timeout=0).histograms


def test_every_token_is_one_wait_of_its_client() -> None:
    bench = Bench(num_slots=1)
    found = histograms(bench, Client(generation(1)), Client(generation(2)))
    # The second chat waits for the fifty steps of the first.
    assert (found["queue_seconds"].sum, found["time_to_first_token_seconds"].sum) == (50, 52)
    assert sum(found["queue_seconds"].counts) == 2
    assert sum(found["time_to_first_token_seconds"].counts) == 2
    assert sum(found["inter_token_gap_seconds"].counts) == 2 * 49
    assert found["inter_token_gap_seconds"].sum == 2 * 49
    assert found["parked_seconds"].sum == 0


def test_a_pause_is_parked_time_and_part_of_a_gap() -> None:
    bench = Bench(transfer_steps=2, options={"preempt_every": 10})
    client = Client(generation(1))
    found = histograms(bench, client)
    parked_s = client.finished.timings.parked_ms / 1e3
    assert client.count(Delta) == 50
    assert sum(found["parked_seconds"].counts) == client.finished.timings.n_preempt == 4
    assert found["parked_seconds"].sum == parked_s > 0
    assert found["inter_token_gap_seconds"].sum == 49 + parked_s
