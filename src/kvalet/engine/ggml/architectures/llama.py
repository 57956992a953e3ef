"""llama: Llama, Mistral, SmolLM2 and whatever else calls itself so."""

from kvalet.engine.ggml.architectures.description import (
    Activation,
    FeedForward,
    LayerDescription,
    ModelDescription,
    Norm,
    Pairs,
)
from kvalet.engine.ggml.architectures.reading import read_attention, read_num_vocab
from kvalet.model.gguf import GGUFFile
from kvalet.model.hyperparameters import HyperParameters


def describe(file: GGUFFile) -> ModelDescription:
    """Raises ModelFileError for what is missing or not supported."""
    keys = HyperParameters(file)
    if keys.integer("expert_count", 0):
        raise keys.fault("mixture-of-experts llama models are not supported")
    num_embd = keys.positive("embedding_length")
    norm = Norm(keys.number("attention.layer_norm_rms_epsilon"))
    layer = LayerDescription(
        norm=norm,
        mixer=read_attention(keys, file, num_embd, Pairs.NEIGHBOURS),
        feed_forward=FeedForward(keys.positive("feed_forward_length"), Activation.SWIGLU),
    )
    return ModelDescription(
        num_vocab=read_num_vocab(file),
        num_embd=num_embd,
        layers=(layer,) * keys.positive("block_count"),
        output_norm=norm,
        is_tied="output.weight" not in file.tensors,
    )
