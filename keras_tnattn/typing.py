"""Types that the signatures of this package share.

`Tensor` is `Any`: the tensors of TensorFlow, JAX and PyTorch, NumPy arrays and `keras.KerasTensor`
have no type in common.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import keras

Tensor: TypeAlias = Any
# Nested tuples, lists and dicts of tensors.
Tensors: TypeAlias = Any
# Ints, and None for a size that is not known.
Shape: TypeAlias = Sequence[Any]
DType: TypeAlias = str | keras.DTypePolicy

Activation: TypeAlias = str | Callable[[Tensor], Tensor]
Initializer: TypeAlias = str | keras.initializers.Initializer
Regularizer: TypeAlias = str | keras.regularizers.Regularizer
Constraint: TypeAlias = str | keras.constraints.Constraint
Seed: TypeAlias = int | keras.random.SeedGenerator | None


class Masks(NamedTuple):
    """The masks of an attention's query and value, booleans, `True` for a real token.

    Attributes:
        query: `(B, T)`; `None` if all tokens are real.
        value: `(B, S)`; likewise.

    Example:
        >>> Masks(query=None).value is None
        True
    """

    query: Tensor | None = None
    value: Tensor | None = None


NO_MASKS = Masks()


class Chunk(NamedTuple):
    """The new tokens of `N` sequences: a prompt, or the token that was just chosen.

    Attributes:
        start: Scalar integer, the place of the first new token in the room for tokens.
        positions: Integers `(N, T)`, the positions of the new tokens in their sequences.
        mask: Booleans `(N, T)`, `True` for a real token.
        prefix_mask: Booleans `(N, L)`, `True` for the real tokens up to the last new one.
        is_prompt: Whether these are the first tokens of the sequences. A state has room for these
            alone then.

    Example:
        >>> from keras import ops
        >>> mask = ops.ones((1, 2), "bool")
        >>> Chunk(0, ops.arange(2)[None], mask, mask, is_prompt=True).is_prompt
        True
    """

    start: Tensor
    positions: Tensor
    mask: Tensor
    prefix_mask: Tensor
    is_prompt: bool
