"""What a client asked for, as far as computing it goes: made once, never changed, handed on whole.

A request's text is a function of this and of the model alone (ADR 0003): whatever is not here
cannot change it.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn. Names, defaults and the order of the chain are llama.cpp's server's:
    penalties, logit bias, top_k, typical_p, top_p, min_p, temperature. Temperature 0 is greedy;
    ties go to the lower id (behaviour X1)."""

    temperature: float = 0.8
    top_k: int = 40  # 0: all
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64  # tokens the penalties look back on; -1: all
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # -inf bans a token
    seed: int = 0
    prompt_index: int = 0
    choice: int = 0
    num_probs: int = 0  # most likely tokens to report beside the drawn one
    logprobs: bool = False  # report the drawn token's log-probability

    @property
    def has_penalties(self) -> bool:
        return (
            self.repeat_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        ) and self.repeat_last_n != 0


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank change of the weights that a sequence is computed with."""

    name: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Input:
    """What stands in `num_cells` cells of a prompt from `start` on in place of text: an image."""

    start: int
    num_cells: int
    digest: bytes  # of its content: two with one digest are the same


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate. Token ids are already checked against the vocabulary."""

    request_id: str  # for clients, logs and views; shared by all choices of a request
    prompt: tuple[int, ...]
    max_new_tokens: int | None  # None: until n_ctx
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    priority: int = 0  # higher is kept longer
    adapter: Adapter | None = None
    inputs: tuple[Input, ...] = ()  # in the order of their cells
    cache_prompt: bool = True  # False: neither takes named pages nor leaves any
    id_slot: int | None = None
    index: int = 0  # which choice of its request
    num_keep: int = 0  # first tokens that a context shift keeps; -1: the whole prompt
    num_discard: int = 0  # tokens a context shift drops; 0: half of the rest
