"""Estimates the time of a compression before it starts, from a cost model of its parts."""

import functools
import math
import timeit
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_small.formats.grouped_rows import BLOCK
from keras_small.formats.tensor_train import GRAM_NUMBERS, MINIMUM_ROWS
from keras_small.storage.layer_chain import CONVOLUTIONS
from keras_small.storage.sizes import byte_count
from keras_small.survey.kinds import has_kernel, is_plain_table, row_size
from keras_small.survey.survey import Survey

# Costs in products of two floats, each in the units that its comment names; they were fitted to the
# models of benchmarks/compress_sizes.py. Those of a matrix `(m, n)`:
# the second moment of its inputs, and its factors, in units of `m^3`;
_MOMENT_COST = 4
# roundings that make up for each other (GPTQ), in units of `m^2 n`;
_ROUNDING_COST = 2
# decompositions and errors of all ranks, in units of `m n^2` for `m >= n`.
_FACTORING_COST = 40
# Bounds of the errors of a convolution's factors, and least squares for a part of these, in units
# of `P^3` for `P` numbers in a patch.
_PATCHES_COST = 3
# Those of a table of `V` rows of `D` features, in blocks of `B` rows:
# rows that move, in units of `V B D`;
_MOVES_COST = 4
# neighbors and singular vectors for all widths, in units of `V D`;
_VECTORS_COST = 2**14
# roundings of all candidates, in units of `V D`, or of the maximum numbers in two cores if these
# are fewer.
_ROUNDED_CORES_COST = 2**17
# The share of these costs that arises: a quarter where no candidate may win, all where one may.
_TRIED_PART = 0.5
# Copies of a model and what does not depend on its size: a second on a machine of 2^35 products a
# second.
_MODEL_COST = 2**36
# The same for each layer: an eighth of a second, for roundings of a sample of each width.
_LAYER_COST = 2**32
# Runs of the model on all batches: the inputs of the layers, there and back for the gradients, the
# corrections of biases, two comparisons and a report. Runs of integers take longer.
_PASSES = 15
# Functions of the model that are compiled; JAX also compiles what runs step by step.
_PROGRAMS = 8
_PROGRAMS_OF_JAX = 50


def describe_cost(survey: Survey, factored: bool, bits: int | None) -> str:
    """Returns how much there is to do, and about how long it takes."""
    layers = survey.copy.replaceable_layers
    run = None
    batches = 0
    if survey.data is not None:
        run = functools.partial(survey.comparison.run_original, survey.data.batches[0])
        batches = len(survey.data.batches)
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
    which runs the model on one of the batches, twice, and multiplies matrices, to see how fast they
    are now: a machine on which others work is slower.
    """
    seconds = 0.0
    if run is not None:
        first_run = timeit.timeit(run, number=1)
        of_run = timeit.timeit(run, number=1)
        programs = _PROGRAMS_OF_JAX if keras.backend.backend() == "jax" else _PROGRAMS
        seconds += _PASSES * batches * of_run + programs * max(first_run - of_run, 0.0)
    matrix = np.ones((512, 512), "float32")
    per_product = timeit.timeit(lambda: matrix @ matrix, number=20) / 20 / 512**3
    products = _MODEL_COST + sum(
        _LAYER_COST + multiplications(layer, factored, bits) for layer in layers.values()
    )
    return seconds + per_product * products


def multiplications(layer: keras.layers.Layer, factored: bool, bits: int | None = None) -> int:
    """Returns about how many multiplications the candidates of a layer cost."""
    products = 0.0
    if has_kernel(layer):
        size = int(np.prod(layer.kernel.shape))
        rows = row_size(layer)
        products += _MOMENT_COST * rows**3 + _ROUNDING_COST * rows * size
        if factored:
            products += _FACTORING_COST * size * min(rows, size // rows)
    elif factored:
        for weight in (weight for weight in layer.weights if len(weight.shape) > 1):
            size = int(np.prod(weight.shape))
            columns = int(weight.shape[-1])
            products += _FACTORING_COST * size * min(columns, size // columns)
    if factored and isinstance(layer, CONVOLUTIONS):
        products += _PATCHES_COST * int(np.prod(layer.kernel.shape[:-1])) ** 3
    if factored and is_plain_table(layer) and layer.input_dim >= MINIMUM_ROWS:
        products += _TRIED_PART * _of_tensor_trains(layer.input_dim, layer.output_dim, bits)
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
