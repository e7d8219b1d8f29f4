"""Layers whose weights other code reads stay as they are, and the report says why."""

import keras
import numpy as np
import pytest
from conformance import to_numpy
from keras import ops

from keras_tnattn import compress

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 100, (16, 6)).astype("int32")
ROWS = RNG.normal(size=(64, 32)).astype("float32")


@keras.saving.register_keras_serializable(package="test_readers")
class Tied(keras.Model):
    """Returns logits by the table of its embedding."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.table = keras.layers.Embedding(100, 32)
        self.dense = keras.layers.Dense(32)

    def call(self, ids):
        return ops.matmul(self.dense(self.table(ids)), ops.transpose(self.table.embeddings))


@keras.saving.register_keras_serializable(package="test_readers")
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


def called(model, inputs):
    model(inputs)
    return model


def reasons(result):
    return {row.path: row.reason for row in result.report.layers if row.format == "kept"}


@pytest.mark.parametrize("bits", [None, 8])
def test_tied_logits_stay(bits):
    model = called(Tied(), IDS)
    result = compress(model, target=1.1, bits=bits, data=IDS, verbose=0)
    assert reasons(result)["table"] == "other code reads its embeddings"
    assert "dense" not in reasons(result)
    expected, actual = to_numpy(model(IDS)), to_numpy(result.model(IDS))
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert error < 0.9
    assert result.report.error == pytest.approx(error, rel=1e-4)


def test_tied_autoencoders_and_penalties_stay():
    result = compress(called(Autoencoder(), ROWS), target=1.2, data=ROWS, verbose=0)
    found = reasons(result)
    assert found["encoder"] == found["penalized"] == "other code reads its kernel"
    assert "other" not in found


def test_layers_in_wrappers_that_hold_their_weights_stay():
    model = keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.SpectralNormalization(keras.layers.Dense(32, name="inner")),
            keras.layers.Dense(64, name="free"),
        ]
    )
    result = compress(model, target=1.2, data=ROWS, verbose=0)
    (reason,) = [r for path, r in reasons(result).items() if path.endswith("layer")]
    assert "SpectralNormalization" in reason
    assert next(row for row in result.report.layers if row.path == "free").format == "low_rank"


def test_reversible_embeddings_are_replaced_and_both_uses_count():
    keras.utils.set_random_seed(0)
    ids = keras.Input((6,), dtype="int32")
    table = keras.layers.ReversibleEmbedding(100, 32, name="table")
    model = keras.Model(ids, table(keras.layers.Dense(32)(table(ids)), reverse=True))
    result = compress(model, target=1.5, data=IDS, filters="table", verbose=0)
    (row,) = [row for row in result.report.layers if row.path == "table"]
    assert row.format == "low_rank"
    expected, actual = to_numpy(model(IDS)), to_numpy(result.model(IDS))
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert result.report.error == pytest.approx(error, rel=1e-4)
    assert error < 0.9
    # Logits of ids that never occur are as near as the others: their rows count, too.
    few = np.zeros_like(IDS)
    small = compress(model, target=1.5, data=few, verbose=0).model
    expected, actual = to_numpy(model(few))[0, 0], to_numpy(small(few))[0, 0]
    assert np.linalg.norm(actual - expected) < 0.9 * np.linalg.norm(expected)
