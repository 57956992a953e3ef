"""Bodies of llama.cpp's own endpoints."""

from typing import Annotated

from pydantic import AfterValidator, Field, PlainValidator

from kvalet.server.wire.filename import check_file_name
from kvalet.server.wire.generation import GenerationFields, NumProbs
from kvalet.server.wire.prompt import Prompt, parse_prompt, parse_prompts
from kvalet.server.wire.strict import Strict


class NativeRequest(GenerationFields):
    """POST /completion."""

    prompt: Annotated[tuple[Prompt, ...], PlainValidator(parse_prompts)]
    n_probs: NumProbs = 0
    return_tokens: bool = False


class TokenizeRequest(Strict):
    content: Annotated[Prompt, PlainValidator(parse_prompt)]
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(Strict):
    tokens: list[Annotated[int, Field(ge=0)]]


Timeout = Annotated[float, Field(gt=0, le=1e9)]  # seconds
FileName = Annotated[str, AfterValidator(check_file_name)]


class SlotRequest(Strict):
    """POST /slots/{id_slot}?action=erase; the body may be empty."""

    id: str | None = None  # of the response whose slot it is thought to be


class ParkRequest(SlotRequest):
    """action=park and action=resume; the body may be empty."""

    timeout: Timeout | None = None


class SaveRequest(SlotRequest):
    filename: FileName


class RestoreRequest(Strict):
    filename: FileName
    timeout: Timeout | None = None  # as of a park
