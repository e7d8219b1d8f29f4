"""Tensors that stand for stored matrices."""

import threading

import keras
import numpy as np
import pytest
from conformance import assert_same_arrays, to_numpy

from keras_small.storage.adaptive_embedding import AdaptiveEmbedding
from keras_small.storage.quantized import quantized_layer
from keras_small.storage.quantized_embeddings import QuantizedLowRankEmbedding
from keras_small.storage.stand_ins import StoredMatrix, stand_in, standing_in, stored_matrices
from keras_tnattn.layers import LowRankEmbedding
from keras_tnattn.layers.token_embedding import TokenEmbedding

layers = keras.layers
IDS = np.array([[0, 5, 29], [7, 3, 1]], "int32")


def of_integers(layer, shape, bits, group_size=16):
    layer.build(shape)
    return quantized_layer(layer, bits, group_size)


def low_rank(bits):
    layer = LowRankEmbedding(30, 8, rank=5)
    layer.build()
    return QuantizedLowRankEmbedding.from_layer(layer, bits)


def adaptive():
    layer = AdaptiveEmbedding(30, 8, (4, 20), (7, 3), reorder_rows=True)
    layer.build()
    return layer.quantized((8, 2))


# Sizes that are no multiples of the groups: any swapped pair of axes changes a number.
LAYERS = {
    "dense": (lambda: of_integers(layers.Dense(7), (None, 50), 3), (2, 50)),
    "einsum": (
        lambda: of_integers(layers.EinsumDense("abc,dec->abde", (None, 3, 4)), (None, 5, 20), 4),
        (2, 5, 20),
    ),
    "convolution": (lambda: of_integers(layers.Conv2D(5, 3), (None, 6, 6, 2), 6), (2, 6, 6, 2)),
    "transposed": (lambda: of_integers(layers.Conv1DTranspose(5, 3), (None, 6, 20), 8), (2, 6, 20)),
    "depthwise": (
        lambda: of_integers(layers.DepthwiseConv2D(5, depth_multiplier=3), (None, 6, 6, 2), 2),
        (2, 6, 6, 2),
    ),
    "embedding": (lambda: of_integers(TokenEmbedding(30, 18), None, 4), None),
    "low rank, 4 bits": (lambda: low_rank(4), None),
    "low rank, 8 bits": (lambda: low_rank(8), None),
    "blocks of rows": (adaptive, None),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_tensor_stands_for_each_matrix(name):
    make, shape = LAYERS[name]
    layer = make()
    rng = np.random.default_rng(0)
    inputs = [IDS] if shape is None else [rng.normal(size=shape).astype("float32")]
    reverse = hasattr(layer, "reverse_dtype")
    if reverse:
        features = rng.normal(size=(2, layer.output_dim)).astype("float32")

    def outputs():
        results = [layer(inputs[0])] + ([layer(features, reverse=True)] if reverse else [])
        return [to_numpy(x) for x in results]

    matrices = stored_matrices(layer)
    expected = outputs()
    values = {(id(layer), name): matrix.values() for name, matrix in matrices.items()}
    with standing_in({key: keras.ops.convert_to_tensor(x) for key, x in values.items()}):
        assert_same_arrays(outputs(), expected, rtol=1e-5, atol=1e-6)
    doubled = {key: keras.ops.convert_to_tensor(2 * x) for key, x in values.items()}
    with standing_in(doubled):
        for result, array in zip(outputs(), expected, strict=True):
            factor = 4 if "basis" in matrices else 2
            np.testing.assert_allclose(result, factor * array, rtol=1e-5, atol=1e-6)


def test_tensors_stand_in_their_own_thread():
    layer, seen = layers.Dense(3), []
    with standing_in({(id(layer), "kernel"): 1.0}):
        other = threading.Thread(target=lambda: seen.append(stand_in(layer, "kernel")))
        other.start()
        other.join()
        assert stand_in(layer, "kernel") == 1.0
    assert seen == [None] == [stand_in(layer, "kernel")]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("group_size", [2, 6])
def test_one_entry_for_each_integer_or_group(axis, group_size):
    rng = np.random.default_rng(0)
    shape = (5, 6)
    groups = list(shape)
    groups[axis] = -(-shape[axis] // group_size)
    numbers = rng.integers(0, 256, shape).astype("uint8")
    scales, zeros = rng.normal(size=(2, *groups)).astype("float32")
    matrix = StoredMatrix(numbers, scales, zeros, 8, group_size, axis, (3, 5, 2), (1, 0, 2))
    values = matrix.values()
    for i, j in np.ndindex(*shape):
        group = (i // group_size, j) if axis == 0 else (i, j // group_size)
        entry = (j // 2, i, j % 2)
        assert matrix.arranged(numbers)[entry] == numbers[i, j]
        assert matrix.arranged(scales)[entry] == scales[group]
        assert values[entry] == (np.float32(numbers[i, j]) - zeros[group]) * scales[group]
    # One number for all takes no memory.
    assert (matrix.arranged(scales).strides[1] == 0) == (axis == 0 and group_size == 6)
