"""What the model's outputs respond to, for models whose Jacobian is known."""

import keras
import numpy as np
import pytest

from keras_tnattn import compress
from keras_tnattn.compression import calibration, sensitivity

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 50, (40, 1)).astype("int32")
TABLE = RNG.uniform(-0.05, 0.05, (50, 6)).astype("float32")


def measured(measure, kernel, activation):
    """A lookup and a dense map: the Jacobian of the logits by a row is the kernel, transposed."""
    layer = keras.layers.Embedding(50, len(kernel))
    dense = keras.layers.Dense(kernel.shape[1], activation, use_bias=False)
    model = keras.Sequential([keras.Input((1,), dtype="int32"), layer, dense])
    layer.set_weights([TABLE])
    dense.set_weights([kernel])
    seen = {"table": calibration.Seen(batch=IDS)}
    outputs = [keras.ops.convert_to_numpy(model(IDS))]
    measure(model, {"table": layer}, IDS, seen, outputs)
    return seen["table"]


@pytest.mark.parametrize("activation", [None, "softmax"])
def test_responses_are_those_of_the_logits(activation):
    kernel = RNG.normal(size=(6, 3)).astype("float32")
    # Softmax does not see what all logits have in common.
    seen_by = kernel - kernel.mean(axis=1, keepdims=True) if activation else kernel
    expected = seen_by @ seen_by.T
    response = measured(sensitivity.measure_responses, kernel, activation).response
    np.testing.assert_allclose(response, 6 * expected / np.trace(expected), atol=1e-2)


def test_a_model_that_is_sure_is_as_sensitive_as_its_logits():
    kernel = 30 * RNG.normal(size=(6, 3)).astype("float32")
    kernel -= kernel.mean(axis=1, keepdims=True)
    logits, probabilities = (
        measured(sensitivity.measure_sensitivity, kernel, activation).sensitivity
        for activation in (None, "softmax")
    )
    assert probabilities == pytest.approx(logits, rel=0.02)


def test_directions_without_a_response_are_given_up_first():
    table = keras.layers.Embedding(600, 16, name="table")
    out = keras.layers.Dense(5, use_bias=False)
    model = keras.Sequential([keras.Input((1,), dtype="int32"), table, out])
    # The outputs depend on two of the sixteen directions of the rows.
    out.set_weights([(RNG.normal(size=(16, 2)) @ RNG.normal(size=(2, 5))).astype("float32")])
    ids = np.arange(600, dtype="int32")[:, None]
    result = compress(model, target=4.0, data=ids, formats="low_rank", filters="table")
    (row,) = [row for row in result.report.layers if row.path == "table"]
    assert row.error > 0.5
    outputs, small = (keras.ops.convert_to_numpy(m(ids)) for m in (model, result.model))
    assert np.linalg.norm(small - outputs) < 0.05 * np.linalg.norm(outputs)
