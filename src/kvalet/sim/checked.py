"""JSON that must have a certain shape; what has another is a ValueError that names the field."""

from pathlib import Path
from typing import Annotated, Final, TypeAlias, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from kvalet.complaint import first_complaint
from kvalet.errors import ConfigError

T = TypeVar("T")

# Far above anything real, and far below where sums of floats lose what is added to them.
MAX_SECONDS: Final = 1e8
MAX_COUNT: Final = 10**12

Seconds: TypeAlias = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=MAX_COUNT)]
AtLeastOne: TypeAlias = Annotated[int, Field(ge=1, le=MAX_COUNT)]

EXACTLY: Final = ConfigDict(extra="forbid", strict=True)  # for a dataclass's __pydantic_config__


def lines_of(path: Path) -> list[str]:
    """Raises ConfigError. Lines end with a newline only: JSON may hold a U+2028."""
    try:
        return path.read_text("utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None


def parse(kind: TypeAdapter[T], text: str) -> T:
    try:
        return kind.validate_json(text)
    except ValidationError as error:
        raise ValueError(first_complaint(error)) from None
