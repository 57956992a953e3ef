"""What pydantic finds wrong, in one line."""

from pydantic import ValidationError


def first_complaint(error: ValidationError) -> str:
    """With the field, if it is about one."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg']}" if field else first["msg"]
