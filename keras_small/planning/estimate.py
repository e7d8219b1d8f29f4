"""Estimates before a compression how long it will take, from a simple model of its parts."""

import functools
import math
import timeit
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.asked.batches import outputs_of
from keras_small.asked.data import CalibrationData
from keras_small.formats.grouped_rows import BLOCK
from keras_small.formats.tensor_train import GRAM_NUMBERS, MINIMUM_ROWS
from keras_small.storage.layer_chain import CONVOLUTIONS
from keras_small.storage.sizes import byte_count
from keras_small.survey.inventory import Inventory
from keras_small.survey.kinds import is_plain_table, is_table
from keras_small.survey.sensitivity import MAXIMUM_FEATURES

# Costs in products of two floats, each in the units that its comment names; they were fitted to the
# cases of studies/benchmarks/compression_cost.py. Of a matrix `(m, n)`, `m >= n`, in units of
# `m n^2`: the decompositions and errors of all ranks.
_FACTORING_COST = 40
# The roundings of all numbers of bits.
_ROUNDING_COST = 20
# Of a convolution of `P` numbers in a patch, `P^3`: least squares for all ranks.
_PATCHES_COST = 60
# Of a table of `V` rows of `D` features in blocks of `B` rows, `V B D`: rows that move.
_MOVES_COST = 4
# `V D`: neighbors and singular vectors for all widths.
_VECTORS_COST = 2**14
# `V D`, or the maximum numbers in two cores if these are fewer: the roundings of all candidates.
_ROUNDED_CORES_COST = 2**17
# Copies of a model and what does not depend on its size: a second on a machine of 2^35 products a
# second.
_MODEL_COST = 2**35
# The same for each layer: an eighth of a second.
_LAYER_COST = 2**32
# Programs that JAX compiles for the shapes of one layer and its candidates, in eager calls.
_PROGRAMS = 50


def describe_cost(
    inventory: Inventory, factored: bool, data: CalibrationData | None, bits: int | None
) -> str:
    """Returns how much there is to do, and about how long it takes."""
    layers = inventory.replaceable_layers
    run = None
    batches = 0
    if data is not None:
        run = functools.partial(outputs_of, inventory.model, data.batches[0])
        batches = len(data.batches)
    seconds = readable(expected_seconds(layers, factored, run, batches, bits))
    size = readable_size(sum(map(byte_count, layers.values())))
    return (
        f"layers that can be replaced: {len(layers)}, {size} in total; "
        f"expected time: about {seconds}"
    )


def expected_seconds(
    layers: Mapping[str, keras.layers.Layer],
    factored: bool,
    run: Callable[[], Any] | None,
    batches: int,
    bits: int | None = None,
) -> float:
    """Returns about how many seconds the compression of some layers takes.

    If it is `factored`, low ranks and tensor trains are tried, and not only integers. Calls `run`,
    which runs the model on one of the batches, once or twice, and multiplies matrices, to see how
    fast they are now: a machine on which others work is slower.
    """
    tables = [layer for layer in layers.values() if is_table(layer)]
    seconds = 0.0
    if run is not None:
        features = sum(min(table.output_dim, MAXIMUM_FEATURES) for table in tables)
        runs = len(layers) + features + batches * (3 + 2 * len(tables))
        run()
        seconds += runs * timeit.timeit(run, number=1)
    matrix = np.ones((512, 512), "float32")
    per_product = timeit.timeit(lambda: matrix @ matrix, number=20) / 20 / 512**3
    products = _MODEL_COST + _LAYER_COST * len(layers) + multiplications(layers, factored, bits)
    seconds += per_product * products
    if keras.backend.backend() == "jax":
        shapes = {tuple(tuple(w.shape) for w in layer.weights) for layer in layers.values()}
        # Of the size of these layers, so that a program of another model is not there yet.
        numbers = np.ones(sum(map(byte_count, layers.values())) % 9973, "float32")
        seconds += _PROGRAMS * len(shapes) * timeit.timeit(lambda: ops.tanh(numbers), number=1)
    return seconds


def multiplications(
    layers: Mapping[str, keras.layers.Layer], factored: bool, bits: int | None = None
) -> int:
    """Returns about how many multiplications the candidates of some layers cost."""
    products = 0.0
    for layer in layers.values():
        for weight in layer.weights:
            if len(weight.shape) > 1:
                size = int(np.prod(weight.shape))
                last = int(weight.shape[-1])
                products += (
                    (_FACTORING_COST if factored else _ROUNDING_COST)
                    * size
                    * min(last, size // last)
                )
        if factored and isinstance(layer, CONVOLUTIONS):
            products += _PATCHES_COST * int(np.prod(layer.kernel.shape[:-1])) ** 3
    tables = [layer for layer in layers.values() if is_table(layer)]
    if factored:
        for table in tables:
            if is_plain_table(table) and table.input_dim >= MINIMUM_ROWS:
                products += _of_tensor_trains(table.input_dim, table.output_dim, bits)
    return int(products)


def _of_tensor_trains(rows: int, columns: int, bits: int | None) -> float:
    size = rows * columns
    products = size * (_MOVES_COST * min(rows, BLOCK) + _VECTORS_COST)
    if bits is None:
        return products
    # Both cores are about `sqrt(V D)` by the rank `R`, and `sqrt(V D) R^2` is bounded.
    return products + _ROUNDED_CORES_COST * min(size, 2 * math.sqrt(GRAM_NUMBERS * math.sqrt(size)))


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
