"""Random models: the original stays, errors and sizes are as reported, and files load."""

import os
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
from conformance import to_numpy

from keras_tnattn import compress
from keras_tnattn.compression.candidates import byte_count

COUNT = 200 if keras.backend.backend() == "tensorflow" else 60
L = keras.layers


def random_model(rng):
    """A model of ids, rows or both, with nested, shared, recurrent and convolutional parts."""
    steps, size = int(rng.integers(4, 9)), int(rng.choice([8, 16, 24]))
    inputs, parts = [], []
    if rng.random() < 0.7:
        inputs.append(keras.Input((steps,), dtype="int32", name="ids"))
        parts.append(L.Embedding(60, size, mask_zero=rng.random() < 0.3)(inputs[-1]))
    if not parts or rng.random() < 0.4:
        inputs.append(keras.Input((steps, size), name="rows"))
        x = inputs[-1]
        if rng.random() < 0.5:
            normalization = L.Normalization()
            normalization.adapt(rng.normal(3, 2, (64, steps, size)))
            x = normalization(x)
        parts.append(L.Dense(size)(x))
    x = parts[0] if len(parts) == 1 else L.Add()(parts)
    shared = L.Dense(size, rng.choice(["relu", "tanh", "linear"]))
    inner_input = keras.Input((steps, size))
    nested = keras.Model(inner_input, L.Dense(size)(shared(inner_input)))
    blocks = {
        "attention": lambda x: L.MultiHeadAttention(2, 8)(x, x),
        "bidirectional": lambda x: L.Bidirectional(L.LSTM(size // 2, return_sequences=True))(x),
        "convolution": lambda x: L.Conv1D(size, 3, padding="same")(x),
        "each": lambda x: L.TimeDistributed(L.Dense(size, "relu"))(x),
        "einsum": lambda x: L.EinsumDense("btc,cd->btd", (None, size), bias_axes="d")(x),
        "gru": lambda x: L.GRU(size, return_sequences=True)(x),
        "mixed": lambda x: L.Dense(size, dtype="mixed_bfloat16")(x),
        "nested": nested,
        "norm": lambda x: L.LayerNormalization()(x),
        "sequential": lambda x: keras.Sequential([L.Dense(2 * size, "gelu"), L.Dense(size)])(x),
        "shared": shared,
    }
    for name in rng.choice(sorted(blocks), int(rng.integers(2, 5))):
        y = blocks[name](x)
        x = L.Add()([L.Activation("linear", dtype="float32")(y), x]) if rng.random() < 0.5 else y
    x = L.GlobalAveragePooling1D()(L.Activation("linear", dtype="float32")(x))
    outputs = [L.Dense(3, "softmax" if rng.random() < 0.5 else None)(x)]
    if rng.random() < 0.3:
        outputs.append(L.Dense(2)(x))
    rows = {
        "ids": rng.integers(1, 60, (24, steps)).astype("int32"),
        "rows": rng.normal(3, 2, (24, steps, size)).astype("float32"),
    }
    data = [rows[x.name] for x in inputs]
    if len(data) > 1:
        return keras.Model(inputs, outputs), data
    return keras.Model(inputs[0], outputs), data[0]


def outputs_of(model, data):
    return np.concatenate([to_numpy(y).ravel() for y in keras.tree.flatten(model(data))])


CODE = """
    import sys, keras, numpy as np
    import keras_tnattn
    folder = sys.argv[1]
    model = keras.models.load_model(folder + "/small.keras")
    saved = dict(np.load(folder + "/data.npz"))
    expected = saved.pop("expected")
    data = [saved[name] for name in sorted(saved)]
    outputs = keras.tree.flatten(model(data if len(data) > 1 else data[0]))
    outputs = np.concatenate([keras.ops.convert_to_numpy(y).ravel() for y in outputs])
    np.testing.assert_allclose(outputs, expected, rtol=1e-3, atol=1e-4)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_model(seed, tmp_path):
    rng = np.random.default_rng(seed)
    keras.utils.set_random_seed(seed)
    model, data = random_model(rng)
    before, expected = model.get_weights(), outputs_of(model, data)
    bits = rng.choice([None, 8, 4])
    result = compress(model, target=1.3, data=data, bits=bits, batch_size=24, verbose=0)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    np.testing.assert_array_equal(outputs_of(model, data), expected)
    actual = outputs_of(result.model, data)
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert result.report.error == pytest.approx(error, rel=1e-3, abs=1e-6)
    assert result.report.ratio >= 1.3
    assert result.report.bytes_after == byte_count(result.model)
    result.model.save(tmp_path / "small.keras")
    loaded = keras.models.load_model(tmp_path / "small.keras")
    assert byte_count(loaded) == result.report.bytes_after
    np.testing.assert_allclose(outputs_of(loaded, data), actual, rtol=1e-3, atol=1e-4)
    if seed % 20 == 0:
        several = data if isinstance(data, list) else [data]
        arrays = {str(n): array for n, array in enumerate(several)}
        np.savez(tmp_path / "data.npz", expected=actual, **arrays)
        command = [sys.executable, "-c", textwrap.dedent(CODE), str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(command, check=True, env=environment)
