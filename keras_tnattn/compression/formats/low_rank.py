"""Kernels and tables as products of two thin matrices."""

import functools

import keras
import numpy as np
from keras import ops

from keras_tnattn.compression import grouped_rows
from keras_tnattn.compression.calibration import Seen
from keras_tnattn.compression.candidates import Candidate, input_shape, item_size, ranks_to_try
from keras_tnattn.compression.errors import (
    direction_weights,
    output_error,
    row_weights,
    table_error,
    table_of,
    weighted_factors,
)
from keras_tnattn.compression.kinds import is_table, kind_of
from keras_tnattn.compression.quantizing import keras_quantized
from keras_tnattn.layers import LowRankDense, LowRankEinsumDense, LowRankEmbedding
from keras_tnattn.layers.base_embedding import embedding_options
from keras_tnattn.layers.low_rank_einsum_dense import kernel_matrix
from keras_tnattn.ops import low_rank, quantization


def candidates(layer: keras.layers.Layer, seen: Seen, bits: int | None) -> list[Candidate]:
    """Returns candidates of many ranks for a dense or einsum layer, or an embedding."""
    if is_table(layer):
        return _table_candidates(layer, seen, bits)
    if kind_of(layer) in (keras.layers.Dense, keras.layers.EinsumDense):
        return _kernel_candidates(layer, seen, bits)
    return []


def quantized(layer: keras.layers.Layer, bits: int) -> keras.layers.Layer:
    """Returns a copy quantized by Keras, or row by row for an embedding."""
    if isinstance(layer, LowRankEmbedding):
        return layer.quantized(bits)
    return keras_quantized(layer, bits, lambda copy: [copy.inner, copy.outer])


def _kernel_candidates(layer: keras.layers.Layer, seen: Seen, bits: int | None) -> list[Candidate]:
    einsum = isinstance(layer, keras.layers.EinsumDense)
    kernel = ops.convert_to_numpy(layer.kernel).astype("float64")
    if einsum:
        kernel = kernel_matrix(kernel, layer.equation)
    rows, columns = kernel.shape
    number = item_size(layer.variable_dtype)
    bias = None if layer.bias is None else ops.convert_to_numpy(layer.bias)
    bias_bytes = 0 if bias is None else number * bias.size
    # The error of integers hardly depends on the rank.
    rounding = 0.0 if bits is None else output_error(layer, keras_quantized(layer, bits), seen)
    scale = None if seen.moment is None else low_rank.square_root(seen.moment)
    left, right, errors = low_rank.low_rank_factors(kernel, scale)

    def make(rank: int) -> keras.layers.Layer:
        new = (LowRankEinsumDense if einsum else LowRankDense).like(layer, rank)
        new.build(input_shape(layer))
        # Split each singular value evenly, so that both factors quantize well.
        root = np.sqrt(np.linalg.norm(left[:, :rank], axis=0) + 1e-30)
        new.assign_factors(left[:, :rank] / root, right[:rank] * root[:, None], bias)
        return new

    return [
        Candidate(
            "low_rank",
            (rank,),
            bits,
            _stored(rank, rows, columns, bits, number) + bias_bytes,
            float(np.hypot(errors[rank], rounding)),
            2 * rank * (rows + columns),
            functools.partial(make, rank),
        )
        for rank in ranks_to_try(len(errors) - 1)
    ]


def _stored(rank: int, rows: int, columns: int, bits: int | None, number: int) -> int:
    """Estimates the bytes of two factors in Keras: weights, scales, at 4 bits zeros and indices."""
    if bits is None:
        return number * rank * (rows + columns)
    scales = number * (rank + columns)
    if bits == 4:
        scales = 2 * scales + 4 * (rows + rank)
    return rank * (rows + columns) * bits // 8 + scales


def _table_candidates(
    layer: keras.layers.Embedding, seen: Seen, bits: int | None
) -> list[Candidate]:
    table = table_of(layer)
    weights, directions = row_weights(layer, seen), direction_weights(seen)
    coordinates, basis = weighted_factors(table, weights, directions)
    number = item_size(layer.variable_dtype)

    def factors(rank: int) -> tuple[np.ndarray, np.ndarray]:
        left, right = coordinates[:, :rank], basis[:rank]
        if bits is None:
            return left, right
        rotation = grouped_rows.random_rotation(rank)  # so that they round well
        return left @ rotation, rotation.T @ right

    def make(rank: int) -> LowRankEmbedding:
        new = LowRankEmbedding(layer.input_dim, layer.output_dim, rank, **embedding_options(layer))
        new.build()
        new.assign_factors(*factors(rank))
        return new

    def candidate(rank: int) -> Candidate:
        left, right = factors(rank)
        size = number * left.size
        if bits is not None:
            left, size = quantization.rounded_rows(left, bits)
        near = left @ right
        weighted = None if directions is None else table_error(table, near, weights, directions)
        return Candidate(
            "low_rank",
            (rank,),
            bits,
            size + number * right.size,
            table_error(table, near, weights),
            2 * rank * len(basis),
            functools.partial(make, rank),
            weighted_error=weighted,
        )

    return [candidate(rank) for rank in ranks_to_try(len(basis))]
