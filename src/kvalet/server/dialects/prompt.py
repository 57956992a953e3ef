"""The shapes of a `prompt`, of `stop` and of `logit_bias`, each reduced to one.

Knows nothing of vocabularies: strings stay strings, ids are only known to be integers.
"""

from math import inf, isfinite
from typing import TypeAlias

Prompt: TypeAlias = tuple[int | str, ...]  # texts and token ids, in order
Bias: TypeAlias = tuple[int | str, float]  # a token id or a text, and what is added to its logits

MAX_STOPS = 64
MAX_PROMPTS = 256


def parse_prompts(given: object) -> tuple[Prompt, ...]:
    """llama.cpp's shapes: a text; token ids, which texts may be mixed into; or a list of those.
    A list of nothing but texts is several prompts. Raises ValueError."""
    if isinstance(given, str):
        return ((given,),)
    if not isinstance(given, list):
        raise ValueError("expected a text, a list of token ids, or a list of prompts")
    if not given:
        raise ValueError("must not be an empty list")
    if any(_is_id(item) for item in given):
        return (parse_prompt(given),)
    if len(given) > MAX_PROMPTS:
        raise ValueError(f"at most {MAX_PROMPTS} prompts in one request")
    return tuple(parse_prompt(item) for item in given)


def parse_prompt(given: object) -> Prompt:
    """One prompt: a text, or a list of token ids and texts. Raises ValueError."""
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, list):
        raise ValueError("a prompt is a text or a list of token ids")
    for item in given:
        if not (isinstance(item, str) or _is_id(item)):
            raise ValueError("a prompt's items are token ids (integers) or texts")
    return tuple(given)


def parse_stop(given: object) -> tuple[str, ...]:
    """A text or a list of texts, none of them empty. Raises ValueError."""
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("expected a text or a list of texts")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"at most {MAX_STOPS} stop strings")
    if "" in stops:
        raise ValueError("a stop string must not be empty")
    return tuple(stops)


def parse_logit_bias(given: object) -> tuple[Bias, ...]:
    """`{"id or text": bias}` as OpenAI has it, or llama.cpp's `[[id or text, bias]]`; a bias of
    false bans. Raises ValueError."""
    if isinstance(given, dict):
        return tuple((_id_or_text(key), _bias(value)) for key, value in given.items())
    if isinstance(given, list):
        return tuple(_bias_pair(pair) for pair in given)
    raise ValueError("expected an object or a list of [token, bias] pairs")


def _bias_pair(pair: object) -> Bias:
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError("expected pairs of [token, bias]")
    token, bias = pair
    if not (isinstance(token, str) or _is_id(token)):
        raise ValueError("a token is an id (an integer) or a text")
    return token, _bias(bias)


def _bias(value: object) -> float:
    if value is False:
        return -inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError("a bias is a number, or false to ban the token")
    if abs(value) > 1e6:
        raise ValueError("a bias lies between -1e6 and 1e6")
    return float(value)


def _id_or_text(key: str) -> int | str:
    return int(key) if key.isascii() and key.isdigit() and len(key) < 10 else key


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)
