"""What the model's outputs respond to, for models whose Jacobian is known."""

import keras
import numpy as np
import pytest

from keras_tnattn.compression import calibration, sensitivity

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 50, (40, 1)).astype("int32")
TABLE = RNG.uniform(-0.05, 0.05, (50, 6)).astype("float32")


def measured(kernel, activation):
    """A lookup and a dense map: the Jacobian of the logits by a row is the kernel, transposed."""
    layer = keras.layers.Embedding(50, len(kernel))
    dense = keras.layers.Dense(kernel.shape[1], activation, use_bias=False)
    model = keras.Sequential([keras.Input((1,), dtype="int32"), layer, dense])
    layer.set_weights([TABLE])
    dense.set_weights([kernel])
    seen = {"table": calibration.Seen(batch=IDS)}
    outputs = [keras.ops.convert_to_numpy(model(IDS))]
    sensitivity.measure_sensitivity(model, {"table": layer}, IDS, seen, outputs)
    return seen["table"]


def test_a_model_that_is_sure_is_as_sensitive_as_its_logits():
    kernel = 30 * RNG.normal(size=(6, 3)).astype("float32")
    kernel -= kernel.mean(axis=1, keepdims=True)
    logits, probabilities = (
        measured(kernel, activation).sensitivity for activation in (None, "softmax")
    )
    assert probabilities == pytest.approx(logits, rel=0.02)
