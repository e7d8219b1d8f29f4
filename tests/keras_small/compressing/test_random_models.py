"""Random models: the original stays, errors and sizes are as reported, and files load."""

import contextlib
import os
import re
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
from compressing import outputs_of
from conformance import assert_same_arrays, relative_error

from keras_small import Data, compress
from keras_small.storage.sizes import byte_count

COUNT = 200 if keras.backend.backend() == "tensorflow" else 60
FOLDER = os.path.dirname(__file__)
L = keras.layers


@keras.saving.register_keras_serializable(package="test_random_models")
class Scaled(L.Layer):
    """Keeps a number outside its weights, and layers in a list and in an attribute."""

    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        self.size, self.scale = size, 1.0
        self.blocks = [L.Dense(size, "tanh", name="first"), L.Dense(size, name="second")]
        self.normalization = L.BatchNormalization()

    def build(self, input_shape):
        for block in self.blocks:
            block.build(input_shape)
        self.normalization.build(input_shape)

    def call(self, inputs):
        x = inputs
        for block in self.blocks:
            x = block(x)
        return self.scale * self.normalization(x)

    def compute_output_shape(self, input_shape):
        return input_shape

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["scale"] = np.array(self.scale)

    def load_own_variables(self, store):
        self.scale = float(store["scale"][()])


@keras.saving.register_keras_serializable(package="test_random_models")
class Wrapped(keras.Model):
    """A subclassed model around a layer."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def build(self, input_shape):
        if not self.inner.built:
            self.inner.build(input_shape)

    def call(self, inputs):
        return self.inner(inputs)

    def compute_output_shape(self, input_shape):
        return self.inner.compute_output_shape(input_shape)

    def get_config(self):
        return {"inner": keras.saving.serialize_keras_object(self.inner), "name": self.name}

    @classmethod
    def from_config(cls, config):
        inner = keras.saving.deserialize_keras_object(config.pop("inner"))
        return cls(inner, **config)


def scaled(size, scale):
    layer = Scaled(size)
    layer.scale = scale
    return layer


def embedded(rng, steps, size):
    """Ids and their rows; some ids are numbers that a table turns into others."""
    inputs = keras.Input((steps,), dtype="int32", name="ids")
    x, masks = inputs, rng.random() < 0.3
    if rng.random() < 0.3 and keras.backend.backend() == "tensorflow":
        x = L.IntegerLookup(vocabulary=rng.permutation(59) + 1)(x)
    return inputs, L.Embedding(60, size, mask_zero=masks)(x)


def random_model(rng):
    """A model of ids, rows or both, with nested, shared, recurrent and convolutional parts."""
    steps, size = int(rng.integers(4, 9)), int(rng.choice([8, 16, 24]))
    inputs, parts = [], []
    if rng.random() < 0.7:
        ids, rows = embedded(rng, steps, size)
        inputs.append(ids)
        parts.append(rows)
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
    image = L.Reshape((steps, size // 4, 4))
    float16 = rng.choice(["mixed_bfloat16", "mixed_float16", "bfloat16", "float16"])
    blocks = {
        "attention": lambda x: L.MultiHeadAttention(2, 8)(x, x),
        "bidirectional": lambda x: L.Bidirectional(L.LSTM(size // 2, return_sequences=True))(x),
        "convolution": lambda x: L.Conv1D(size, 3, padding="same")(x),
        "dropout": lambda x: L.BatchNormalization()(L.Dropout(0.5)(x)),
        "each": lambda x: L.TimeDistributed(L.Dense(size, "relu"))(x),
        "einsum": lambda x: L.EinsumDense("btc,cd->btd", (None, size), bias_axes="d")(x),
        "gru": lambda x: L.GRU(size, return_sequences=True)(x),
        "images": lambda x: L.Reshape((steps, size))(
            L.Conv2D(4, 3, padding="same", activation="relu")(
                L.DepthwiseConv2D(3, padding="same")(image(x))
            )
        ),
        "mixed": lambda x: L.Dense(size, dtype=float16)(x),
        "nested": nested,
        "norm": lambda x: L.LayerNormalization()(x),
        "scaled": scaled(size, float(rng.uniform(1, 3))),
        "sequential": lambda x: keras.Sequential([L.Dense(2 * size, "gelu"), L.Dense(size)])(x),
        "shared": shared,
        "stacked": lambda x: L.RNN([L.GRUCell(size), L.SimpleRNNCell(size)], True)(x),
        "subclassed": Wrapped(keras.Sequential([L.Dense(2 * size, "relu"), L.Dense(size)])),
        "transposed": lambda x: L.Conv1DTranspose(size, 3, padding="same")(x),
    }
    for name in rng.choice(sorted(blocks), int(rng.integers(2, 5))):
        y = blocks[name](x)
        x = L.Add()([L.Activation("linear", dtype="float32")(y), x]) if rng.random() < 0.5 else y
        x = L.Activation("linear", dtype="float32")(x)
    x = L.GlobalAveragePooling1D()(x)
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


def random_translator(rng):
    """A model of two sequences: an encoder that returns states, and a decoder that starts there."""
    steps, size = rng.integers(3, 7, 2), int(rng.choice([8, 16]))
    inputs = [
        keras.Input((n,), dtype="int32", name=name) for n, name in zip(steps, "ab", strict=True)
    ]
    masks = bool(rng.random() < 0.5)
    x, y = (L.Embedding(60, size, mask_zero=masks)(ids) for ids in inputs)
    kind = {"lstm": L.LSTM, "gru": L.GRU, "simple": L.SimpleRNN}[
        rng.choice(["lstm", "gru", "simple"])
    ]
    options = {"return_sequences": True, "return_state": True}
    if rng.random() < 0.3:
        cells = [[L.LSTMCell(size), L.GRUCell(size)] for _ in range(2)]
        memory, *states = L.RNN(cells[0], **options)(x)
        decoder = L.RNN(cells[1], **options)
    elif rng.random() < 0.4:
        memory, *states = L.Bidirectional(kind(size, **options))(x)
        half = len(states) // 2
        pairs = zip(states[:half], states[half:], strict=True)
        states = [L.Concatenate()(list(pair)) for pair in pairs]
        decoder = kind(2 * size, **options)
    else:
        memory, *states = kind(size, **options)(x)
        decoder = kind(size, **options)
    y, *ends = decoder(y, initial_state=states)
    if rng.random() < 0.5:
        y = L.Concatenate()([y, L.Attention()([y, memory])])
    if rng.random() < 0.3:
        y = L.Conv1D(size, 3, padding="causal")(y)
    outputs = L.TimeDistributed(L.Dense(60, "softmax"))(y)
    if rng.random() < 0.5:
        outputs = {"words": outputs, "states": keras.tree.flatten(ends)}
    data = [rng.integers(0 if masks else 1, 60, (24, n)).astype("int32") for n in steps]
    for ids in data:
        ids[:, 0] = 1  # no sequence is all padding
    return keras.Model(inputs, outputs), data


def keras_loads(model, folder):
    """Whether Keras loads a model: of a layer that it shares with an inner one, it may not."""
    model.save(folder / "model.keras")
    with contextlib.suppress(ValueError, UserWarning):
        keras.models.load_model(folder / "model.keras")
        return True
    return False


def smaller(model, data, bits):
    """Compresses to 1.3, or as far as the error says that it is possible; also returns the goal."""
    options = {"data": Data(data, batch_size=24), "bits": bits, "verbose": 0}
    try:
        return 1.3, compress(model, 1.3, **options)
    except ValueError as error:
        limit = re.match(r"Expected a factor of at most ([0-9.]+): ", str(error))
        if limit is None:
            raise
    target = float(limit[1])
    assert 1 < target < 1.3
    return target, compress(model, target, **options)


CODE = """
    import sys, keras, numpy as np
    import keras_small
    folder = sys.argv[1]
    sys.path.insert(0, sys.argv[2])
    import test_random_models  # the classes
    model = keras.models.load_model(folder + "/small.keras")
    saved = dict(np.load(folder + "/data.npz"))
    expected = saved.pop("expected")
    data = [saved[name] for name in sorted(saved)]
    outputs = keras.tree.flatten(model(data if len(data) > 1 else data[0]))
    outputs = np.concatenate([to_numpy(y).ravel() for y in outputs])
    np.testing.assert_allclose(outputs, expected, rtol=1e-3, atol=1e-4)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")
@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_model(seed, tmp_path):
    rng = np.random.default_rng(seed)
    keras.utils.set_random_seed(seed)
    model, data = (random_translator if seed % 4 == 3 else random_model)(rng)
    before, expected = model.get_weights(), outputs_of(model, data)
    bits = rng.choice([None, 32, 8, 4])
    loads = keras_loads(model, tmp_path)
    target, result = 0.0, None
    # It may refuse a model that Keras cannot load.
    with contextlib.nullcontext() if loads else contextlib.suppress(ValueError):
        target, result = smaller(model, data, bits)
    assert_same_arrays(before, model.get_weights())
    np.testing.assert_array_equal(outputs_of(model, data), expected)
    if result is None:
        return
    actual = outputs_of(result.model, data)
    error = pytest.approx(relative_error(actual, expected), rel=1e-3, abs=1e-6)
    assert result.report.error == error
    assert result.report.ratio >= target
    assert result.report.bytes_after == byte_count(result.model)
    if not loads:
        return
    result.model.save(tmp_path / "small.keras")
    loaded = keras.models.load_model(tmp_path / "small.keras")
    assert byte_count(loaded) == result.report.bytes_after
    np.testing.assert_allclose(outputs_of(loaded, data), actual, rtol=1e-3, atol=1e-4)
    if seed % 20 == 0:
        several = data if isinstance(data, list) else [data]
        arrays = {str(n): array for n, array in enumerate(several)}
        np.savez(tmp_path / "data.npz", expected=actual, **arrays)
        command = [sys.executable, "-c", textwrap.dedent(CODE), str(tmp_path), FOLDER]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(command, check=True, env=environment)
