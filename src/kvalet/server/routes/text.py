"""The endpoints that only handle text: tokenize, detokenize, apply-template."""

from typing import Annotated

import orjson
from pydantic import Field, PlainValidator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvalet.model.tokenizer import Tokenizer
from kvalet.server.body import read_body
from kvalet.server.dialects.body import Body
from kvalet.server.dialects.conversation import ApplyTemplateBody
from kvalet.server.dialects.encoding import checked_id, encode_parts, render_chat
from kvalet.server.dialects.prompt import Prompt, parse_prompt
from kvalet.server.state import AppState


class TokenizeBody(Body):
    content: Annotated[Prompt, PlainValidator(parse_prompt)]
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(Body):
    tokens: list[Annotated[int, Field(ge=0)]]


def routes(state: AppState) -> list[Route]:
    async def tokenize(request: Request) -> Response:
        tokenizer = state.serving.tokenizer
        body = await read_body(request, state.settings.max_body_bytes)
        return _json(await state.work(lambda: _tokenized(tokenizer, body)))

    async def detokenize(request: Request) -> Response:
        tokenizer = state.serving.tokenizer
        body = await read_body(request, state.settings.max_body_bytes)
        return _json(await state.work(lambda: _detokenized(tokenizer, body)))

    async def apply_template(request: Request) -> Response:
        model = state.serving
        body = await read_body(request, state.settings.max_body_bytes)
        prompt = await state.work(lambda: render_chat(model, ApplyTemplateBody.parse(body)))
        return _json({"prompt": prompt})

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/apply-template", apply_template, methods=["POST"]),
    ]


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")


def _tokenized(tokenizer: Tokenizer, body: bytes) -> object:
    request = TokenizeBody.parse(body)
    ids = encode_parts(
        tokenizer,
        request.content,
        "content",
        add_bos=request.add_special,
        parse_special=request.parse_special,
    )
    if not request.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": id_, "piece": _piece(tokenizer, id_)} for id_ in ids]}


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """A token's text, or its bytes where they are no text by themselves."""
    raw = tokenizer.token_bytes(token, special=True)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


def _detokenized(tokenizer: Tokenizer, body: bytes) -> object:
    tokens = DetokenizeBody.parse(body).tokens
    ids = [checked_id(tokenizer, token, "tokens") for token in tokens]
    return {"content": tokenizer.decode(ids, special=True)}
