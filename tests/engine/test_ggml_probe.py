"""The exactness probe finds what it is there to find, and remembers what it has proven."""

from pathlib import Path

import pytest

from kvalet.engine.base import Exactness
from kvalet.engine.ggml import weights
from kvalet.engine.ggml.cache import FactCache
from kvalet.engine.ggml.engine import load_engine
from kvalet.model.gguf import GGUFFile
from tests.engine.tiny_models import write_tiny_llama

pytestmark = pytest.mark.native


def exactness(
    path: Path, budget_s: float, cache_dir: Path | None = None, *, own_linear: bool = True
) -> Exactness:
    engine = load_engine(
        GGUFFile.open(path),
        num_pages=4,
        threads=2,
        max_step_tokens=70,
        max_seqs=6,
        probe_s=budget_s,
        cache_dir=cache_dir,
        own_linear=own_linear,
    )
    engine.close()
    return engine.info.report.exactness


@pytest.mark.parametrize("own_linear", [True, False])
@pytest.mark.parametrize("weight_type", ["F16", "Q4_1", "Q4_K"])
def test_every_width_of_an_exact_model_is_proven(
    weight_type: str, own_linear: bool, tmp_path: Path
) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", weight_type=weight_type)
    found = exactness(path, budget_s=60, own_linear=own_linear)
    assert {"8 tokens", "64 tokens", "70 tokens", "6 outputs"} <= set(found.same)
    assert found.differ == found.unproven == ()


def test_a_wrong_granularity_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repacked Q4_K computes columns beyond a multiple of four with another kernel."""
    monkeypatch.setitem(weights.REPACKED_GRANULARITY, "q4_K", 1)
    path = write_tiny_llama(tmp_path / "tiny.gguf", weight_type="Q4_K")
    found = exactness(path, budget_s=60, own_linear=False)
    assert found.differ, "either the probe is blind, or this ggml needs no padding here"


def test_what_time_does_not_allow_is_said_to_be_unproven(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    assert exactness(path, budget_s=0).same == ()


def test_a_second_start_goes_on_from_the_first(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    first = exactness(path, 60, tmp_path / "cache").same
    assert exactness(path, 0, tmp_path / "cache").same == first
    other = write_tiny_llama(tmp_path / "tiny.gguf", seed=1)
    assert exactness(other, 0, tmp_path / "cache").same == ()


def test_a_damaged_or_impossible_cache_only_costs_time(tmp_path: Path) -> None:
    cache = FactCache(tmp_path / "cache")
    cache.put([1], "key")
    assert cache.get("key") == [1]
    for entry in (tmp_path / "cache").iterdir():
        entry.write_bytes(b"\xff{")
    assert cache.get("key") is None
    (tmp_path / "file").touch()
    FactCache(tmp_path / "file" / "folder").put([1], "key")
    assert FactCache(None).get("key") is None
