"""From what a request says to token ids: texts, templates, biases, vocabulary checks.

Runs on a worker thread (ADR 0005): a long prompt must not hold up other streams.
"""

from kvalet.errors import ContextExceeded, RequestError
from kvalet.model.tokenizer import Tokenizer
from kvalet.server.dialects.conversation import TemplateBody
from kvalet.server.dialects.prompt import Bias, Prompt
from kvalet.server.model import ServedModel


def encode_prompt(model: ServedModel, prompt: Prompt) -> tuple[int, ...]:
    """Token ids of one prompt. A text at its start gets BOS, if the model's texts have it."""
    tokenizer = model.tokenizer
    for part in prompt:
        if isinstance(part, str):
            _refuse_hopeless(model, part)
    return tuple(encode_parts(tokenizer, prompt, "prompt", add_bos=True, parse_special=True))


def encode_parts(
    tokenizer: Tokenizer, parts: Prompt, field: str, *, add_bos: bool, parse_special: bool
) -> list[int]:
    """Token ids of texts and ids in order. `add_bos` is for a text at the start only."""
    ids: list[int] = []
    for number, part in enumerate(parts):
        if isinstance(part, str):
            first = number == 0
            ids += tokenizer.encode(part, add_bos=add_bos and first, parse_special=parse_special)
        else:
            ids.append(checked_id(tokenizer, part, field))
    return ids


def checked_id(tokenizer: Tokenizer, token: int, field: str) -> int:
    """`token`, if the vocabulary has it."""
    if not 0 <= token < tokenizer.num_vocab:
        last = tokenizer.num_vocab - 1
        raise RequestError(f"'{field}': token id {token} is not one of 0 to {last}", field)
    return token


def render_chat(model: ServedModel, body: TemplateBody) -> str:
    """The conversation as the model's template writes it."""
    if model.template is None:
        raise RequestError("the model has no chat template; use /v1/completions", "messages")
    return model.template.render(
        [message.for_template() for message in body.messages],
        add_generation_prompt=body.add_generation_prompt,
        **body.chat_template_kwargs,
    )


def encode_chat(model: ServedModel, body: TemplateBody) -> tuple[int, ...]:
    """Token ids of a conversation. BOS comes once, whether the template writes it or not."""
    text = render_chat(model, body)
    _refuse_hopeless(model, text)
    return tuple(model.tokenizer.encode(text, add_bos=True, parse_special=True))


def _refuse_hopeless(model: ServedModel, text: str) -> None:
    """Tokenising megabytes takes long and holds up others; a text that cannot fit is not."""
    least, n_ctx = model.tokenizer.least_tokens(text), model.service.n_ctx
    if least >= n_ctx:
        raise ContextExceeded(least, n_ctx, at_least=True)


def encode_bias(tokenizer: Tokenizer, biases: tuple[Bias, ...]) -> tuple[tuple[int, float], ...]:
    """Bias by token id, ascending. A text biases each of its tokens; what is said twice adds up."""
    total: dict[int, float] = {}
    for token, bias in biases:
        for id_ in _ids_of(tokenizer, token):
            total[id_] = total.get(id_, 0.0) + bias
    return tuple(sorted(total.items()))


def _ids_of(tokenizer: Tokenizer, token: int | str) -> list[int]:
    if isinstance(token, str):
        return tokenizer.encode(token, add_bos=False, parse_special=True)
    return [checked_id(tokenizer, token, "logit_bias")]
