"""Computes the sequences of a batch in parts, side by side, on a processor with JAX.

XLA multiplies a batch of matrices on one core. It shares operations among the cores where more than
eight of them are ready at once: those of different parts.
"""

from collections.abc import Callable

import keras
from keras import ops

from keras_tnattn.typing import Tensor

_MIN_NUMBERS = 4_000_000
_MIN_PARTS = 9  # XLA shares out more than eight operations
_MAX_PARTS = 16  # each of them is in the compiled program


def count_parts(sequences: Tensor, numbers: Tensor) -> int:
    """Returns in how many equal parts the sequences are best computed.

    That is one if the work is small, if no number from 9 to 16 divides the sequences, on
    accelerators and several devices, and on other backends than JAX, whose products of batches
    share the work among the cores by themselves.

    Args:
        sequences: The number of sequences, an int or a scalar int tensor.
        numbers: How many numbers are read and written for each of them.

    Example:
        >>> count_parts(64, 1000)
        1
    """
    if not (isinstance(sequences, int) and isinstance(numbers, int)):
        return 1
    if sequences * numbers <= _MIN_NUMBERS or not _runs_on_one_cpu():
        return 1
    counts = range(_MIN_PARTS, _MAX_PARTS + 1)
    return next((n for n in counts if sequences % n == 0), 1)


def map_parts(function: Callable, x: Tensor, y: Tensor, parts: int) -> Tensor:
    """Computes a function of the parts of two batches of sequences.

    Args:
        function: Of tensors `(N / parts, L, J)`; returns a tensor of the shape of the second.
        x: Sequences `(..., L, J)`, of which there are `N`.
        y: As many sequences `(..., L, J')`.
        parts: The number of parts, which divides `N`; with 1 nothing is cut.

    Returns:
        A tensor of the shape of `y`.

    Example:
        >>> x = ops.ones((2, 2, 5, 3))
        >>> tuple(map_parts(lambda x, y: x + y, x, x, 4).shape)
        (2, 2, 5, 3)
    """
    if parts == 1:
        return function(x, y)
    cut = [ops.split(ops.reshape(z, (-1, *z.shape[-2:])), parts) for z in (x, y)]
    results = [function(*part) for part in zip(*cut, strict=True)]
    return ops.reshape(ops.concatenate(results), y.shape)


def _runs_on_one_cpu() -> bool:
    return keras.backend.backend() == "jax" and keras.distribution.list_devices() == ["cpu:0"]
