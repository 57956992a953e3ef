"""Random requests of a soak: what is asked, and what the client will do.

Everything is drawn from a random generator of its own, so a seed gives the same requests; when they
come, and what becomes of them, depends on the machine. Prompts are token ids where the endpoint
takes them, so that their length is known.
"""

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
    number: int
    dialect: Dialect
    body: dict[str, Any]
    ending: Ending
    patience_s: float  # until it leaves or breaks off

    @property
    def num_choices(self) -> int:
        return int(self.body.get("n", 1))

    @property
    def limit(self) -> int:
        """Tokens of each choice; -1: until the context is full."""
        return int(self.body["n_predict"])

    @property
    def is_streamed(self) -> bool:
        return bool(self.body["stream"])


@dataclass(slots=True)
class RandomRequests:
    """`n_ctx` in cells; `endless`: contexts shift, so a request may be longer than that."""

    random: Random
    n_ctx: int
    num_slots: int
    endless: bool
    num_made: int = 0

    def next(self) -> Request:
        self.num_made += 1
        dialect = self.random.choice(list(Dialect))
        ending = self.random.choices(list(Ending), weights=(8, 3, 1))[0]
        body = {**self._prompt(dialect), **self._limit(), **self._sampling(), **self._options()}
        patience_s = self.random.expovariate(1.0)
        return Request(self.num_made, dialect, body, ending, patience_s)

    def _prompt(self, dialect: Dialect) -> dict[str, Any]:
        """One in four shares a prefix with others; the rest differ from the first token on."""
        if dialect is Dialect.CHAT:
            words = self.random.choices(WORDS, k=self.random.randint(1, 25))
            text = f"{self.num_made}: {' '.join(words)}"
            return {"messages": [{"role": "user", "content": text}]}
        shared = self.random.choice((0, 0, 0, 70))
        first = 21 + self.num_made % 220
        own = [self.random.randint(*NUM_SPOKEN) for _ in range(self._own_length())]
        return {"prompt": [*([20] * shared), first, *own][: self.n_ctx - 1]}

    def _own_length(self) -> int:
        """Mostly short, now and then nearly the whole context."""
        longest = self.random.choice((40, 40, 150, self.n_ctx - 20))
        return self.random.randint(0, longest)

    def _limit(self) -> dict[str, Any]:
        if self.endless:
            longest = self.random.choice((60, 200, 2 * self.n_ctx))
            return {"n_predict": self.random.randint(1, longest)}
        if self.random.random() < 0.1:
            return {"n_predict": -1}
        return {"n_predict": self.random.randint(1, self.random.choice((20, 150, self.n_ctx)))}

    def _sampling(self) -> dict[str, Any]:
        if self.random.random() < 0.5:
            return {"temperature": 0}
        seed = self.random.randrange(2**31)
        penalty = self.random.choice((1.0, 1.2))
        return {"temperature": 0.9, "seed": seed, "repeat_penalty": penalty}

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "ignore_eos": True,
            "stream": self.random.random() < 0.7,
            "priority": self.random.choice((0, 0, 0, 0, 1, -1)),
            "cache_prompt": self.random.random() < 0.9,
            "n": self.random.choice((1, 1, 1, 1, 1, 2, 3)),
        }
        if self.random.random() < 0.1:
            options["stop"] = [self.random.choice(("e", "zz", "  "))]
        if self.endless:
            options["n_keep"] = self.random.choice((0, 20, 64))
        if self.random.random() < 0.1:
            options["id_slot"] = self.random.randrange(self.num_slots)
            options["n"] = 1
        return options
