"""Random requests of a soak: what is asked, and what the client will do.

Everything is drawn from a random generator of its own, so a seed gives the same requests; when they
come, and what becomes of them, depends on the machine. Prompts are token ids where the endpoint
takes them, so that their length is known.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any, Final

NUM_SPOKEN: Final = (20, 250)  # token ids of the tiny models that stand for printable text
TEXT: Final = "the water of a long day may find its way down to people who call it by name"
WORDS: Final = tuple(TEXT.split(" "))


class Dialect(Enum):
    COMPLETION = "/v1/completions"
    CHAT = "/v1/chat/completions"
    NATIVE = "/completion"


class Ending(Enum):
    """What the client does."""

    READS_ALL = "reads all"
    LEAVES = "leaves"  # closes the connection part-way
    BREAKS = "breaks"  # resets it


@dataclass(frozen=True, slots=True)
class Request:
    dialect: Dialect
    body: dict[str, Any]
    ending: Ending
    patience_s: float  # until it leaves or breaks off

    @property
    def num_choices(self) -> int:
        return int(self.body["n"])


def requests(random: Random, n_ctx: int, num_slots: int, *, endless: bool) -> Iterator[Request]:
    """For ever. `n_ctx` in cells; `endless`: contexts shift, so a request may be longer."""
    for number in itertools.count(1):
        dialect = random.choice(list(Dialect))
        ending = random.choices(list(Ending), weights=(8, 3, 1))[0]
        prompt = _chat(random, number) if dialect is Dialect.CHAT else _ids(random, number, n_ctx)
        body = {**prompt, **_limit(random, n_ctx, endless), **_options(random, num_slots)}
        if endless:
            body["n_keep"] = random.choice((0, 20, 64))
        yield Request(dialect, body, ending, random.expovariate(1.0))


def _chat(random: Random, number: int) -> dict[str, Any]:
    text = f"{number}: {' '.join(random.choices(WORDS, k=random.randint(1, 25)))}"
    return {"messages": [{"role": "user", "content": text}]}


def _ids(random: Random, number: int, n_ctx: int) -> dict[str, Any]:
    """One in four shares a prefix with others; the rest differ from the first token on. Mostly
    short, now and then nearly the whole context."""
    shared = [20] * random.choice((0, 0, 0, 70))
    length = random.randint(0, random.choice((40, 40, 150, n_ctx - 20)))
    own = [random.randint(*NUM_SPOKEN) for _ in range(length)]
    return {"prompt": [*shared, 21 + number % 220, *own][: n_ctx - 1]}


def _limit(random: Random, n_ctx: int, endless: bool) -> dict[str, Any]:
    """Tokens of each choice; -1: until the context is full."""
    if not endless and random.random() < 0.1:
        return {"n_predict": -1}
    longest = random.choice((60, 200, 2 * n_ctx) if endless else (20, 150, n_ctx))
    return {"n_predict": random.randint(1, longest)}


def _options(random: Random, num_slots: int) -> dict[str, Any]:
    sampled = {
        "temperature": 0.9,
        "seed": random.randrange(2**31),
        "repeat_penalty": random.choice((1.0, 1.2)),
    }
    options: dict[str, Any] = {
        **random.choice(({"temperature": 0}, sampled)),
        "ignore_eos": True,
        "stream": random.random() < 0.7,
        "priority": random.choice((0, 0, 0, 0, 1, -1)),
        "cache_prompt": random.random() < 0.9,
        "n": random.choice((1, 1, 1, 1, 1, 2, 3)),
    }
    if random.random() < 0.1:
        options["stop"] = [random.choice(("e", "zz", "  "))]
    if random.random() < 0.1:
        options.update(id_slot=random.randrange(num_slots), n=1)
    return options
