"""Layers of low rank equal the products they stand for, and stand in for trained layers."""

import keras
import numpy as np
import pytest
from conformance import relative_error, saved_and_loaded, to_numpy
from slow_cases import slow_but

from keras_small.storage import LowRankDense, LowRankEinsumDense, QuantizedLowRankEmbedding
from keras_small.storage.low_rank_einsum_dense import split_equation
from keras_tnattn.layers import LowRankEmbedding, TTDense, TTEmbedding

RNG = np.random.default_rng(0)


def kernel_of(layer):
    inner, outer = to_numpy(layer.inner.kernel), to_numpy(layer.outer.kernel)
    return inner.reshape(-1, layer.rank) @ outer.reshape(layer.rank, -1)


def test_dense_equals_the_product():
    layer = LowRankDense(5, 3, activation="relu", bias_initializer="ones")
    x = RNG.normal(size=(2, 4, 6)).astype("float32")
    outputs = to_numpy(layer(x))
    expected = np.maximum(x @ kernel_of(layer) + 1, 0)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def test_a_seed_draws_other_numbers_for_each_factor():
    seeded = [
        LowRankDense(4, 4, kernel_initializer=keras.initializers.GlorotNormal(seed=3))
        for _ in range(2)
    ]
    for layer in seeded:
        layer.build((None, 4))
    one, other = ([to_numpy(w) for w in layer.weights[:2]] for layer in seeded)
    np.testing.assert_array_equal(one, other)
    assert not np.isclose(one[0], one[1]).any()


@pytest.mark.parametrize(
    ("equation", "input_shape", "output_shape", "bias_axes"),
    [
        ("abc,cde->abde", (2, 3, 6), (None, 4, 5), "de"),
        ("abcd,cde->abe", (2, 3, 4, 5), (None, 6), "e"),
        ("...x,xy->...y", (2, 3, 6), 5, "y"),
        ("ab,bc->ac", (2, 6), 5, None),
        ("abc,dc->adb", (2, 3, 6), (4, None), None),
    ],
)
def test_einsum_equals_its_full_kernel(equation, input_shape, output_shape, bias_axes):
    layer = LowRankEinsumDense(
        equation, output_shape, 2, bias_axes=bias_axes, bias_initializer="ones"
    )
    x = RNG.normal(size=input_shape).astype("float32")
    outputs = to_numpy(layer(x))
    kernel = equation.split("->")[0].split(",")[1]
    letters = [equations.split("->")[0].split(",")[1] for equations in layer.equations]
    factors = [to_numpy(layer.inner.kernel), to_numpy(layer.outer.kernel)]
    full_kernel = np.einsum(f"{letters[0]},{letters[1]}->{kernel}", *factors)
    expected = np.einsum(equation, x, full_kernel) + (1 if bias_axes else 0)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    # Known sizes of the input are known of the output, too; Keras' layer leaves some unknown.
    full = keras.layers.EinsumDense(equation, output_shape, bias_axes=bias_axes)
    unknown = keras.KerasTensor((None, *input_shape[1:]))
    for size, size_of_keras in zip(layer(unknown).shape, full(unknown).shape, strict=True):
        assert size_of_keras in {None, size}
    for size, real in zip(layer(unknown).shape, outputs.shape, strict=True):
        assert size in {None, real}
    assert outputs.shape == tuple(full(x).shape)


@pytest.mark.parametrize("equation", ["abc,acd->abd", "ab,cd->abcd", "ab,b->a"])
def test_an_equation_that_cannot_be_split_is_refused(equation):
    with pytest.raises(ValueError, match="axes that are summed over"):
        split_equation(equation)


@pytest.mark.parametrize("rank", [1, 4, 16])
def test_kernel_has_the_variance_of_the_initializer(rank):
    layer = LowRankDense(64, rank)
    layer.build((None, 64))
    assert 0.6 < kernel_of(layer).var() / (2 / 128) < 1.6
    embedding = LowRankEmbedding(1000, 32, rank)
    table = to_numpy(embedding(np.arange(1000)))
    assert 0.5 < table.var() / (0.1**2 / 12) < 1.7


def test_from_dense_at_full_rank_is_the_layer():
    dense = keras.layers.Dense(5, "tanh", bias_initializer="ones")
    x = RNG.normal(size=(7, 6)).astype("float32")
    expected = to_numpy(dense(x))
    layer = LowRankDense.from_dense(dense, rank=99)
    assert layer.rank == 5
    np.testing.assert_allclose(to_numpy(layer(x)), expected, rtol=1e-5, atol=1e-5)


def test_inputs_make_truncation_better_on_them():
    # Inputs live mostly in three of twelve directions.
    directions = RNG.normal(size=(3, 12))
    x = RNG.normal(size=(500, 3)) @ directions + 0.01 * RNG.normal(size=(500, 12))
    dense = keras.layers.Dense(10, use_bias=False, kernel_initializer="random_normal")
    expected = to_numpy(dense(x.astype("float32")))

    def error(layer):
        return relative_error(to_numpy(layer(x.astype("float32"))), expected)

    plain = LowRankDense.from_dense(dense, rank=3)
    aware = LowRankDense.from_dense(dense, rank=3, inputs=x)
    assert error(aware) < 0.1 * error(plain)
    np.testing.assert_allclose(aware.relative_error, error(aware), rtol=1e-2)
    assert LowRankDense.from_dense(dense, tolerance=0.05, inputs=x).rank == 3


def test_from_einsum_dense():
    dense = keras.layers.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de")
    x = RNG.normal(size=(4, 5, 6)).astype("float32")
    expected = to_numpy(dense(x))
    layer = LowRankEinsumDense.from_einsum_dense(dense, rank=6)
    np.testing.assert_allclose(to_numpy(layer(x)), expected, rtol=1e-4, atol=1e-5)
    assert LowRankEinsumDense.from_einsum_dense(dense, rank=2).relative_error > 0.01


def test_embedding_looks_up_and_reverses():
    layer = LowRankEmbedding(11, 6, 3, mask_zero=True)
    ids = RNG.integers(0, 11, (2, 5))
    rows = to_numpy(layer(ids))
    table = to_numpy(layer.coordinates) @ to_numpy(layer.basis)
    np.testing.assert_allclose(rows, table[ids], rtol=1e-5, atol=1e-7)
    x = RNG.normal(size=(2, 6)).astype("float32")
    np.testing.assert_allclose(to_numpy(layer(x, reverse=True)), x @ table.T, rtol=1e-4, atol=1e-5)
    assert to_numpy(layer.compute_mask(ids)).tolist() == (ids != 0).tolist()


def test_from_embedding_weighs_rows():
    dense = keras.layers.Embedding(50, 8, "random_normal", mask_zero=True)
    dense.build()
    full = to_numpy(dense(np.arange(50)))
    weights = np.where(np.arange(50) < 4, 100.0, 0.01)
    layer = LowRankEmbedding.from_embedding(dense, rank=4, row_weights=weights)
    approximation = to_numpy(layer(np.arange(50)))
    # Four rows that count span four dimensions.
    assert np.abs(approximation - full)[:4].max() < 0.05 * np.abs(approximation - full)[4:].max()
    squared = weights[:, None] * (approximation - full) ** 2
    expected = np.sqrt(squared.sum() / (weights[:, None] * full**2).sum())
    np.testing.assert_allclose(layer.relative_error, expected, rtol=1e-3)
    assert layer.mask_zero


@pytest.mark.parametrize(("bits", "error"), [(8, 0.01), (4, 0.15)])
def test_quantized_embedding(bits, error, tmp_path):
    layer = LowRankEmbedding(300, 16, 9)
    ids = np.arange(300)
    full = to_numpy(layer(ids))
    small = QuantizedLowRankEmbedding.from_layer(layer, bits)
    approximation = to_numpy(small(ids))
    assert 1e-4 < relative_error(approximation, full) < error
    assert small.packed.weights[0].shape == (300, 9 if bits == 8 else 5)
    model = keras.Sequential([keras.Input((None,), dtype="int32"), small])
    saved_and_loaded(model, ids[None], tmp_path)


@pytest.mark.parametrize("mode", slow_but(["int8"], ["int8", "int4"]))
def test_keras_quantizes_both_factors(mode, tmp_path):
    layer = LowRankDense(24, 16)
    model = keras.Sequential([keras.Input((32,)), layer])
    x = RNG.normal(size=(8, 32)).astype("float32")
    expected = model.predict(x, verbose=0)
    for part in (layer.inner, layer.outer):
        part.quantize(mode)
    model.predict_function = None  # which has compiled the floats
    outputs = model.predict(x, verbose=0)
    assert 1e-4 < relative_error(outputs, expected) < (0.05 if mode == "int8" else 0.4)
    saved_and_loaded(model, x, tmp_path)


OPTIONS = {"kernel_regularizer": "l2", "bias_regularizer": "l2", "activity_regularizer": "l1"}
OPTIONS |= {"bias_constraint": "non_neg", "trainable": False}


@pytest.mark.parametrize(
    ("full", "convert"),
    [
        (keras.layers.Dense(64, **OPTIONS), LowRankDense.from_dense),
        (keras.layers.Dense(64, **OPTIONS), TTDense.from_dense),
        (
            keras.layers.EinsumDense("ab,bc->ac", 64, bias_axes="c", **OPTIONS),
            LowRankEinsumDense.from_einsum_dense,
        ),
    ],
)
def test_options_of_a_dense_layer_are_kept(full, convert):
    full.build((None, 64))
    full.kernel_constraint = keras.constraints.NonNeg()
    config = convert(full, tolerance=0.5).get_config()
    for name in OPTIONS:
        assert config[name] == full.get_config()[name], name
    assert config["kernel_constraint"] is None


@pytest.mark.parametrize("kind", [LowRankEmbedding, TTEmbedding])
def test_options_of_an_embedding_are_kept(kind):
    options = {"embeddings_regularizer": "l2", "activity_regularizer": "l1"}
    options |= {"mask_zero": True, "trainable": False}
    full = keras.layers.Embedding(64, 8, embeddings_constraint="non_neg", **options)
    full.build()
    config = kind.from_embedding(full, tolerance=0.5).get_config()
    for name in options:
        assert config[name] == full.get_config()[name], name
    assert config["embeddings_constraint"] is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: LowRankEmbedding(20, 8, 3, mask_zero=True),
        lambda: TTEmbedding(20, 8, tt_ranks=3, mask_zero=True),
    ],
    ids=["low rank", "tensor train"],
)
def test_tied_weights_keep_the_mask_of_the_ids(make):
    embedding = make()
    ids = keras.Input((None,), dtype="int32")
    logits = embedding(embedding(ids), reverse=True)
    model = keras.Model(ids, logits)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rows = np.array([[3, 5, 0, 0], [4, 0, 0, 0]])
    # Scores of padding count nothing: other labels there leave the loss as it is.
    others = np.where(rows == 0, 7, rows)
    losses = [model.evaluate(rows, labels, verbose=0) for labels in (rows, others)]
    assert losses[0] == losses[1]
    assert model.evaluate(rows, np.array([[9, 5, 0, 0], [4, 0, 0, 0]]), verbose=0) != losses[0]
    # Ids that are floats have a mask, too.
    assert to_numpy(embedding.compute_mask(rows)).tolist() == (rows != 0).tolist()
    floats = rows.astype("float32")
    embedding(floats)
    assert to_numpy(embedding.compute_mask(floats)).tolist() == (rows != 0).tolist()


@pytest.mark.parametrize(
    ("convert", "options", "kind", "arguments"),
    [
        (LowRankDense.from_dense, {"rank": 1}, "Dense", (4,)),
        (TTDense.from_dense, {"tt_ranks": 1}, "Dense", (4,)),
        (LowRankEinsumDense.from_einsum_dense, {"rank": 1}, "EinsumDense", ("ab,bc->ac", 4)),
        (LowRankEmbedding.from_embedding, {"rank": 1}, "Embedding", (8, 4)),
        (TTEmbedding.from_embedding, {"tt_ranks": 1}, "Embedding", (8, 4)),
    ],
)
def test_quantized_layers_are_refused(convert, options, kind, arguments):
    layer = getattr(keras.layers, kind)(*arguments)
    layer.build() if kind == "Embedding" else layer.build((None, 8))
    layer.quantize("int8")
    with pytest.raises(ValueError, match=r"float weights.*quantization_mode='int8'"):
        convert(layer, **options)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(50), r"20 row_weights.*shape \(50,\)"),
        (np.ones(1), r"20 row_weights.*shape \(1,\)"),
        (-np.ones(20), "from -1.0 to -1.0"),
        (np.zeros(20), "from 0.0 to 0.0"),
        (np.full(20, np.nan), "from nan"),
    ],
)
def test_row_weights_fit_the_table(weights, message):
    dense = keras.layers.Embedding(20, 8)
    dense.build()
    with pytest.raises(ValueError, match=message):
        LowRankEmbedding.from_embedding(dense, rank=2, row_weights=weights)
    with pytest.raises(ValueError, match=message):
        TTEmbedding.from_embedding(dense, tt_ranks=2, row_weights=weights)


@pytest.mark.parametrize(
    ("order", "reorder_rows", "message"),
    [
        (np.arange(20), False, "reorder_rows=False"),
        (np.zeros(20, int), True, "0 to 19 once"),
        (np.arange(19), True, r"shape \(19,\)"),
    ],
)
def test_an_order_has_every_row_once(order, reorder_rows, message):
    dense = keras.layers.Embedding(20, 8)
    dense.build()
    with pytest.raises(ValueError, match=message):
        TTEmbedding.from_embedding(dense, tt_ranks=2, order=order, reorder_rows=reorder_rows)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LowRankDense(5, 3, activation="relu"),
        lambda: LowRankEinsumDense("ab,bcd->acd", (5, 2), 3, bias_axes="d"),
    ],
)
def test_lora_corrects_both_factors(make, tmp_path):
    layer, x = make(), RNG.normal(size=(4, 6)).astype("float32")
    before = to_numpy(layer(x))
    kernel = kernel_of(layer)
    layer.enable_lora(2, lora_alpha=4)
    np.testing.assert_array_equal(to_numpy(layer(x)), before)
    assert {w.name for w in layer.trainable_weights} == {"lora_kernel_a", "lora_kernel_b", "bias"}
    assert layer.inner.lora_kernel_a.shape[-1] == 2
    for part in (layer.inner, layer.outer):
        part.lora_kernel_b.assign(RNG.normal(size=part.lora_kernel_b.shape))
    changed = to_numpy(layer(x))
    corrected = kernel_of(layer)  # Keras' `kernel` includes the correction
    assert np.abs(corrected - kernel).max() > 0.1
    expected = np.reshape(x @ corrected, before.shape)
    if layer.activation is keras.activations.relu:
        expected = np.maximum(expected, 0)
    np.testing.assert_allclose(changed, expected, rtol=1e-4, atol=1e-5)
    model = keras.Sequential([keras.Input((6,)), layer])
    saved_and_loaded(model, x, tmp_path)


def test_lora_has_at_most_the_rank_of_the_layer():
    layer = LowRankDense(5, 3)
    layer.build((None, 6))
    layer.enable_lora(8)
    assert layer.inner.lora_kernel_a.shape == (6, 3)
