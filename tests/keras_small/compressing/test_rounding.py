"""Integers are trained as floats, fake-quantized with the existing scales (straight-through)."""

import keras
import numpy as np
import pytest
from compressing import error_of
from conformance import saved_and_loaded, to_numpy
from keras import ops
from slow_cases import slow_but

from keras_small import compress
from keras_small.building.rounding import roundings, start_from_integers
from keras_small.storage import AdaptiveEmbedding, QuantizedLowRankEmbedding
from keras_small.storage.quantized import quantized_layer
from keras_tnattn.layers import LowRankEmbedding

RNG = np.random.default_rng(0)
L = keras.layers
IDS = RNG.integers(1, 300, size=(96, 9))


def model_of(*layers):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((9,), dtype="int32"), table(), *layers])


def table():
    return L.Embedding(300, 24, embeddings_initializer=keras.initializers.RandomNormal(0, 1))


MODELS = {
    "dense": lambda: model_of(L.Dense(32, "relu"), L.Flatten(), L.Dense(5)),
    "conv": lambda: model_of(L.Conv1D(32, 3, activation="relu"), L.Flatten(), L.Dense(5)),
    "lstm": lambda: model_of(L.LSTM(24), L.Dense(5)),
    "attention": lambda: attention(),
}


def attention():
    ids = keras.Input((9,), dtype="int32")
    x = table()(ids)
    x = L.MultiHeadAttention(2, 12)(x, x)
    return keras.Model(ids, L.Dense(5)(L.Flatten()(x)))


@pytest.mark.parametrize("name", slow_but(["lstm"], MODELS))
def test_healing_trains_the_integers(name, tmp_path):
    model = MODELS[name]()
    result = compress(model, data=IDS, bits=3, formats=(), verbose=0)
    before, first = result.model, error_of(model, result.model, IDS)
    scales = {w.path: to_numpy(w) for w in before.weights if w.name.endswith("scales")}
    losses = result.heal(IDS, epochs=8, learning_rate=2e-3)
    assert losses[-1] < losses[0]
    # 0.71 to 0.87 on the three backends.
    assert error_of(model, result.model, IDS) < 0.92 * first
    assert result.report.error == pytest.approx(error_of(model, result.model, IDS), rel=1e-3)
    changed = [
        not np.array_equal(to_numpy(old), to_numpy(new))
        for old, new in zip(before.weights, result.model.weights, strict=True)
        if old.name.endswith("integers")
    ]
    assert any(changed)
    assert len(changed) >= 3
    for new, old in zip(
        (w for w in result.model.weights if w.name.endswith("scales")), scales.values(), strict=True
    ):
        np.testing.assert_array_equal(to_numpy(new), old)
    # Another round goes on from there, and files have what is in memory.
    second = error_of(model, result.model, IDS)
    result.heal(IDS, epochs=2, learning_rate=1e-3)
    assert error_of(model, result.model, IDS) <= second
    saved_and_loaded(result.model, IDS, tmp_path)


def test_rounding_has_the_values_of_the_integers_and_the_gradient_of_the_floats():
    layer = L.Dense(6)
    layer.build((None, 20))
    small = quantized_layer(layer, 3, 16)
    (kernel,) = roundings(layer, small)
    before = to_numpy(layer.kernel)
    start_from_integers([kernel])
    restored = to_numpy(layer.kernel)
    np.testing.assert_allclose(restored, to_numpy(small.kernel), atol=1e-6)
    assert not np.array_equal(restored, before)
    # Restored floats are their own roundings; others become the nearest that the scales allow.
    again = small.rounded_kernel("kernel", ops.convert_to_tensor(restored))
    np.testing.assert_allclose(to_numpy(again), restored, atol=1e-6)
    approximation = to_numpy(small.rounded_kernel("kernel", ops.convert_to_tensor(before)))
    for group in (slice(0, 16), slice(16, 20)):
        for unit in range(6):
            levels = np.unique(np.concatenate([approximation[group, unit], restored[group, unit]]))
            distance = np.abs(approximation[group, unit] - before[group, unit])
            assert (distance <= np.abs(before[group, unit, None] - levels).min(axis=1) + 1e-6).all()
    small.assign_rounded("kernel", before)
    np.testing.assert_allclose(to_numpy(small.kernel), approximation, atol=1e-6)


def test_blocks_of_rows_are_trained_as_integers(tmp_path):
    words = L.Embedding(2000, 24, embeddings_initializer=keras.initializers.RandomNormal(0, 1))
    layers = [keras.Input((9,), dtype="int32"), words, L.GlobalAveragePooling1D(), L.Dense(5)]
    model = keras.Sequential(layers)
    counts = RNG.permutation(np.geomspace(1, 500, 2000))
    ids = RNG.choice(2000, size=(400, 9), p=counts / counts.sum())
    result = compress(model, 14, data=ids, bits=2, formats="adaptive", verbose=0)
    before, first = result.model, result.report.error
    table = before.layers[0]
    assert isinstance(table, AdaptiveEmbedding)
    result.heal(ids, epochs=6, learning_rate=1e-2)
    assert result.report.error < 0.9 * first
    healed = result.model.layers[0]
    for old, new in zip(table.packed_blocks, healed.packed_blocks, strict=True):
        assert not np.array_equal(to_numpy(old[0]), to_numpy(new[0]))
        for part in (1, 2):  # scales stay
            np.testing.assert_array_equal(to_numpy(old[part]), to_numpy(new[part]))
    bases = [to_numpy(layer.packed_basis.weights[0]) for layer in (table, healed)]
    assert not np.array_equal(*bases)
    np.testing.assert_array_equal(to_numpy(table.positions), to_numpy(healed.positions))
    saved_and_loaded(result.model, ids, tmp_path)


@pytest.mark.parametrize(
    ("layer", "quantize", "bits", "shapes"),
    [
        (
            AdaptiveEmbedding(20, 6, (8, 12), (6, 2)),
            AdaptiveEmbedding.quantized,
            (3, 2),
            [(8, 6), (12, 2)],
        ),
        (
            LowRankEmbedding(20, 6, rank=5),
            QuantizedLowRankEmbedding.from_layer,
            4,
            [(20, 5), (5, 6)],
        ),
    ],
)
def test_the_rounding_of_a_table_is_that_of_its_integers(layer, quantize, bits, shapes):
    layer.build()
    small = quantize(layer, bits)
    kernels = roundings(layer, small)
    assert [kernel.variable.shape for kernel in kernels] == shapes
    for kernel in kernels:
        block = to_numpy(kernel.variable)
        rounded = to_numpy(kernel.rounded_floats(ops.convert_to_tensor(block)))
        np.testing.assert_allclose(rounded, to_numpy(kernel.restored_floats()), atol=1e-6)
        kernel.assign(-block)
        rounded = to_numpy(kernel.rounded_floats(ops.convert_to_tensor(-block)))
        np.testing.assert_allclose(to_numpy(kernel.restored_floats()), rounded, atol=1e-6)


def test_hidden_outputs_are_targets():
    def middle(model):
        layer = model.layers[1]
        return to_numpy(keras.Model(model.inputs[0], layer.output)(IDS))

    model = MODELS["conv"]()
    name = model.layers[1].name
    errors = []
    for outputs in ((), name):
        result = compress(model, data=IDS, bits=2, formats=(), verbose=0)
        result.heal(IDS, epochs=4, learning_rate=3e-3, outputs=outputs)
        errors.append(np.linalg.norm(middle(result.model) - middle(model)))
    assert errors[1] < errors[0]
    with pytest.raises(ValueError, match=rf"{name}.*outputs=\['nothing'\]"):
        result.heal(IDS, outputs="nothing")
    with pytest.raises(ValueError, match=r"label_weight=0.5"):
        result.heal((IDS, IDS[:, 0]), outputs=name, label_weight=0.5)
