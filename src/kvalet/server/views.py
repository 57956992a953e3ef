"""/slots, /props and /v1/models as llama.cpp's server shows them, with our own fields beside."""

from dataclasses import asdict

from kvalet import __version__
from kvalet.core.request import SamplingParams
from kvalet.runtime.messages import SlotView
from kvalet.server.dialects.llamacpp import generation_settings
from kvalet.server.model import ServedModel

_OURS = (
    *("request_id", "state", "n_cells", "n_cells_host"),
    *("is_preempted", "is_held", "preempt_mode", "n_preempt", "n_recompute", "parked_ms"),
)


def slot_view(slot: SlotView, n_ctx: int) -> dict[str, object]:
    """One slot (behaviour M2). No texts of requests: they are between it and its client."""
    fields = asdict(slot)
    view: dict[str, object] = {
        "id": slot.slot,
        "n_ctx": n_ctx,
        "speculative": False,
        "is_processing": slot.is_processing,
        **{name: fields[name] for name in _OURS},
    }
    if slot.sampling is None:
        return view
    return {
        **view,
        "n_prompt_tokens": slot.num_prompt_tokens,
        "n_prompt_tokens_processed": min(slot.num_computed, slot.num_prompt_tokens),
        "params": generation_settings(slot.sampling, slot.max_new_tokens, n_ctx),
        "next_token": [_next_token(slot)],
    }


def _next_token(slot: SlotView) -> dict[str, object]:
    limit = slot.max_new_tokens
    return {
        "has_next_token": slot.is_processing,
        "n_remain": -1 if limit is None else limit - slot.num_generated,
        "n_decoded": slot.num_generated,
    }


def props(model: ServedModel, max_new_tokens: int | None) -> dict[str, object]:
    """What a client can know of the server. `max_new_tokens`: of requests that do not say."""
    tokenizer, n_ctx = model.tokenizer, model.service.n_ctx
    params = {
        **generation_settings(SamplingParams(), max_new_tokens, n_ctx),
        "seed": -1,
        "n_keep": 0,
        "n_discard": 0,
    }
    return {
        "default_generation_settings": {"n_ctx": n_ctx, "params": params},
        "total_slots": model.service.num_slots,
        "model_alias": model.name,
        "model_path": model.path,
        "modalities": {"vision": False, "audio": False},
        "chat_template": model.template.source if model.template else "",
        "bos_token": _text(model, tokenizer.bos_id),
        "eos_token": _text(model, tokenizer.eos_id),
        "build_info": f"kvalet-{__version__}",
        "is_sleeping": False,
        **model.props,
    }


def _text(model: ServedModel, token: int | None) -> str:
    return "" if token is None else model.tokenizer.decode([token], special=True)


def models(model: ServedModel, loaded_at: int) -> dict[str, object]:
    """OpenAI's list with the one model there is; `loaded_at` in Unix seconds."""
    meta = {
        "n_vocab": model.tokenizer.num_vocab,
        "n_ctx": model.service.n_ctx,
        "n_ctx_train": model.n_ctx_train,
        "n_embd": model.n_embd,
        "n_params": model.n_params,
        "size": model.size_bytes,
    }
    entry = {"id": model.name, "object": "model", "created": loaded_at, "owned_by": "kvalet"}
    return {"object": "list", "data": [{**entry, "meta": meta}]}
