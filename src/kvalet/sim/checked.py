"""JSON that must have a certain shape; what has another is a ValueError that names the field."""

from typing import Annotated, Final, TypeAlias, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

T = TypeVar("T")

NonNegative: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
AtLeastOne: TypeAlias = Annotated[int, Field(ge=1)]

EXACTLY: Final = ConfigDict(extra="forbid", strict=True)  # for a dataclass's __pydantic_config__


def parse(kind: TypeAdapter[T], text: str) -> T:
    try:
        return kind.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{field}: {first['msg']}" if field else first["msg"]) from None
