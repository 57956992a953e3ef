"""The llama forward pass in plain numpy, f32, straight from the definition: what the engine's
logits are compared with. Shares no code with the engine; reads files with the `gguf` package."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, dequantize

F32 = npt.NDArray[np.float32]


class ReferenceLlama:
    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self._weights: dict[str, F32] = {
            tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            for tensor in self._reader.tensors
        }
        self._heads: int = self._get("attention.head_count")
        self._kv_heads: int = self._get("attention.head_count_kv")
        head_dim = self._get("embedding_length") // self._heads
        self._head_dim: int = self._get("attention.key_length", head_dim)
        self._window: int = self._get("attention.sliding_window", 0)

    def logprobs(self, tokens: list[int]) -> F32:
        """Natural log-probabilities [len(tokens), num_vocab]: what follows each prefix."""
        x = self._weights["token_embd.weight"][tokens]
        cosines, sines = self._rotation(len(tokens))
        for layer in range(self._get("block_count")):
            x = self._layer(f"blk.{layer}", x, cosines, sines)
        x = self._norm(x, "output_norm")
        output = self._weights.get("output.weight", self._weights["token_embd.weight"])
        logits = x @ output.T
        peak = logits.max(axis=1, keepdims=True)
        total = np.log(np.exp(logits - peak).sum(axis=1, keepdims=True))
        result: F32 = logits - peak - total
        return result

    def _get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - whatever the file says
        field = self._reader.fields.get(f"llama.{name}")
        return default if field is None else field.contents()

    def _layer(self, prefix: str, x: F32, cosines: F32, sines: F32) -> F32:
        h = self._norm(x, f"{prefix}.attn_norm")
        query = self._heads_of(self._linear(h, f"{prefix}.attn_q"), self._heads)
        key = self._heads_of(self._linear(h, f"{prefix}.attn_k"), self._kv_heads)
        value = self._heads_of(self._linear(h, f"{prefix}.attn_v"), self._kv_heads)
        query, key = _rotate(query, cosines, sines), _rotate(key, cosines, sines)
        attended = self._attention(query, _as_cells(key), _as_cells(value))
        x = x + self._linear(attended, f"{prefix}.attn_output")
        h = self._norm(x, f"{prefix}.ffn_norm")
        gate = self._linear(h, f"{prefix}.ffn_gate")
        hidden = gate / (1 + np.exp(-gate)) * self._linear(h, f"{prefix}.ffn_up")
        return x + self._linear(hidden, f"{prefix}.ffn_down")

    def _attention(self, query: F32, key: F32, value: F32) -> F32:
        """[heads, tokens, dim], keys and values shared by groups of heads -> [tokens, all]"""
        group = self._heads // self._kv_heads
        key, value = np.repeat(key, group, axis=0), np.repeat(value, group, axis=0)
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(self._head_dim)
        row, column = np.indices(scores.shape[1:])
        hidden = column > row
        if self._window:
            hidden |= column <= row - self._window
        weights = np.exp(np.where(hidden, -np.inf, scores - scores.max(axis=2, keepdims=True)))
        weights /= weights.sum(axis=2, keepdims=True)
        attended: F32 = (weights @ value).transpose(1, 0, 2).reshape(query.shape[1], -1)
        return attended

    def _heads_of(self, x: F32, num_heads: int) -> F32:
        return x.reshape(len(x), num_heads, -1).transpose(1, 0, 2)

    def _linear(self, x: F32, name: str) -> F32:
        y: F32 = x @ self._weights[f"{name}.weight"].T
        return y + self._weights[f"{name}.bias"] if f"{name}.bias" in self._weights else y

    def _norm(self, x: F32, name: str) -> F32:
        eps = self._get("attention.layer_norm_rms_epsilon")
        scale = np.sqrt((x * x).mean(axis=1, keepdims=True) + eps)
        normed: F32 = x / scale * self._weights[f"{name}.weight"]
        return normed

    def _rotation(self, num_tokens: int) -> tuple[F32, F32]:
        """Cosines and sines [tokens, pairs]."""
        dims = self._get("rope.dimension_count")
        exponents = np.arange(0, dims, 2) / dims
        frequencies = self._get("rope.freq_base", 10000.0) ** -exponents
        frequencies /= self._weights.get("rope_freqs.weight", np.ones(dims // 2))
        kind, factor = self._get("rope.scaling.type"), self._get("rope.scaling.factor", 1.0)
        magnitude = 1.0
        if kind == "linear":
            frequencies /= factor
        elif kind == "yarn":
            kept = self._yarn_kept(dims)
            frequencies = frequencies / factor * (1 - kept) + frequencies * kept
            magnitude = 1 + 0.1 * math.log(factor)
        angles = np.arange(num_tokens)[:, None] * frequencies
        return (
            (np.cos(angles) * magnitude).astype(np.float32),
            (np.sin(angles) * magnitude).astype(np.float32),
        )

    def _yarn_kept(self, dims: int) -> npt.NDArray[np.float64]:
        """How much of each pair's frequency is left unscaled (YaRN, section 3.2)."""
        trained = self._get("rope.scaling.original_context_length", self._get("context_length"))
        base = self._get("rope.freq_base", 10000.0)

        def pair_turning(turns: float) -> float:
            return float(dims * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base)))

        low = max(0, math.floor(pair_turning(32.0)))
        high = min(dims - 1, math.ceil(pair_turning(1.0)))
        ramp = (np.arange(dims // 2) - low) / max(0.001, high - low)
        return 1 - np.clip(ramp, 0, 1)


def _rotate(x: F32, cosines: F32, sines: F32) -> F32:
    """Pairs are neighbours: (0, 1), (2, 3), ...; dimensions past the last pair stay."""
    rotated = x.copy()
    end = 2 * cosines.shape[1]
    even, odd = x[..., 0:end:2], x[..., 1:end:2]
    rotated[..., 0:end:2] = even * cosines - odd * sines
    rotated[..., 1:end:2] = even * sines + odd * cosines
    return rotated


def _as_cells(x: F32) -> F32:
    """Rounded as the page pool keeps them."""
    return x.astype(np.float16).astype(np.float32)
