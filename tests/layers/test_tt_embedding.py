"""The tensor-train embedding equals the table its cores stand for, entry by entry."""

import keras
import numpy as np
import pytest
from conformance import relative_error, to_numpy
from keras import ops

from keras_small.storage import AdaptiveEmbedding
from keras_tnattn.layers import TTEmbedding


def table_of(layer):
    """Forms every row from its digits, in float64, sharing no code with the layer."""
    cores = [to_numpy(core).astype("float64") for core in layer.cores]
    digits = np.ndindex(*(core.shape[1] for core in cores))
    rows = []
    for row in digits:
        row_of_cores = [core[:, digit] for core, digit in zip(cores, row, strict=True)]
        entries = []
        for columns in np.ndindex(*(core.shape[2] for core in cores)):
            product = np.eye(1)
            for matrix, column in zip(row_of_cores, columns, strict=True):
                product = product @ matrix[:, column]
            entries.append(product.item())
        rows.append(entries)
    return np.array(rows[: layer.input_dim])


# Unequal factors and ranks: any swapped pair of axes changes a number.
def make(**options):
    return TTEmbedding(22, 30, (2, 3, 4), (5, 2, 3), (4, 6), **options)


def built(layer):
    layer.build()
    return layer


@pytest.mark.parametrize("shape", [(5,), (3, 4), (0, 4), (2, 1, 3), (200, 30)])
def test_looks_up_the_rows_of_the_table(shape):
    layer = built(make())
    ids = np.random.default_rng(0).integers(0, 22, shape)
    np.testing.assert_allclose(to_numpy(layer(ids)), table_of(layer)[ids], rtol=1e-5, atol=1e-7)


def adaptive(**options):
    return AdaptiveEmbedding(22, 30, (4, 7, 6), (5, 5, 2), **options)


@pytest.mark.parametrize("reorder_rows", [False, True])
@pytest.mark.parametrize("kind", [make, adaptive])
def test_ids_out_of_range_are_treated_as_those_of_an_embedding(kind, reorder_rows):
    # 24 rows in the tensor train, 22 of them with an id.
    layer = built(kind(reorder_rows=reorder_rows))
    embedding = built(keras.layers.Embedding(22, 30))
    # As many ids, because the rounding depends on their number.
    rows, expected = (to_numpy(layer(np.array(ids))) for ids in ([-1, -22], [21, 0]))
    np.testing.assert_allclose(rows, expected, rtol=1e-5)
    for ids in ([22], [23], [24], [1000], [-23]):
        for other in (embedding, layer):
            if keras.backend.backend() == "jax":
                assert np.isnan(to_numpy(other(np.array(ids)))).all() or ids == [-23]
            else:
                with pytest.raises(Exception, match=r"(?i)not in \[0|out of range|out of bounds"):
                    other(np.array(ids))


@pytest.mark.parametrize("reorder", [False, True])
def test_reverse_gives_the_logits_of_the_table(reorder):
    layer = built(make(reorder_rows=reorder))
    if reorder:
        layer.positions.assign(np.random.default_rng(1).permutation(22))
    table = to_numpy(layer(np.arange(22)))
    x = np.random.default_rng(0).normal(size=(2, 3, 30)).astype("float32")
    logits = to_numpy(layer(x, reverse=True))
    np.testing.assert_allclose(logits, x @ table.T, rtol=1e-4, atol=1e-5)
    assert layer(keras.KerasTensor((None, 3, 30)), reverse=True).shape == (None, 3, 22)


def test_gradient_adds_up_over_repeated_ids():
    ids = np.array([[3, 3, 3, 7]])

    def trained(ids, weights):
        keras.utils.set_random_seed(0)
        layer = make()
        model = keras.Sequential([keras.Input((ids.shape[1],), dtype="int32"), layer])
        model.compile(keras.optimizers.SGD(1.0), "mse")
        # The gradient of a sum over tokens, each counted by its weight.
        model.fit(ids, np.ones((*ids.shape, 30)), sample_weight=weights, verbose=0)
        return layer.get_weights()

    repeated = trained(ids, np.ones((1, 4)) / 4)
    counted = trained(np.array([[3, 7]]), np.array([[3.0, 1.0]]) / 8)
    for a, b in zip(repeated, counted, strict=True):
        # Keras averages over the tokens: 4 in one case, 2 in the other.
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_half_precision_adds_up_over_many_ids():
    def core(dtype):
        keras.utils.set_random_seed(0)
        layer = TTEmbedding(4, 6, (4,), (6,), (), dtype=dtype)
        model = keras.Sequential([keras.Input((4096,), dtype="int32"), layer])
        model.compile(keras.optimizers.SGD(100.0), "mse")
        before = layer.get_weights()[0]
        model.fit(np.ones((1, 4096)), np.ones((1, 4096, 6)), verbose=0)
        return layer.get_weights()[0] - before

    assert relative_error(core("mixed_bfloat16"), core("float32")) < 0.05


def test_adam_steps_a_repeated_id_like_any_other():
    layer = TTEmbedding(4, 6, (4,), (6,), ())
    model = keras.Sequential([keras.Input((8,), dtype="int32"), layer])
    model.compile(keras.optimizers.Adam(0.1, epsilon=1e-12), "mse")
    before = to_numpy(layer(np.arange(4)))
    model.fit(np.array([[1, 1, 1, 1, 1, 1, 1, 2]]), np.ones((1, 8, 6)), verbose=0)
    moved = np.abs(to_numpy(layer(np.arange(4))) - before)
    # Adam's first step is the learning rate, whatever the gradient; rows not looked up stay.
    np.testing.assert_allclose(moved[1:3], 0.1, rtol=1e-3)
    assert (moved[[0, 3]] == 0).all()


@pytest.mark.parametrize("ranks", [1, 4, 16])
@pytest.mark.parametrize("initializer", ["uniform", keras.initializers.RandomNormal(stddev=0.3)])
def test_rows_have_the_variance_of_the_initializer(ranks, initializer):
    layer = built(TTEmbedding(1000, 64, tt_ranks=ranks, embeddings_initializer=initializer))
    expected = 0.1**2 / 12 if initializer == "uniform" else 0.09
    table = to_numpy(layer(np.arange(1000)))
    assert abs(table.var() / expected - 1) < 0.15


def test_defaults_cover_any_size():
    layer = built(TTEmbedding(20_011, 60))
    assert layer.factors == ((26, 28, 28), (3, 4, 5))
    assert layer.unused_rows == 26 * 28 * 28 - 20_011
    assert f"{layer.unused_rows:,} rows never used" in layer.describe()
    assert layer.count_params() == 26 * 3 * 16 + 16 * 28 * 4 * 16 + 16 * 28 * 5


def test_mask():
    layer = make(mask_zero=True)
    assert to_numpy(layer.compute_mask(np.array([[0, 5]]))).tolist() == [[False, True]]
    assert make().compute_mask(np.array([[0, 5]])) is None


def test_from_embedding_keeps_the_table():
    dense = keras.layers.Embedding(22, 30, mask_zero=True)
    dense.build()
    layer = TTEmbedding.from_embedding(dense, (2, 3, 4), (5, 2, 3), tolerance=0.0)
    ids = np.arange(22)
    np.testing.assert_allclose(to_numpy(layer(ids)), to_numpy(dense(ids)), atol=1e-6)
    assert layer.relative_error < 1e-6
    assert layer.mask_zero


@pytest.mark.parametrize("reorder", [False, True])
def test_from_embedding_states_its_error(reorder):
    dense = keras.layers.Embedding(200, 16, "random_normal")
    dense.build()
    layer = TTEmbedding.from_embedding(dense, tt_ranks=6, reorder_rows=reorder)
    full = to_numpy(dense(np.arange(200))).astype("float64")
    error = relative_error(to_numpy(layer(np.arange(200))), full)
    assert 0.1 < error < 1
    np.testing.assert_allclose(layer.relative_error, error, rtol=1e-3)


def test_weights_move_the_error_to_rare_rows():
    rng = np.random.default_rng(0)
    dense = keras.layers.Embedding(60, 12, "random_normal")
    dense.build()
    full = to_numpy(dense(np.arange(60)))
    weights = np.where(rng.random(60) < 0.2, 100.0, 0.1)

    def errors(**options):
        layer = TTEmbedding.from_embedding(dense, (4, 15), (1, 12), 2, **options)
        squared = ((full - to_numpy(layer(np.arange(60)))) ** 2).sum(axis=1)
        return squared[weights > 1].sum(), layer.relative_error, squared, weights

    plain, _, _, _ = errors()
    weighted, stated, squared, _ = errors(row_weights=weights)
    assert weighted < 0.5 * plain
    expected = np.sqrt((weights * squared).sum() / (weights[:, None] * full**2).sum())
    np.testing.assert_allclose(stated, expected, rtol=1e-3)


def test_similar_rows_made_neighbors_take_a_smaller_rank():
    # Ten groups of equal rows, in random order.
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(16, 8))[rng.permutation(np.repeat(np.arange(16), 16))]
    dense = keras.layers.Embedding(256, 8)
    dense.build()
    dense.set_weights([groups])
    options = {"tt_input_shape": (16, 16), "tt_output_shape": (8, 1), "tt_ranks": 1}
    assert TTEmbedding.from_embedding(dense, **options).relative_error > 0.5
    layer = TTEmbedding.from_embedding(dense, **options, reorder_rows=True)
    assert layer.relative_error < 1e-6
    np.testing.assert_allclose(to_numpy(layer(np.arange(256))), groups, atol=1e-5)


def test_float_ids_are_exact_in_float16():
    layer = TTEmbedding(5000, 8, tt_ranks=2, dtype="mixed_float16")
    ids = np.array([2049, 4999])
    rows = to_numpy(layer(ops.convert_to_tensor(ids.astype("float32"))))
    np.testing.assert_array_equal(rows, to_numpy(layer(ids)))
    assert rows.dtype == "float16"
