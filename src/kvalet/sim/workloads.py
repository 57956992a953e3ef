"""Which requests come, and when: drawn from a seed, nothing else.

A workload draws conversations of one or more turns; an arrival pattern says when each begins. A
further turn comes after its pause when the answer before it has ended, and its prompt is the whole
conversation so far and something new.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Request:
    """Lengths in tokens. `num_prompt` is all of the prompt, what came before included; `num_output`
    is when the answer ends, `max_tokens` what the client allows."""

    conversation: int
    arrival_s: float  # not before this
    num_prompt: int
    num_output: int
    max_tokens: int
    pause_s: float = 0.0  # after the end of the turn before
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Lengths:
    num_tokens: int  # of a typical answer
    n_ctx: int  # cells that a conversation may take


@dataclass(frozen=True, slots=True)
class Turn:
    num_new: int  # prompt tokens that were not in the conversation
    num_output: int
    max_tokens: int
    pause_s: float = 0.0


Workload: TypeAlias = Callable[[Random, Lengths], list[Turn]]
Arrivals: TypeAlias = Callable[[Random, int, float], float]

LONGEST_TURNS: Final = 8
SHORTEST_PROMPT: Final = 16


def measured(random: Random, lengths: Lengths) -> list[Turn]:
    """Chats like the demo's: prompts of one size, long answers of about one size, whose length the
    client says."""
    num_output = round(lengths.num_tokens * random.uniform(0.85, 1.15))
    return [Turn(random.randint(150, 170), num_output, num_output)]


def uniform(random: Random, lengths: Lengths) -> list[Turn]:
    """Answers of any size up to twice the typical one, of a length the client says; any prompts of
    up to 512 tokens."""
    num_output = round(lengths.num_tokens * random.uniform(0.1, 1.9))
    return [Turn(random.randint(SHORTEST_PROMPT, 512), num_output, num_output)]


def heavy(random: Random, lengths: Lengths) -> list[Turn]:
    """Many short answers and a few very long ones, which the client's limit does not tell apart;
    prompts likewise."""
    num_prompt = SHORTEST_PROMPT + round(random.lognormvariate(4.6, 1.0))
    num_output = round(lengths.num_tokens / 3 * random.paretovariate(1.3))
    return [Turn(num_prompt, num_output, 4 * lengths.num_tokens)]


def agents(random: Random, lengths: Lengths) -> list[Turn]:
    """A task, then short turns with pauses for tools, until the context is nearly full."""
    first = Turn(random.randint(256, 512), _short(random, lengths), lengths.num_tokens)
    more = [
        Turn(
            random.randint(32, 160),
            _short(random, lengths),
            lengths.num_tokens,
            pause_s=random.expovariate(0.5),
        )
        for _ in range(random.randint(3, LONGEST_TURNS) - 1)
    ]
    return [first, *more]


def _short(random: Random, lengths: Lengths) -> int:
    return max(8, round(lengths.num_tokens * random.uniform(0.05, 0.3)))


WORKLOADS: Final[Mapping[str, Workload]] = {
    workload.__name__: workload for workload in (measured, uniform, heavy, agents)
}


def together(random: Random, index: int, gap_s: float) -> float:
    return 0.0


def staggered(random: Random, index: int, gap_s: float) -> float:
    return gap_s if index else 0.0


def poisson(random: Random, index: int, gap_s: float) -> float:
    return random.expovariate(1 / gap_s) if index else 0.0


ARRIVALS: Final[Mapping[str, Arrivals]] = {  # seconds after the conversation before
    arrivals.__name__: arrivals for arrivals in (together, staggered, poisson)
}


def draw(
    workload: str,
    arrivals: str,
    num_chats: int,
    gap_s: float,
    lengths: Lengths,
    seed: int,
    num_priorities: int = 1,
) -> tuple[Request, ...]:
    """The requests of `num_chats` conversations, whose priorities are 0, 1, ... by turns. The same
    whatever the policy; a conversation ends with the turn that would not fit into the context."""
    random = Random(f"{seed} {workload} {arrivals}")
    requests: list[Request] = []
    arrival_s = 0.0
    for conversation in range(num_chats):
        arrival_s += ARRIVALS[arrivals](random, conversation, gap_s)
        turns = WORKLOADS[workload](random, lengths)
        priority = conversation % num_priorities
        requests += _requests(conversation, arrival_s, turns, lengths, priority)
    return tuple(requests)


def _requests(
    conversation: int, arrival_s: float, turns: list[Turn], lengths: Lengths, priority: int
) -> Iterator[Request]:
    num_before = 0
    for index, turn in enumerate(turns):
        room = lengths.n_ctx - num_before - turn.num_new
        if room < turn.num_output and index:
            return
        num_prompt = min(num_before + turn.num_new, lengths.n_ctx - 1)
        num_output = min(max(1, turn.num_output), lengths.n_ctx - num_prompt)
        max_tokens = min(max(num_output, turn.max_tokens), lengths.n_ctx - num_prompt)
        yield Request(
            conversation, arrival_s, num_prompt, num_output, max_tokens, turn.pause_s, priority
        )
        num_before = num_prompt + num_output
