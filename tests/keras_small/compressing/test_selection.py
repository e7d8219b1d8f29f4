"""Layers whose weights other code reads stay as they are, and the report says why."""

import keras
import numpy as np
import pytest
from compressing import compress, error_of
from conformance import relative_error, saved_and_loaded, to_numpy
from keras import ops

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 100, (16, 6)).astype("int32")
ROWS = RNG.normal(size=(64, 32)).astype("float32")


@keras.saving.register_keras_serializable(package="test_selection")
class Tied(keras.Model):
    """Returns logits by the table of its embedding."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.table = keras.layers.Embedding(100, 32)
        self.dense = keras.layers.Dense(32)

    def call(self, ids):
        return ops.matmul(self.dense(self.table(ids)), ops.transpose(self.table.embeddings))


@keras.saving.register_keras_serializable(package="test_selection")
class Autoencoder(keras.Model):
    """Decodes by the transposed kernel of its encoder, which is penalized in training."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.encoder = keras.layers.Dense(32)
        self.other = keras.layers.Dense(32)
        self.penalized = keras.layers.Dense(32)

    def call(self, rows, training=False):
        if training:
            self.add_loss(ops.sum(ops.square(self.penalized.kernel)))
        x = self.penalized(self.other(self.encoder(rows)))
        return ops.matmul(x, ops.transpose(self.encoder.kernel))


@keras.saving.register_keras_serializable(package="test_selection")
class Regularized(keras.Model):
    """Reads a kernel only when its losses are collected."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.regularized, self.other = keras.layers.Dense(32), keras.layers.Dense(32)

    def call(self, rows):
        return self.other(self.regularized(rows))

    @property
    def losses(self):
        return [ops.sum(ops.abs(self.regularized.kernel))]


def called(model, inputs):
    model(inputs)
    return model


def reasons(result):
    return {row.path: row.reason for row in result.report.layers if row.format == "kept"}


@pytest.mark.parametrize("bits", [32, 8])
def test_tied_logits_stay(bits):
    model = called(Tied(), IDS)
    result = compress(model, 1.1, bits=bits, data=IDS, verbose=0)
    assert reasons(result)["table"] == "other code reads its embeddings"
    assert "dense" not in reasons(result)
    error = error_of(model, result.model, IDS)
    assert error < 0.9
    assert result.report.error == pytest.approx(error, rel=1e-4)


def test_tied_autoencoders_and_penalties_stay():
    result = compress(called(Autoencoder(), ROWS), 1.2, data=ROWS, verbose=0)
    found = reasons(result)
    assert found["encoder"] == found["penalized"] == "other code reads its kernel"
    assert "other" not in found


def test_a_kernel_that_only_a_loss_reads_stays():
    result = compress(called(Regularized(), ROWS), 1.2, data=ROWS, verbose=0)
    assert reasons(result) == {"regularized": "other code reads its kernel"}


def test_layers_in_wrappers_that_hold_their_weights_stay():
    model = keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.SpectralNormalization(keras.layers.Dense(32, name="inner")),
            keras.layers.Dense(64, name="free"),
        ]
    )
    result = compress(model, 1.2, data=ROWS, verbose=0)
    (reason,) = [r for path, r in reasons(result).items() if path.endswith("layer")]
    assert "SpectralNormalization" in reason
    assert next(row for row in result.report.layers if row.path == "free").format == "low_rank"


def test_reversible_embeddings_are_replaced_and_both_uses_count():
    ids = keras.Input((6,), dtype="int32")
    table = keras.layers.ReversibleEmbedding(100, 32, name="table")
    model = keras.Model(ids, table(keras.layers.Dense(32)(table(ids)), reverse=True))
    result = compress(model, 1.5, data=IDS, filters="table", verbose=0)
    (row,) = [row for row in result.report.layers if row.path == "table"]
    assert row.format == "low_rank"
    error = error_of(model, result.model, IDS)
    assert result.report.error == pytest.approx(error, rel=1e-4)
    assert error < 0.9
    # Logits of ids that never occur are as near as the others: their rows count, too.
    few = np.zeros_like(IDS)
    small = compress(model, 1.5, data=few, verbose=0).model
    expected, actual = to_numpy(model(few))[0, 0], to_numpy(small(few))[0, 0]
    assert relative_error(actual, expected) < 0.9


@pytest.mark.parametrize(
    "options",
    [
        {"tie_weights": False},
        {"mask_zero": True},
        {"logit_soft_cap": 0.1},
        {"tie_weights": False, "mask_zero": True},
    ],
)
def test_reversible_embeddings_with_options_become_integers(options, tmp_path):
    ids = keras.Input((6,), dtype="int32")
    table = keras.layers.ReversibleEmbedding(100, 32, name="table", **options)
    model = keras.Model(ids, table(keras.layers.Dense(32)(table(ids)), reverse=True))
    result = compress(model, bits=4, data=IDS, filters="table", verbose=0)
    (row,) = [row for row in result.report.layers if row.path == "table"]
    assert (row.format, row.bits) == ("dense", 4)
    assert row.bytes_after < row.bytes_before / 5
    # About 15 levels for numbers of a group, uniform: a step over its size.
    assert 0.01 < row.error < 0.1
    (estimate,) = {error for size, error, _ in row.curve if size == row.bytes_after}
    assert estimate == pytest.approx(row.error, rel=0.3)
    small = result.model.get_layer("table")
    approximation = to_numpy(small.embeddings)
    back = approximation.T if table.tie_weights else to_numpy(small.reverse_embeddings)
    cap = table.logit_soft_cap
    features = np.random.default_rng(0).normal(size=(5, 32)).astype("float32")
    logits = features @ back
    logits = logits if cap is None else cap * np.tanh(logits / cap)
    np.testing.assert_allclose(to_numpy(small(features, reverse=True)), logits, atol=1e-5)
    error = error_of(model, result.model, IDS)
    assert result.report.error == pytest.approx(error, rel=1e-4)
    assert error < 0.15
    saved_and_loaded(result.model, IDS, tmp_path)
    # Without integers there is no format that computes the same.
    (row,) = [
        row
        for row in compress(model, 1.05, data=IDS, verbose=0).report.layers
        if row.path == "table"
    ]
    assert row.format == "kept"


def test_the_dtype_of_logits_is_kept():
    table = keras.layers.ReversibleEmbedding(100, 32, reverse_dtype="float32", dtype="bfloat16")
    ids = keras.Input((6,), dtype="int32")
    model = keras.Model(ids, table(table(ids), reverse=True))
    result = compress(model, 1.5, data=IDS, verbose=0)
    assert {row.format for row in result.report.layers} == {"low_rank"}
    assert keras.backend.standardize_dtype(result.model(IDS).dtype) == "float32"
