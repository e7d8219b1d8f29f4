"""Computes the sequences of a batch in parts, on a processor.

What is computed for all of them at once is read and written through the main memory several times;
what is computed for a part stays in the cache of a core. And what a compiled step of JAX needs
beyond 32 MiB is mapped anew at each step by glibc, the C library of most Linux systems, page by
page.
"""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from keras_tnattn.typing import Tensor

# The numbers that a part may read and write: 3.2 MB in float32. Fewer are no faster.
_NUMBERS = 800_000
# Fewer parts gain less than it costs to compute scores anew in the backward pass.
_FEWEST_PARTS = 4
_MOST_PARTS = 16  # so that the graphs of TensorFlow, which have each part, stay small


def count_parts(sequences: Tensor, numbers: Tensor) -> int:
    """Returns in how many equal parts the sequences are best computed.

    That is one if the work is small, if no number of about the right size divides the sequences, on
    accelerators and several devices, on PyTorch and NumPy, and if a size is unknown: in `fit` on
    TensorFlow, that of batches that do not divide the rows.

    Args:
        sequences: The number of sequences, an int or a scalar int tensor.
        numbers: How many numbers are read and written for each of them.

    Example:
        >>> count_parts(64, 1000)
        1
    """
    if not (isinstance(sequences, int) and isinstance(numbers, int)):
        return 1
    wanted = min(-(-sequences * numbers // _NUMBERS), _MOST_PARTS)
    if wanted < _FEWEST_PARTS or not _runs_on_one_cpu():
        return 1
    counts = range(wanted, min(2 * wanted, _MOST_PARTS) + 1)
    return next((n for n in counts if sequences % n == 0), 1)


def map_parts(function: Callable, tensors: Sequence[Tensor], parts: int) -> tuple[Tensor, ...]:
    """Computes a function of the parts of tensors.

    Args:
        function: Of tensors `(N / parts, L, J)`; returns a tuple of tensors.
        tensors: Tensors `(..., L, J)`, with the same product `N` of the leading sizes and the same
            `L`, which are known of the first one.
        parts: The number of parts, which divides `N`.

    Returns:
        What the function returns, stacked along a first axis of size `parts`.

    Example:
        >>> (doubled,) = map_parts(lambda x: (2 * x,), [ops.ones((4, 1, 3))], 2)
        >>> tuple(doubled.shape)
        (2, 2, 1, 3)
    """
    length = tensors[0].shape[-2]
    stacked = [ops.reshape(x, (parts, -1, length, x.shape[-1])) for x in tensors]
    if keras.backend.backend() == "jax":
        # A loop: XLA would compute parts that are written out beside each other.
        return ops.map(lambda part: function(*part), tuple(stacked))
    # Written out: TensorFlow's loops cost as much as the cache gains.
    results = [function(*(x[n] for x in stacked)) for n in range(parts)]
    return tuple(ops.stack(result) for result in zip(*results, strict=True))


def _runs_on_one_cpu() -> bool:
    # PyTorch gained nothing from parts.
    if keras.backend.backend() not in ("jax", "tensorflow"):
        return False
    return keras.distribution.list_devices() == ["cpu:0"]
