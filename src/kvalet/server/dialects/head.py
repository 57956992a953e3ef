"""What all parts of one response have in common."""

import secrets
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self


@dataclass(frozen=True, slots=True)
class Head:
    request_id: str
    created: int  # Unix seconds
    model: str
    seed: int
    num_choices: int  # of each prompt

    @classmethod
    def new(cls, prefix: str, model: str, seed: int | None, num_choices: int) -> Self:
        """`seed`: None draws one."""
        created = int(datetime.now(UTC).timestamp())
        drawn = secrets.randbits(31) if seed is None else seed
        return cls(f"{prefix}-{uuid.uuid4().hex}", created, model, drawn, num_choices)
