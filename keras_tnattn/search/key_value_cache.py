"""The keys and values that decoders keep from one step of a search to the next."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_tnattn.layers import TransformerDecoder
from keras_tnattn.typing import Tensor

# One dict of `keys` and `values` for each decoder.
Cache = list[dict[str, Tensor]]


def memory_cache(decoders: Sequence[TransformerDecoder], memory: Tensor) -> Cache:
    """Returns the keys and values of the encoder's output, which stay the same in all steps.

    Args:
        decoders: Decoders that keep keys (`TransformerDecoder.keeps_keys`).
        memory: Float tensor `(B, S, d)`.

    Returns:
        For each decoder `keys` and `values` `(B, S, H, k)`.
    """
    return [decoder.memory_keys(memory) for decoder in decoders]


def empty_cache(decoders: Sequence[TransformerDecoder], shape: Any) -> Cache:
    """Returns an empty cache for the keys and values of target tokens.

    Args:
        decoders: Decoders that keep keys.
        shape: `(B, K, L)`: sentences, hypotheses for each, tokens.

    Returns:
        For each decoder `keys` and `values` `(B, K, L, H, k)`.
    """
    return [decoder.no_keys(shape) for decoder in decoders]


def decode_token(
    decoders: Sequence[TransformerDecoder],
    inputs: Tensor,
    position: Tensor,
    target_cache: Cache,
    memory_cache: Cache,
    target_mask: Tensor,
    memory_mask: Tensor,
) -> tuple[Tensor, Cache]:
    """Runs all decoders on the last token only.

    Args:
        decoders: Decoders that keep keys.
        inputs: Float tensor `(B, K, d)`: the embedded last tokens.
        position: Scalar integer, the position of these tokens.
        target_cache: Keys and values of the earlier tokens, with room for these tokens.
        memory_cache: The cache that `memory_cache` returned.
        target_mask: Boolean tensor `(B, K, L)`, `True` for real tokens up to the position.
        memory_mask: Boolean tensor `(B, S)`, `True` for real source tokens.

    Returns:
        Outputs `(B, K, d)`, and the target's cache with the tokens added.
    """
    outputs, new_cache = inputs, []
    for decoder, kept, memory_keys in zip(decoders, target_cache, memory_cache, strict=True):
        outputs, kept = decoder.decode_token(
            outputs, position, kept, memory_keys, target_mask, memory_mask
        )
        new_cache.append(kept)
    return outputs, new_cache


def write(x: Tensor, position: Tensor, values: Tensor) -> Tensor:
    """Returns ids `x` `(B, K, L)` with `values` `(B, K)` at one position."""
    return ops.slice_update(x, [0, 0, position], ops.cast(values, x.dtype)[..., None])
