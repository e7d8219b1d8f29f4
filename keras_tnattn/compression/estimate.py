"""Says before a compression how long it will take, from a simple model of its parts."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_tnattn.compression.kinds import is_plain_table, is_table
from keras_tnattn.compression.sensitivity import MOST_FEATURES

# An SVD of a matrix `(m, n)`, `m >= n`, and the roundings of its rows cost about so many
# products `m n^2`; the integers alone cost the other number.
_FACTORED, _ROUNDED = 40, 8
# How often every row of a table is compared with every other one, and the fewest rows for that.
_COMPARISONS, _FEWEST_ROWS = 18, 500


def expected_seconds(
    layers: Mapping[str, keras.layers.Layer],
    factored: bool,
    run: Callable[[], Any] | None,
    batches: int,
) -> float:
    """Returns about how many seconds the search for the candidates of some layers takes.

    Runs the model once, and multiplies two matrices, to see how fast they are now.

    Args:
        layers: The layers that can be replaced.
        factored: Whether low ranks and tensor trains are tried, and not only integers.
        run: Runs the model on one batch, or `None` if there are no data.
        batches: The number of batches.
    """
    tables = [layer for layer in layers.values() if is_table(layer)]
    seconds = 0.0
    if run is not None:
        features = sum(min(table.output_dim, MOST_FEATURES) for table in tables)
        runs = len(layers) + features + batches * (2 + 3 * len(tables))
        seconds += runs * _seconds(run)
    matrix = np.ones((512, 512), "float32")
    per_product = _seconds(lambda: matrix @ matrix) / 512**3
    return seconds + per_product * multiplications(layers, factored)


def multiplications(layers: Mapping[str, keras.layers.Layer], factored: bool) -> int:
    """Returns about how many multiplications the candidates of some layers cost."""
    products = 0
    for layer in layers.values():
        for weight in layer.weights:
            if len(weight.shape) > 1:
                size, last = int(np.prod(weight.shape)), int(weight.shape[-1])
                products += (_FACTORED if factored else _ROUNDED) * size * min(last, size // last)
    tables = [layer for layer in layers.values() if is_table(layer)]
    if factored:
        rows = [t for t in tables if is_plain_table(t) and t.input_dim >= _FEWEST_ROWS]
        products += sum(_COMPARISONS * table.input_dim**2 * table.output_dim for table in rows)
    return products


def _seconds(call: Callable[[], Any]) -> float:
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def readable(seconds: float) -> str:
    """Returns a duration in the unit that people would use.

    Example:
        >>> readable(0.4), readable(42.3), readable(200), readable(9000)
        ('1 second', '42 seconds', '3 minutes', '2.5 hours')
    """
    if seconds < 90:
        number = max(1, round(seconds))
        return f"{number} second{'s' if number > 1 else ''}"
    if seconds < 5400:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.1f} hours"


def readable_size(size: int) -> str:
    """Returns a number of bytes in the largest unit that it fills.

    Example:
        >>> readable_size(2_100_000)
        '2.1 MB'
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
