"""The rows of an adaptive embedding are those of its blocks, as floats and as integers."""

import keras
import numpy as np
import pytest
from conformance import saved_and_loaded, to_numpy

from keras_small.storage import AdaptiveEmbedding, even_levels
from keras_small.storage.adaptive_embedding import basis_bytes, position_bytes, restored_basis
from keras_small.storage.sizes import byte_count

RNG = np.random.default_rng(0)
ROWS, RANKS = (4, 7, 6), (5, 5, 2)


def make(**options):
    layer = AdaptiveEmbedding(22, 6, ROWS, RANKS, **options)
    layer.build()
    if layer.reorder_rows:
        layer.assign_positions(np.random.default_rng(1).permutation(22))
    return layer


def positions_of(layer):
    if not layer.reorder_rows:
        return np.arange(layer.input_dim)
    return to_numpy(layer.positions).astype("int64") @ 256 ** np.arange(layer.positions.shape[1])


def table_of(layer, blocks, basis):
    """Forms every row from its block, in float64."""
    positions, table = positions_of(layer), np.zeros((layer.input_dim, layer.output_dim))
    start = 0
    for block in blocks:
        for i, row in enumerate(block.astype("float64")):
            table[positions == start + i] = row @ basis[: len(row)].astype("float64")
        start += len(block)
    return table


def parts_of(layer):
    return [to_numpy(block) for block in layer.blocks], to_numpy(layer.basis)


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (0, 4), (2, 1, 3), (200, 30)])
@pytest.mark.parametrize("reorder", [False, True])
def test_looks_up_the_rows_of_the_blocks(shape, reorder):
    layer = make(reorder_rows=reorder)
    ids = np.asarray(RNG.integers(0, 22, shape))
    expected = table_of(layer, *parts_of(layer))
    assert (expected == 0).all(axis=1).sum() == 22 - sum(ROWS)
    np.testing.assert_allclose(to_numpy(layer(ids)), expected[ids], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bits", [None, (8, 4, 2), (3, 6, 3)])
@pytest.mark.parametrize("reorder", [False, True])
def test_integers_are_those_of_the_rows_and_of_the_basis(bits, reorder, tmp_path):
    layer = make(reorder_rows=reorder, mask_zero=True)
    blocks, basis = parts_of(layer)
    if bits is not None:
        layer = layer.quantized(bits)
        lengths = np.square(basis).sum(axis=1)
        blocks = [
            even_levels.rounded_rows(block, width, lengths[: block.shape[1]])
            for block, width in zip(blocks, bits, strict=True)
        ]
        basis = restored_basis(basis)
        size = sum(
            rows * even_levels.row_bytes(rank, width) + 4
            for rows, rank, width in zip(ROWS, RANKS, bits, strict=True)
        )
        size += basis_bytes(5, 6) + (22 * position_bytes(22) if reorder else 0)
        assert byte_count(layer) == size
        assert not layer.trainable_weights
    expected, ids = table_of(layer, blocks, basis), np.arange(22)
    np.testing.assert_allclose(to_numpy(layer(ids)), expected, rtol=1e-4, atol=1e-5)
    x = RNG.normal(size=(2, 3, 6)).astype("float32")
    logits = to_numpy(layer(x, reverse=True))
    np.testing.assert_allclose(logits, x @ expected.T, rtol=1e-4, atol=1e-5)
    assert layer(keras.KerasTensor((None, 3, 6)), reverse=True).shape == (None, 3, 22)
    model = keras.Sequential([keras.Input((None,), dtype="int32"), layer])
    loaded = saved_and_loaded(model, ids[None], tmp_path)
    assert loaded.layers[-1].mask_zero


def test_adam_steps_a_repeated_id_like_any_other():
    layer = AdaptiveEmbedding(4, 6, (3, 1), (6, 2))
    model = keras.Sequential([keras.Input((8,), dtype="int32"), layer])
    model.compile(keras.optimizers.Adam(0.1, epsilon=1e-12), "mse")
    before = to_numpy(layer.blocks[0])
    model.fit(np.array([[1, 1, 1, 1, 1, 1, 1, 2]]), np.ones((1, 8, 6)), verbose=0)
    moved = np.abs(to_numpy(layer.blocks[0]) - before)
    # Adam's first step is the learning rate, whatever the gradient; rows not looked up stay.
    np.testing.assert_allclose(moved[1:], 0.1, rtol=1e-3)
    assert (moved[0] == 0).all()


@pytest.mark.parametrize("initializer", ["uniform", keras.initializers.RandomNormal(stddev=0.3)])
def test_rows_have_the_variance_of_the_initializer(initializer):
    layer = AdaptiveEmbedding(1000, 64, (500, 500), (40, 10), embeddings_initializer=initializer)
    table = to_numpy(layer(np.arange(1000)))
    expected = 0.1**2 / 12 if initializer == "uniform" else 0.09
    for part in (table[:500], table[500:]):
        assert abs(part.var() / expected - 1) < 0.25


def test_positions_of_many_ids():
    layer = AdaptiveEmbedding(70_000, 2, (66_000,), (1,), reorder_rows=True)
    layer.build()
    assert tuple(layer.positions.shape) == (70_000, 3)
    ids = np.array([0, 257, 65_535, 65_536, 65_999, 66_000, 69_999])
    blocks, basis = parts_of(layer)
    expected = np.concatenate([blocks[0][ids[:5]] @ basis, np.zeros((2, 2))])
    np.testing.assert_allclose(to_numpy(layer(ids)), expected, rtol=1e-5)
    order = np.random.default_rng(0).permutation(70_000)
    layer.assign_positions(order)
    np.testing.assert_array_equal(positions_of(layer), order)


def test_half_precision():
    layer = make(dtype="mixed_float16", reorder_rows=True)
    rows = to_numpy(layer(np.arange(22)))
    assert rows.dtype == "float16"
    np.testing.assert_allclose(rows, table_of(layer, *parts_of(layer)), rtol=2e-2, atol=1e-3)
    floats = AdaptiveEmbedding(5000, 2, (5000,), (1,), dtype="mixed_float16")
    ids = np.array([2049, 4999])
    np.testing.assert_array_equal(to_numpy(floats(ids.astype("float32"))), to_numpy(floats(ids)))


def test_only_built_floats_are_quantized():
    with pytest.raises(ValueError, match="built=False"):
        AdaptiveEmbedding(22, 6, (4,), (4,)).quantized((4,))
    with pytest.raises(ValueError, match=r"block_bits=\(4, 4, 4\)"):
        make().quantized((4, 4, 4)).quantized((2, 2, 2))
