"""The keys and values that decoders of `keras.layers.MultiHeadAttention` keep between steps."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tnattn.ops.masking import masked_softmax
from keras_tnattn.typing import Tensor


def keeps_keys(attention: keras.layers.Layer) -> bool:
    """Whether one token's attention to kept keys and values is what the layer computes."""
    if type(attention) is not keras.layers.MultiHeadAttention:
        return False
    config = attention.get_config()
    return not config.get("use_gate") and config.get("sliding_window") is None


def first_keys(
    decoders: Sequence[keras.layers.Layer], memory: Tensor, num_beams: int
) -> dict[str, Tensor]:
    """What is kept before the first step.

    Args:
        decoders: `TransformerDecoder`s whose attentions are such that `keeps_keys`.
        memory: Tensor `(B, S, d)`: the encoder's output.
        num_beams: Hypotheses `K` for each sentence.

    Returns:
        For decoder `i` the tensors `memory_keys_i` and `memory_values_i`, `(B, S, H, k)`, and with
        room for one token `keys_i` and `values_i`, `(B, K, 1, H, k)`.
    """
    kept = {}
    batch = ops.shape(memory)[0]
    for i, decoder in enumerate(decoders):
        kept[f"memory_keys_{i}"] = decoder.cross_attention.key_dense(memory)
        kept[f"memory_values_{i}"] = decoder.cross_attention.value_dense(memory)
        attention = decoder.self_attention
        for name, size in (("keys", attention.key_dim), ("values", attention.value_dim)):
            shape = (batch, num_beams, 1, attention.num_heads, size)
            kept[f"{name}_{i}"] = ops.zeros(shape, attention.compute_dtype)
    return kept


def decode_once(
    decoders: Sequence[keras.layers.Layer], x: Tensor, state: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the decoders at the last token alone.

    Args:
        decoders: As `first_keys` takes them.
        x: Tensor `(B, K, d)`: the embedded last tokens.
        state: What is kept, with room for the token, the `step` it is at, `live_ids`, integers
            `(B, K, L)`, and `memory_mask`, booleans `(B, S)`.

    Returns:
        Tensor `(B, K, d)`, and the new `keys_i` and `values_i`.
    """
    step, ids, kept = state["step"], state["live_ids"], {}
    real = ops.logical_and(ops.arange(ops.shape(ids)[2]) <= step, ids != 0)
    for i, decoder in enumerate(decoders):

        def attend_to_itself(x: Tensor, i: int = i, attention: Any = decoder.self_attention):
            for name, dense in (("keys", attention.key_dense), ("values", attention.value_dense)):
                kept[f"{name}_{i}"] = put(state[f"{name}_{i}"], step, dense(x)[:, :, None])
            keys, values = kept[f"keys_{i}"], kept[f"values_{i}"]
            return _attend_once(attention, x, keys, values, real[:, :, None, :])

        def attend_to_memory(x: Tensor, i: int = i, attention: Any = decoder.cross_attention):
            keys, values = (state[f"memory_{n}_{i}"][:, None] for n in ("keys", "values"))
            return _attend_once(attention, x, keys, values, state["memory_mask"][:, None, None, :])

        x = decoder.branches(x, attend_to_itself, attend_to_memory)
    return x, kept


def put(x: Tensor, position: Tensor, value: Tensor) -> Tensor:
    """`x`, `(B, K, L, ...)`, with `value` at one position of the axis `L`."""
    here = ops.arange(ops.shape(x)[2]) == position
    here = ops.reshape(here, (-1, *[1] * (len(x.shape) - 3)))
    return ops.where(here, ops.cast(value, x.dtype), x)


def _attend_once(
    attention: keras.layers.MultiHeadAttention,
    x: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
) -> Tensor:
    """Attention of one token for each hypothesis.

    Args:
        attention: The layer whose query and output maps are used.
        x: Tensor `(B, K, d)`.
        keys: Tensor `(B, K or 1, L, H, k)`.
        values: Tensor `(B, K or 1, L, H, v)`.
        mask: Boolean tensor that broadcasts to `(B, K, H, L)`.

    Returns:
        Tensor `(B, K, d)`.
    """
    query = attention.query_dense(x) / attention.key_dim**0.5
    scores = ops.sum(query[:, :, None] * keys, axis=-1)  # (B, K, L, H)
    scores = ops.swapaxes(ops.cast(scores, "float32"), -1, -2)
    weights = ops.cast(masked_softmax(scores, mask), values.dtype)
    outputs = ops.sum(ops.swapaxes(weights, -1, -2)[..., None] * values, axis=2)
    return attention.output_dense(outputs)
