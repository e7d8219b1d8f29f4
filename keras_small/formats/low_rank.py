"""Kernels and tables as products of two thin matrices."""

import contextlib
import functools
from collections.abc import Iterator

import keras
import numpy as np
from keras import ops

from keras_small.formats import chains, dense, grouped_rows, recurrent
from keras_small.formats.candidates import Candidate, factor_bytes, input_shape, ranks_to_try
from keras_small.storage import (
    LowRankDense,
    LowRankEinsumDense,
    convolution_factors,
    integer_groups,
)
from keras_small.storage.layer_chain import LayerChain
from keras_small.storage.low_rank_einsum_dense import kernel_matrix, split_equation
from keras_small.storage.packed_matrix import BASIS_BITS
from keras_small.storage.quantized_embeddings import QuantizedLowRankEmbedding
from keras_small.storage.sizes import item_size
from keras_small.survey.calibration import Statistics
from keras_small.survey.errors import TableErrors
from keras_small.survey.kinds import is_plain_table, is_table, kind_of
from keras_tnattn.layers import LowRankEmbedding
from keras_tnattn.layers.factored_embedding import embedding_options
from keras_tnattn.ops import low_rank


def candidates(
    layer: keras.layers.Layer, statistics: Statistics, bits: int | None
) -> list[Candidate]:
    """Returns candidates of many ranks for a dense or einsum layer, or an embedding."""
    if is_table(layer):
        return _table_candidates(layer, statistics, bits) if is_plain_table(layer) else []
    if isinstance(layer, keras.layers.RNN):
        return recurrent.candidates(layer, statistics, bits)
    if kind_of(layer) is keras.layers.Dense or _has_matrix(layer):
        return _kernel_candidates(layer, statistics, bits)
    return chains.convolution_candidates("low_rank", layer, statistics, bits, _factorings)


def _has_matrix(layer: keras.layers.Layer) -> bool:
    if kind_of(layer) is not keras.layers.EinsumDense:
        return False
    with contextlib.suppress(ValueError):
        return bool(split_equation(layer.equation))
    return False


def _factorings(
    kernel: np.ndarray, moment: np.ndarray | None, only: chains.Ranks | None = None
) -> Iterator[chains.Factoring]:
    first, second, errors = convolution_factors.channel_factors(kernel, moment)
    tried = [(rank,) for rank in ranks_to_try(len(errors) - 1)] if only is None else [only]
    for (rank,) in tried:
        yield (rank,), (first[..., :rank], second[:rank]), float(errors[rank])


def _quantize_factors(
    layer: keras.layers.Layer, bits: int, batch: np.ndarray | None
) -> keras.layers.Layer:
    """Returns a chain of the two parts of a dense or einsum layer, as integers."""
    chain = LayerChain.like(layer, [layer.inner, layer.outer])
    chain.build(input_shape(layer))
    return chains.quantize_chain(chain, bits, batch)


def _matrix_of(layer: keras.layers.Layer) -> np.ndarray:
    kernel = ops.convert_to_numpy(layer.kernel).astype("float64")
    if isinstance(layer, keras.layers.EinsumDense):
        return kernel_matrix(kernel, layer.equation)
    return kernel


def _kernel_candidates(
    layer: keras.layers.Layer, statistics: Statistics, bits: int | None
) -> list[Candidate]:
    einsum = isinstance(layer, keras.layers.EinsumDense)
    rows, columns = _matrix_of(layer).shape
    # The error of integers hardly depends on the rank.
    rounding = 0.0
    quantize = None
    if bits is not None:
        rounding = dense.rounding_error(layer, statistics, bits)
        quantize = functools.partial(_quantize_factors, bits=bits, batch=statistics.inputs)
    errors = low_rank.low_rank_factors(_matrix_of(layer), moment=statistics.moment)[2]

    def make(rank: int) -> keras.layers.Layer:
        kernel = _matrix_of(layer)
        inner, outer, _ = low_rank.low_rank_factors(kernel, moment=statistics.moment)
        bias = None if layer.bias is None else ops.convert_to_numpy(layer.bias)
        new = (LowRankEinsumDense if einsum else LowRankDense).like(layer, rank)
        new.build(input_shape(layer))
        # Split each singular value evenly, so that both factors quantize well.
        root = np.sqrt(np.linalg.norm(inner[:, :rank], axis=0) + 1e-30)
        new.assign_factors(inner[:, :rank] / root, outer[:rank] * root[:, None], bias)
        return new

    return [
        Candidate(
            format="low_rank",
            ranks=(rank,),
            bits=bits,
            bytes=factor_bytes(layer, [(rows, rank), (rank, columns)], bits),
            error=float(np.sqrt(errors[rank] ** 2 + 2 * rounding**2)),
            flops=2 * rank * (rows + columns),
            make=functools.partial(make, rank),
            quantize=quantize,
        )
        for rank in ranks_to_try(len(errors) - 1)
    ]


def _table_candidates(
    layer: keras.layers.Embedding, statistics: Statistics, bits: int | None
) -> list[Candidate]:
    errors = TableErrors(layer, statistics)
    factors = errors.factors
    basis = factors.basis.astype("float32")
    number = item_size(layer.variable_dtype)
    bits = None if bits is None else max(bits, 4)
    quantize = (
        None if bits is None else functools.partial(QuantizedLowRankEmbedding.from_layer, bits=bits)
    )

    def rotation_of(rank: int) -> np.ndarray | None:
        # Integers that share a scale round best if they are about equally large.
        return None if bits is None else grouped_rows.random_rotation(rank).astype("float32")

    def make(rank: int) -> LowRankEmbedding:
        new = LowRankEmbedding(layer.input_dim, layer.output_dim, rank, **embedding_options(layer))
        new.build()
        coordinates = factors.coordinates[:, :rank]
        leading = basis[:rank]
        rotation = rotation_of(rank)
        if rotation is not None:
            coordinates = coordinates @ rotation
            leading = rotation.T @ leading
        new.assign_factors(coordinates, leading)
        return new

    def candidate(rank: int) -> Candidate:
        approximation = errors.coordinates[:, :rank]
        columns = basis.shape[1]
        rotation = rotation_of(rank)
        if rotation is not None and bits is not None:
            rotated_rows = approximation @ rotation
            rounded = integer_groups.rounded_matrix(rotated_rows, bits, rank, axis=1)
            rotated_basis = rotation.T @ basis[:rank]
            rounded_basis = integer_groups.rounded_matrix(
                rotated_basis, BASIS_BITS, columns, axis=1
            )
            approximation = rounded @ (rounded_basis @ factors.inverse)
            size = integer_groups.stored_bytes((layer.input_dim, rank), bits, rank, axis=1)
            size += integer_groups.stored_bytes((rank, columns), BASIS_BITS, columns, axis=1)
        else:
            size = number * rank * (layer.input_dim + columns)
        error, weighted = errors.of(approximation)
        flops = 2 * rank * columns
        return Candidate(
            format="low_rank",
            ranks=(rank,),
            bits=bits,
            bytes=size,
            error=error,
            flops=flops,
            make=functools.partial(make, rank),
            quantize=quantize,
            weighted_error=weighted,
        )

    return [candidate(rank) for rank in ranks_to_try(len(basis))]
