"""Layers of integers are the layers of Keras with rounded kernels."""

import threading

import keras
import numpy as np
import pytest
from conformance import assert_same_arrays, built, relative_error, saved_and_loaded, to_numpy
from keras import ops
from slow_cases import slow_but

from keras_small import compress
from keras_small.storage.low_rank_cells import LOW_RANK_CELLS
from keras_small.storage.quantized import QUANTIZED, quantized_kind, quantized_layer
from keras_tnattn import TokenEmbedding

RNG = np.random.default_rng(0)
L = keras.layers
# A layer of each class, and the shape of its inputs.
LAYERS = {
    "dense": (lambda: L.Dense(5, activation="tanh"), (4, 37)),
    "einsum": (lambda: L.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de"), (4, 5, 37)),
    "einsum_many_rows": (lambda: L.EinsumDense("abde,dec->abc", (None, 7)), (4, 5, 2, 19)),
    "einsum_columns_first": (lambda: L.EinsumDense("abc,dc->abd", (None, 7)), (4, 5, 37)),
    "einsum_axis_in_both": (lambda: L.EinsumDense("abc,bcd->abd", (5, 7)), (4, 5, 37)),
    "conv_1d": (lambda: L.Conv1D(5, 3, padding="causal", dilation_rate=2), (2, 9, 20)),
    "conv_2d": (lambda: L.Conv2D(6, (3, 2), strides=2, padding="same", groups=2), (2, 8, 7, 8)),
    "conv_3d": (lambda: L.Conv3D(3, 2, use_bias=False), (2, 4, 4, 4, 9)),
    "conv_1d_transpose": (lambda: L.Conv1DTranspose(5, 3, strides=2), (2, 9, 20)),
    "conv_2d_transpose": (lambda: L.Conv2DTranspose(5, 3, padding="same"), (2, 6, 5, 20)),
    "conv_3d_transpose": (lambda: L.Conv3DTranspose(2, 2), (2, 3, 4, 3, 20)),
    "depthwise_1d": (lambda: L.DepthwiseConv1D(3, depth_multiplier=2), (2, 9, 8)),
    "depthwise_2d": (lambda: L.DepthwiseConv2D(3, activation="relu"), (2, 8, 7, 8)),
    "separable_1d": (lambda: L.SeparableConv1D(5, 3), (2, 9, 20)),
    "separable_2d": (lambda: L.SeparableConv2D(5, 3, depth_multiplier=2), (2, 8, 7, 9)),
}
CELLS = {"simple_rnn": L.SimpleRNNCell, "lstm": L.LSTMCell, "gru": L.GRUCell}


def with_kernels_of(small, make, shape):
    """A layer of Keras whose kernels are those that a layer of integers restores."""
    layer = built(make, shape)
    names = small.kernel_names
    kernels = [id(getattr(layer, name)) for name in names]
    packed = {id(weight) for weight in small.packed_weights}
    others = iter(weight for weight in small.weights if id(weight) not in packed)
    for weight in layer.weights:
        if id(weight) in kernels:
            weight.assign(to_numpy(getattr(small, names[kernels.index(id(weight))])))
        else:
            weight.assign(to_numpy(next(others)))  # JAX would share the array
    return layer


def inputs_of(shape):
    return RNG.normal(size=shape).astype("float32")


def test_every_class_is_tested():
    kinds = {type(make()) for make, _ in LAYERS.values()} | set(CELLS.values())
    tables = {L.Embedding, L.ReversibleEmbedding, TokenEmbedding}
    assert kinds | tables | set(LOW_RANK_CELLS.values()) == set(QUANTIZED)


@pytest.mark.parametrize("name", LAYERS)
def test_is_the_layer_with_rounded_kernels(name):
    make, shape = LAYERS[name]
    layer, inputs = built(make, shape), inputs_of(shape)
    before, errors = layer.get_weights(), []
    for bits in (8, 4, 3):
        small = quantized_layer(layer, bits, group_size=16)
        assert small.name == layer.name
        assert isinstance(small, type(layer))
        expected = with_kernels_of(small, make, shape)(inputs)
        np.testing.assert_allclose(to_numpy(small(inputs)), to_numpy(expected), atol=1e-5)
        for kernel in small.kernel_names:
            assert ops.is_tensor(getattr(small, kernel))
            old, new = (to_numpy(getattr(x, kernel)) for x in (layer, small))
            errors.append(relative_error(new, old))
    assert_same_arrays(before, layer.get_weights())
    count = len(small.kernel_names)
    errors = np.reshape(errors, (3, count)).max(axis=1)
    assert (errors < [0.01, 0.12, 0.25]).all()
    assert (errors > [0.001, 0.02, 0.05]).all()


@pytest.mark.parametrize(("equation", "axis"), [("abc,dc->abd", 0), ("abc,cd->abd", 1)])
def test_large_weights_of_an_output_do_not_round_those_of_others(equation, axis):
    layer = built(lambda: L.EinsumDense(equation, (None, 37)), (4, 5, 37))
    kernel = np.moveaxis(to_numpy(layer.kernel).copy(), axis, 0)
    kernel[0] *= 1000
    layer.kernel.assign(np.moveaxis(kernel, 0, axis))
    found = np.moveaxis(to_numpy(quantized_layer(layer, 8).kernel), axis, 0)
    assert np.abs(found[1:] - kernel[1:]).max() < np.abs(kernel[1:]).max() / 100


@pytest.mark.parametrize("name", ["dense", "einsum_columns_first", "conv_2d", "separable_2d"])
def test_saves_and_loads(name, tmp_path):
    make, shape = LAYERS[name]
    inputs = inputs_of(shape)
    source = keras.Input(shape[1:])
    model = keras.Model(source, quantized_layer(built(make, shape), 4)(source))
    loaded = saved_and_loaded(model, inputs, tmp_path)
    weights = {w.path.split("/")[-1]: w for w in loaded.weights}
    assert not any(w.trainable for name, w in weights.items() if "bias" not in name)
    # Keras gets every attribute that `dir` names when it saves or loads: none restores a kernel.
    small = loaded.layers[-1]
    assert not set(small.kernel_names) & set(dir(small))


def test_bytes_are_few():
    layer = built(lambda: L.Dense(64, use_bias=False), (None, 128))
    small = quantized_layer(layer, 4, group_size=32)
    stored = sum(np.prod(w.shape) * np.dtype(w.dtype).itemsize for w in small.weights)
    assert stored == 64 * 64 + 4 * 64 + 2 * 64 + 4


def test_mixed_precision():
    layer = built(lambda: L.Conv1D(5, 3, dtype="mixed_float16"), (2, 9, 20))
    small = quantized_layer(layer, 8)
    inputs = inputs_of((2, 9, 20))
    outputs = small(inputs)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float16"
    assert small.kernel_largest.dtype == "float32"
    np.testing.assert_allclose(to_numpy(outputs), to_numpy(layer(inputs)), atol=0.06)


@pytest.mark.parametrize(
    "options", slow_but([{}], [{}, {"dropout": 0.3, "recurrent_dropout": 0.2}])
)
@pytest.mark.parametrize("name", slow_but(["lstm", "gru"], CELLS))
def test_recurrent_layers_run_on_cells_of_integers(name, options, tmp_path):
    def make():
        return CELLS[name](24, **options)

    shape, inputs = (2, 20), inputs_of((2, 5, 20))
    cell = built(make, shape)
    small = quantized_layer(cell, 4)
    same = with_kernels_of(small, make, shape)
    source = keras.Input((None, 20))
    for layers in ([small], [small, quantized_layer(built(make, (2, 24)), 8)]):
        cells = layers if len(layers) > 1 else layers[0]
        model = keras.Model(source, L.RNN(cells, return_sequences=True)(source))
        outputs = to_numpy(model(inputs))
        if len(layers) == 1:
            expected = L.RNN(same, return_sequences=True)(inputs)
            np.testing.assert_allclose(outputs, to_numpy(expected), atol=1e-5)
            # In a loop of one's own, too, and nothing of the loop before is left in it.
            states = small.get_initial_state(2)
            step, _ = small(inputs[:, 0], states)
            np.testing.assert_allclose(to_numpy(step), outputs[:, 0], atol=1e-5)
        saved_and_loaded(model, inputs, tmp_path)
    # Another thread may not reach the kernel of this one's loop.
    small.get_dropout_mask(inputs[:, 0])
    others = []
    thread = threading.Thread(target=lambda: others.append(small.kernel))
    thread.start()
    thread.join()
    assert others[0] is not small.kernel
    assert small.kernel is small.kernel
    small.reset_dropout_mask()
    # Training runs, through the dropout masks, and moves the biases alone.
    kernel = small.get_weights()
    model.compile("sgd", "mse")
    model.fit(inputs, np.ones((2, 5, 24)), epochs=2, verbose=0)
    for weight, old in zip(small.weights, kernel, strict=True):
        assert np.array_equal(to_numpy(weight), old) != weight.trainable


@pytest.mark.parametrize("group_size", [16, 64])
@pytest.mark.parametrize("kind", [L.Embedding, TokenEmbedding])
def test_a_table_of_integers_is_read_row_by_row(kind, group_size, tmp_path):
    layer = built(lambda: kind(50, 40, mask_zero=True), None)
    ids = RNG.integers(50, size=(3, 7))
    small = quantized_layer(layer, 4, group_size)
    table, approximation = to_numpy(layer.embeddings), to_numpy(small.embeddings)
    assert 0.02 < relative_error(approximation, table) < 0.15
    # Rows do not depend on one another: the scales are those of their own groups.
    np.testing.assert_allclose(to_numpy(small(ids)), approximation[ids], atol=1e-6)
    np.testing.assert_array_equal(to_numpy(small.compute_mask(ids)), ids != 0)
    model = keras.Sequential([keras.Input((7,), dtype="int32"), small])
    saved_and_loaded(model, ids, tmp_path)


class Subclass(L.ReversibleEmbedding):
    """Changes nothing, as that of keras-hub."""


@pytest.mark.parametrize("kind", [L.ReversibleEmbedding, Subclass])
@pytest.mark.parametrize("tied", [True, False])
def test_a_reversible_table(kind, tied):
    layer = built(lambda: kind(50, 40, tie_weights=tied), None)
    small = quantized_layer(layer, 4)
    ids, features = RNG.integers(50, size=(3, 7)), inputs_of((3, 7, 40))
    table = to_numpy(small.embeddings)
    np.testing.assert_allclose(to_numpy(small(ids)), table[ids], atol=1e-6)
    back = table.T if tied else to_numpy(small.reverse_embeddings)
    logits = to_numpy(small(features, reverse=True))
    np.testing.assert_allclose(logits, features @ back, rtol=1e-4, atol=1e-4)
    expected = to_numpy(layer(features, reverse=True))
    assert relative_error(logits, expected) < 0.15
    assert len(small.weights) == (4 if tied else 8)


@pytest.mark.parametrize(("alpha", "scale"), [(None, 1.0), (3.0, 1.5)])
def test_lora_trains_what_integers_cannot(alpha, scale):
    layer = built(lambda: L.Dense(5), (None, 37))
    inputs = inputs_of((4, 37))
    small = quantized_layer(layer, 4)
    before = to_numpy(small(inputs))
    small.enable_lora(2, alpha)
    np.testing.assert_array_equal(to_numpy(small(inputs)), before)
    small.lora_kernel_b.assign(np.ones((2, 5)))
    change = scale * inputs @ to_numpy(small.lora_kernel_a) @ np.ones((2, 5))
    np.testing.assert_allclose(to_numpy(small(inputs)), before + change, rtol=1e-4, atol=1e-4)
    names = {w.name for w in small.trainable_weights}
    assert names == {"lora_kernel_a", "lora_kernel_b", "bias"}


def test_a_moment_reduces_the_error_of_the_outputs():
    layer = built(lambda: L.Dense(20, use_bias=False), (None, 40))
    inputs = RNG.normal(size=(200, 5)) @ RNG.normal(size=(5, 40))
    moment = inputs.T @ inputs / 200
    errors = [
        np.linalg.norm(to_numpy(quantized_layer(layer, 3, 16, moments)(inputs) - layer(inputs)))
        for moments in (None, {"kernel": moment})
    ]
    assert errors[1] < 0.5 * errors[0]


def test_keras_quantize_passes_it_over():
    small = quantized_layer(built(lambda: L.Dense(5), (None, 37)), 4)
    with pytest.raises(NotImplementedError, match="4-bit integers already"):
        small.quantize("int8")


def test_errors_name_what_was_given():
    with pytest.raises(ValueError, match="classes Dense, Conv1D"):
        quantized_layer(L.BatchNormalization(), 4)
    with pytest.raises(ValueError, match="not built"):
        quantized_layer(L.Dense(5, name="late"), 4)
    with pytest.raises(ValueError, match="bits=5"):
        quantized_layer(built(lambda: L.Dense(5), (None, 37)), 5)
    layer = built(lambda: L.Dense(8), (None, 8))
    layer.quantize("int8")
    with pytest.raises(ValueError, match="int8"):
        quantized_layer(layer, 4)
    with pytest.raises(AttributeError, match="kernel"):
        QUANTIZED[L.DepthwiseConv2D](3, bits=4).kernel  # noqa: B018


@keras.saving.register_keras_serializable(package="test_quantized")
class PositionEmbedding(L.Layer):
    """The layer of keras-hub, as far as it matters here."""

    def __init__(self, sequence_length, initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.sequence_length, self.initializer = sequence_length, initializer

    def build(self, inputs_shape):
        self.position_embeddings = self.add_weight(
            name="embeddings", shape=[self.sequence_length, inputs_shape[-1]]
        )
        self.built = True

    def call(self, inputs, start_index=0, positions=None):
        table = ops.convert_to_tensor(self.position_embeddings)
        if positions is not None:
            rows = ops.take(table, positions, axis=0)
        else:
            rows = ops.slice(table, (start_index, 0), ops.shape(inputs)[-2:])
        return ops.broadcast_to(rows, ops.shape(inputs))

    def get_config(self):
        names = ("sequence_length", "initializer")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def test_positions_of_keras_hub_are_known_by_what_they_are(tmp_path):
    layer, inputs = (
        built(lambda: PositionEmbedding(30, name="here"), (None, 7, 24)),
        inputs_of((2, 7, 24)),
    )
    small = quantized_layer(layer, 8)
    assert (type(small).__name__, small.name) == ("QuantizedPositionEmbedding", "here")
    for options in ({}, {"start_index": 5}, {"positions": np.array([3, 1, 2, 9, 9, 0, 29])}):
        expected, outputs = (to_numpy(x(inputs, **options)) for x in (layer, small))
        assert 0 < np.abs(outputs - expected).max() < 0.01
    # On JAX an unknown length cannot be compared with 30.
    source = keras.Input((7 if keras.backend.backend() == "jax" else None, 24))
    model = keras.Model(source, source + PositionEmbedding(30)(source))
    result = compress(model, 4, data=inputs, bits=4, verbose=0)
    saved_and_loaded(result.model, inputs, tmp_path)
    outputs = result.model.predict(inputs, verbose=0)
    np.testing.assert_allclose(outputs, model.predict(inputs, verbose=0), atol=0.2)
    # A layer that is otherwise is something else.
    layer.sequence_length = 29
    assert quantized_kind(layer) is None
