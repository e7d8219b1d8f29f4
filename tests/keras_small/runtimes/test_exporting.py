"""SavedModels, ONNX and LiteRT files of numeric models, run and compared with the model."""

import contextlib
from pathlib import Path
from typing import ClassVar

import keras
import numpy as np
import pytest
from conformance import relative_error
from exported_files import run
from slow_cases import slow_but

from keras_small import compress, export
from keras_small.asked.inputs import example_of
from keras_small.formats import chains, low_rank
from keras_small.formats.recurrent import quantize_cells
from keras_small.runtimes import file_costs
from keras_small.runtimes.computation import Expected, minimum_exact
from keras_small.runtimes.exporting import FORMS, write_file
from keras_small.storage import (
    AdaptiveEmbedding,
    QuantizedLowRankEmbedding,
    QuantizedTTEmbedding,
    convolution_factors,
)
from keras_small.storage.layer_chain import chain_of
from keras_small.storage.quantized import quantized_layer
from keras_small.storage.recurrent import on_other_cells
from keras_small.survey.calibration import Statistics
from keras_tnattn.layers import GraphTensorNetwork, LowRankEmbedding, TTDense, TTEmbedding
from keras_tnattn.models import language_model, text_classifier
from keras_tnattn_runtime.folders import partial_folder
from keras_tnattn_runtime.layout import file_sizes

BACKEND = keras.backend.backend()
SUFFIXES = {form.name: suffix for suffix, form in FORMS.items()}
BACKENDS = {form.name: tuple(form.writers) for form in FORMS.values()}
NEEDS = {
    "SavedModel": "tensorflow",
    "ONNX": "onnxruntime",
    "LiteRT": "ai_edge_litert",
    "OpenVINO": "openvino",
}
IDS = np.random.default_rng(0).integers(1, 30, (3, 9)).astype("int32")
IDS[0, 5:] = 0
# Converters warn of their own libraries.
pytestmark = pytest.mark.filterwarnings("ignore")


def classifier():
    # The exporter of PyTorch 2.13 makes a file of the spectral attention that does not load.
    attention = "dpa" if BACKEND == "torch" else "tsa"
    return text_classifier(30, 3, attention, embedding_dim=8, word_dropout=0.2)


@pytest.mark.parametrize("form", SUFFIXES)
def test_computes_what_the_model_does(form, tmp_path):
    path = tmp_path / f"model{SUFFIXES[form]}"
    model = classifier()
    if BACKEND not in BACKENDS[form]:
        with pytest.raises(RuntimeError, match=f"KERAS_BACKEND=.*backend='{BACKEND}'"):
            export(model, path, IDS)
        return
    pytest.importorskip(NEEDS[form])
    options = {"length": 9} if BACKEND == "jax" else {}
    assert export(model, path, IDS, **options) == path
    files = {path.name, path.with_suffix(".bin").name} if form == "OpenVINO" else {path.name}
    assert {p.name for p in tmp_path.iterdir()} == files
    with pytest.raises(FileExistsError, match="model"):
        export(model, path, IDS)
    if BACKEND == "torch":
        return
    # Another batch size and, where it is not fixed, length.
    other = IDS[:2] if BACKEND == "jax" else np.tile(IDS[:2], (1, 3))
    expected = model.predict(other, verbose=0)
    np.testing.assert_allclose(run(path, other)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(BACKEND not in BACKENDS["ONNX"], reason="does not write ONNX")
def test_a_model_of_two_inputs_becomes_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    inputs = {name: keras.Input((8,), name=name) for name in ("left", "right")}
    maps = {name: TTDense(4, name=f"{name}_map")(x) for name, x in inputs.items()}
    model = keras.Model(inputs, maps["left"] - 2 * maps["right"])
    rng = np.random.default_rng(0)
    example = {name: rng.normal(size=(3, 8)).astype("float32") for name in inputs}
    assert export(model, tmp_path / "model.onnx", example).exists()
    with pytest.raises(ValueError, match=r"inputs \['left', 'right'\]. Received: inputs \['a'\]"):
        export(model, tmp_path / "other.onnx", {"a": example["left"]})


@pytest.mark.skipif(BACKEND not in BACKENDS["OpenVINO"], reason="does not write OpenVINO")
def test_weights_of_another_model_are_not_replaced(tmp_path):
    pytest.importorskip("openvino")
    (tmp_path / "model.bin").write_text("of another model")
    with pytest.raises(FileExistsError, match=r"never overwrite.*model\.bin"):
        export(classifier(), tmp_path / "model.xml", IDS)
    assert [path.name for path in tmp_path.iterdir()] == ["model.bin"]
    assert (tmp_path / "model.bin").read_text() == "of another model"


class Sums(keras.Model):
    """Does not say what its inputs are: sums each row, of any length."""

    def call(self, inputs):
        return keras.ops.sum(keras.ops.cast(inputs, "float32"), axis=1, keepdims=True)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="takes inputs of the example's shape")
@pytest.mark.parametrize("form", ["SavedModel", "ONNX"])
def test_a_model_without_known_inputs_takes_ids_of_any_length(form, tmp_path):
    pytest.importorskip(NEEDS[form])
    path = tmp_path / f"model{SUFFIXES[form]}"
    model = Sums()
    model(IDS)
    export(model, path, IDS)
    (got,) = run(path, np.array([[1, 2, 3, 4], [5, 6, 7, 8]], "int32"))
    np.testing.assert_array_equal(got, [[10], [26]])


@pytest.mark.parametrize("form", SUFFIXES)
def test_a_file_that_computes_something_else_is_not_kept(form, tmp_path):
    if BACKEND not in BACKENDS[form]:
        pytest.skip("cannot be written on this backend")
    pytest.importorskip(NEEDS[form])
    model = keras.Sequential([keras.Input((4,)), Moving()])
    with pytest.raises(RuntimeError, match=f"as {form}") as raised:
        export(model, tmp_path / f"model{SUFFIXES[form]}", np.ones((2, 4), "float32"))
    assert "something else" in str(raised.value.__cause__)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("outputs", "differ"),
    [
        (np.full((3, 2), 1.0001), False),  # within 1e-4 of one more than the largest
        (np.full((3, 2), 1.001), True),
        (np.ones((3, 1)), True),
        (np.ones((1, 3, 2)), True),
        (np.full((3, 2), np.nan), True),
        (np.full((3, 2), -np.inf), True),
    ],
)
def test_outputs_agree_in_values_and_shape(outputs, differ):
    def model(inputs):
        return keras.ops.ones((3, 2))

    raises = pytest.raises(ValueError, match="computes something else")
    with raises if differ else contextlib.nullcontext():
        Expected(model, [np.zeros(3)]).check([[outputs]])


def test_infinities_of_masked_classes_agree():
    outputs = np.array([[1.0, -np.inf], [2.0, -np.inf]] * 8)
    expected = Expected(lambda inputs: outputs, [np.zeros(16)])
    expected.check([[outputs]])
    assert expected.error([[1.5 * outputs]]) == 0.5
    assert expected.row_error([[1.5 * outputs]]) == 0.5


def test_few_rows_prove_nothing():
    for count, error in ((7, np.inf), (8, 0.5)):
        outputs = np.vstack([np.ones((count, 3)), np.zeros((9, 3))])
        expected = Expected(lambda inputs, outputs=outputs: outputs, [np.zeros(16)])
        assert expected.row_error([[1.5 * outputs]]) == error


def test_as_few_products_as_possible_are_exact():
    errors = {"a": 0.3, "b": 0.04, "c": 0.5, "d": 0.03}
    tried = []

    def error_of(exact):
        tried.append(exact)
        return float(np.linalg.norm([e for name, e in errors.items() if name not in exact]))

    assert minimum_exact(list(errors), error_of, 1.0) == frozenset()
    assert minimum_exact(list(errors), error_of, 0.31) == {"c"}
    tried.clear()
    assert minimum_exact(list(errors), error_of, 0.045) == {"a", "b", "c"}
    assert len(tried) == 6  # none, all but each, and what is enough by these errors
    assert minimum_exact(list(errors), error_of, 0.0) == set(errors)
    # Together they are worse than each by itself.
    assert minimum_exact(["a", "b"], lambda exact: 1.0 - len(exact) / 2, 0.5) == {"a"}


def test_neighbours_of_many_products_become_exact_together():
    names = [f"{n:02}" for n in range(40)]
    tried = []

    def error_of(exact):
        tried.append(exact)
        errors = [1.0 if name in ("04", "20") else 0.01 for name in names if name not in exact]
        return float(np.linalg.norm(errors))

    neighbours = {"04", "05", "06", "07", "20", "21", "22", "23"}
    assert minimum_exact(names, error_of, 0.1) == neighbours
    assert len(tried) == 1 + 10 + 1  # none, all but each four neighbours, and what is enough
    assert minimum_exact(names, error_of, 0.0) == set(names)


def test_inputs_with_other_names_are_timed_in_order(tmp_path):
    pytest.importorskip("onnxruntime")
    first, second = keras.Input((4,), name="second"), keras.Input((6,), name="first")
    joined = keras.layers.Concatenate()([first, second])
    model = keras.Model({"b": first, "a": second}, keras.layers.Dense(3)(joined))
    path = export(model, tmp_path / "model.onnx")
    assert file_costs(path, model, {"a": np.ones((2, 6)), "b": np.ones((2, 4))}).error < 1e-6


class Moving(keras.layers.Layer):
    """Adds another number in each call."""

    number = 0.0

    def call(self, inputs):
        Moving.number += 1.0
        return inputs + Moving.number


def files_in(path):
    return {file.relative_to(path) for file in path.rglob("*")}


def test_files_of_another_export_do_not_become_part_of_this_one(tmp_path):
    form = next(form for form, backends in BACKENDS.items() if BACKEND in backends)
    name = f"a{SUFFIXES[form]}"
    options = {"length": 9} if BACKEND == "jax" else {}
    model = of_layer(keras.layers.Embedding(30, 4))
    export(model, tmp_path / "alone" / name, IDS, **options)
    with partial_folder(tmp_path / name) as other:  # of an export that is still running
        (other / name).mkdir()
        (other / name / "stray").touch()
        export(model, tmp_path / name, IDS, **options)
        assert files_in(other) == {Path(name), Path(name, "stray")}
        assert {path.name for path in tmp_path.iterdir()} == {"alone", name, other.name}
    assert files_in(tmp_path / name) == files_in(tmp_path / "alone" / name)
    assert {path.name for path in tmp_path.iterdir()} == {"alone", name}


def quantized(mode):
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(300, 64),
            layers.Dense(128, activation="relu"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(30),
        ]
    )
    model.quantize(mode)
    return model


def of_layer(layer):
    return keras.Sequential([keras.Input((None,), dtype="int32"), layer, keras.layers.Dense(8)])


def tt_embedding(bits):
    layer = TTEmbedding(2000, 32, tt_ranks=8, reorder_rows=True)
    layer.build()
    layer.positions.assign(np.random.default_rng(0).permutation(2000))
    return of_layer(layer if bits is None else QuantizedTTEmbedding.from_layer(layer, bits))


def low_rank_embedding(bits):
    layer = LowRankEmbedding(900, 32, rank=15)
    layer.build()
    return of_layer(QuantizedLowRankEmbedding.from_layer(layer, bits))


def adaptive_embedding(bits):
    rows, ranks = (800, 3600, 6000), (64, 64, 16)
    layer = AdaptiveEmbedding(16_000, 64, rows, ranks, reorder_rows=True)
    layer.build()
    layer.assign_positions(np.random.default_rng(0).permutation(16_000))
    return of_layer(layer if bits is None else layer.quantized(bits))


def factored_convolution(bits):
    layer = keras.layers.Conv2D(64, 3, padding="same", activation="relu")
    layer.build((None, 12, 12, 64))
    kernel = keras.ops.convert_to_numpy(layer.kernel)
    chain = chain_of(layer, next(convolution_factors.tucker_factors(kernel, [(24, 32)])))
    chain = chain if bits is None else chains.quantize_chain(chain, bits, None)
    return keras.Sequential(
        [keras.Input((12, 12, 64)), chain, keras.layers.GlobalAveragePooling2D()]
    )


def quantized_convolution(bits, groups=1):
    layer = keras.layers.Conv2D(64, 3, padding="same", activation="relu", groups=groups)
    layer.build((None, 12, 12, 32))
    return keras.Sequential([keras.Input((12, 12, 32)), quantized_layer(layer, bits)])


def recurrent(layer, convert):
    layer.build((None, None, 64))
    return keras.Sequential([keras.Input((None, 64)), on_other_cells(layer, convert)])


def four_bits(cell):  # as LiteRT multiplies with them, too
    return quantized_layer(cell, 4, symmetric=True)


def low_rank_recurrent(layer, bits=None):
    layer.build((None, None, 64))
    candidates = low_rank.candidates(layer, Statistics(), None)
    small = candidates[len(candidates) // 2].make()
    small = small if bits is None else quantize_cells(small, bits)
    return keras.Sequential([keras.Input((None, 64)), small])


def with_a_layer_that_no_output_needs():
    inputs = keras.Input((None, 64))
    layers = [keras.layers.Dense(units) for units in (30, 300)]
    for layer in layers:
        layer.build((None, None, 64))
    layers = [quantized_layer(layer, 4) for layer in layers]
    both = keras.Model(inputs, {layer.name: layer(inputs) for layer in layers})
    inputs = keras.Input((None, 64))
    return keras.Model(inputs, both(inputs)[layers[0].name])


STORED = {
    "chain of convolutions": lambda: factored_convolution(None),
    "chain of convolutions, 8 bits": lambda: factored_convolution(8),
    "convolution, 8 bits": lambda: quantized_convolution(8),
    "convolution, 4 bits": lambda: quantized_convolution(4),
    "convolution in groups, 4 bits": lambda: quantized_convolution(4, groups=4),
    "LSTM, 4 bits": lambda: recurrent(keras.layers.LSTM(64), four_bits),
    "GRU, 4 bits": lambda: recurrent(keras.layers.GRU(64), four_bits),
    "GRU of low rank": lambda: low_rank_recurrent(keras.layers.GRU(64)),
    "Keras' int8": lambda: quantized("int8"),
    "Keras' int4": lambda: quantized("int4"),
    "tensor train": lambda: tt_embedding(None),
    "tensor train, 4 bits": lambda: tt_embedding(4),
    "blocks of rows": lambda: adaptive_embedding(None),
    "blocks of rows, 2 to 8 bits": lambda: adaptive_embedding((8, 4, 2)),
    "blocks of rows, 3 bits": lambda: adaptive_embedding((3, 3, 3)),
    "low rank, 8 bits": lambda: low_rank_embedding(8),
    "low rank, 4 bits": lambda: low_rank_embedding(4),
    "a layer that no output needs": with_a_layer_that_no_output_needs,
}

# OpenVINO reads the same ONNX graph. The slow tests have more.
STORED_AS = [
    *((name, "ONNX") for name in STORED),
    *((name, "LiteRT") for name in ("LSTM, 4 bits", "blocks of rows, 3 bits")),
    *((name, "OpenVINO") for name in ("Keras' int4", "convolution in groups, 4 bits")),
]
ALL_STORED_AS = [*STORED_AS, ("tensor train, 4 bits", "OpenVINO")]
ALL_STORED_AS += [x for x in ((name, "LiteRT") for name in STORED) if x not in STORED_AS]


@pytest.mark.skipif(BACKEND != "tensorflow", reason="other backends fold weights")
@pytest.mark.parametrize(("name", "form"), slow_but(STORED_AS, ALL_STORED_AS))
def test_weights_keep_their_bytes(name, form, tmp_path):
    pytest.importorskip(NEEDS[form])
    model = STORED[name]()
    stored = sum(np.asarray(weight.numpy()).nbytes for weight in model.weights)
    path = export(model, tmp_path / f"model{SUFFIXES[form]}")
    sizes = file_sizes(path)
    if form == "OpenVINO":  # its text grows with the number of operations
        assert sizes[str(path.with_suffix(".bin"))] <= 1.2 * stored + 2000
    else:
        # The operations that restore integers take more in LiteRT.
        assert sum(sizes.values()) <= 1.2 * stored + (12_000 if form == "LiteRT" else 10_000)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="writes LiteRT files on TensorFlow only")
@pytest.mark.parametrize("form", ["ONNX", "LiteRT", "OpenVINO"])
def test_several_outputs_and_masks_keep_their_names(form, tmp_path):
    pytest.importorskip(NEEDS[form])
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(30, 8, mask_zero=True)(ids)
    x = keras.layers.MultiHeadAttention(2, 4)(x, x)
    x = keras.layers.Dense(8, activation="gelu")(x)
    model = keras.Model(ids, {"tokens": x, "mean": keras.layers.GlobalAveragePooling1D()(x)})
    path = export(model, tmp_path / f"model{SUFFIXES[form]}", IDS)
    if form == "ONNX":
        import onnxruntime

        outputs = onnxruntime.InferenceSession(str(path)).get_outputs()
        assert [output.name for output in outputs] == ["mean", "tokens"]
    elif form == "LiteRT":
        from ai_edge_litert.interpreter import Interpreter

        run = Interpreter(model_path=str(path)).get_signature_runner("serving_default")
        assert set(run.get_output_details()) == {"mean", "tokens"}
    else:
        import openvino

        names = [output.any_name for output in openvino.Core().read_model(path).outputs]
        assert names == ["mean", "tokens"]


class Shifts(keras.layers.Layer):
    """Gives each id a whole number, some of them negative."""

    def build(self, input_shape):
        self.shifts = self.add_weight(shape=(400,), dtype="int32", trainable=False)
        self.shifts.assign(np.arange(400) % 200 - 100)

    def call(self, inputs):
        return keras.ops.cast(keras.ops.take(self.shifts, inputs), "float32")


@pytest.mark.skipif(BACKEND not in BACKENDS["LiteRT"], reason="does not write LiteRT")
def test_negative_integers_come_back(tmp_path):
    pytest.importorskip("ai_edge_litert")
    model = keras.Sequential([keras.Input((3,), dtype="int32"), Shifts()])
    path = export(model, tmp_path / "model.tflite")
    (got,) = run(path, np.array([[0, 99, 250]], "int32"))
    np.testing.assert_array_equal(got, [[-100, -1, -50]])


class Quotients(keras.layers.Layer):
    """Divides ids by -3, also in a loop, and their negatives by 4, rounding down; remainders."""

    def __init__(self, dtype):
        super().__init__()
        self.kind = dtype

    def call(self, inputs):
        ops = keras.ops
        x = ops.cast(inputs, self.kind)
        three, four = ops.cast(-3, self.kind), ops.cast(4, self.kind)
        once = ops.while_loop(
            lambda n, y: n < 1, lambda n, y: (n + 1, ops.floor_divide(y, three)), (0, x)
        )[1]
        results = [ops.floor_divide(x, three), ops.floor_divide(-x, four), once, ops.mod(-x, four)]
        return ops.cast(ops.stack(results, axis=-1), "float32")


@pytest.mark.skipif(BACKEND != "tensorflow", reason="converts on TensorFlow only")
@pytest.mark.parametrize(
    ("form", "dtype"),
    [(form, "int32") for form in ("ONNX", "OpenVINO", "LiteRT")]
    + [(form, dtype) for form in ("ONNX", "OpenVINO") for dtype in ("int8", "int16", "int64")],
)
def test_quotients_are_rounded_down(form, dtype, tmp_path):
    pytest.importorskip(NEEDS[form])
    model = keras.Sequential([keras.Input((3,), dtype="int32"), Quotients(dtype)])
    example = np.array([[7, 6, 1], [9, 8, 5]], "int32")
    path = export(model, tmp_path / f"model{SUFFIXES[form]}", example)
    (got,) = run(path, example)
    np.testing.assert_array_equal(
        got[0], [[np.floor(x / -3), np.floor(-x / 4), np.floor(x / -3), -x % 4] for x in example[0]]
    )


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="writes OpenVINO files on TensorFlow only")
def test_openvino_reads_the_smaller_onnx_file_too(tmp_path):
    pytest.importorskip("openvino")
    model = text_classifier(2000, 3, "tsa", embedding_dim=64)  # rows of two groups
    table = model.get_layer("embedding").get_weights()[0]
    small = compress(model, 6.0, bits=4, data=IDS, verbose=0).model
    files = [export(small, tmp_path / f"model{x}", IDS, 200) for x in (".onnx", ".xml")]
    onnx, xml = (sum(file_sizes(file).values()) for file in files)
    stored = sum(np.asarray(weight.numpy()).nbytes for weight in small.weights)
    assert stored < table.nbytes / 4
    assert onnx <= 1.2 * stored + 10_000
    assert onnx < xml
    expected = small.predict(IDS, verbose=0)
    for file in files:
        (received,) = run(file, IDS)
        np.testing.assert_allclose(received, expected, atol=1e-5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="converts on TensorFlow only")
@pytest.mark.parametrize("form", slow_but(["ONNX", "LiteRT"], ["ONNX", "OpenVINO", "LiteRT"]))
def test_a_graph_tensor_network_takes_any_length(form, tmp_path):
    # It splits sequences into blocks, as many as the length divided and rounded up.
    pytest.importorskip(NEEDS[form])
    model = keras.Sequential([keras.Input((None, 8)), GraphTensorNetwork(2, receive_from="both")])
    example = np.random.default_rng(0).normal(size=(2, 70, 8)).astype("float32")
    path = export(model, tmp_path / f"model{SUFFIXES[form]}", example[:, :5])
    for length in (1, 70):
        x = example[:, :length]
        (outputs,) = run(path, x)
        np.testing.assert_allclose(outputs, model.predict(x, verbose=0), 1e-4, 1e-5)


class Splits(keras.layers.Layer):
    """Makes several tokens of one, and two heads of each, as an attention without biases does."""

    def __init__(self, tokens=1):
        super().__init__()
        self.tokens = tokens

    def call(self, inputs):
        batch, length, units = keras.ops.shape(inputs)
        return keras.ops.reshape(
            inputs, (batch, self.tokens * length, 2, units // self.tokens // 2)
        )


def chosen(x):
    ops = keras.ops
    mask, zeros = ops.where(x > 0, x > 0.5, x > 2), ops.zeros_like(x)
    pairs = [(ops.log(x), zeros), (x, ops.full_like(x, -3.5)), (x[:, :1], zeros)]  # some are NaN
    return ops.concatenate([ops.where(mask[:, : yes.shape[1]], yes, no) for yes, no in pairs], 1)


def of_parts(shape, *parts):
    return keras.Sequential([keras.Input(shape), *parts])


L = keras.layers
CONVERTED = {
    "recurrent": lambda: of_parts((None, 5), L.Bidirectional(L.GRU(6)), L.Dense(2)),
    "convolutions": lambda: of_parts(
        (12, 12, 3),
        *(L.Conv2D(8, 3, padding="same"), L.BatchNormalization(), L.ReLU()),
        *(L.SeparableConv2D(6, 3, activation="relu"), L.GlobalMaxPooling2D()),
    ),
    "reshape": lambda: of_parts((None, 4), L.Dense(6, use_bias=False), Splits()),
    "sum over two axes of a reshape": lambda: of_parts(
        (None, 8), Splits(2), L.EinsumDense("abcd,cde->abe", (None, 5))
    ),
    "choices": lambda: of_parts((5, 3), L.Lambda(chosen)),
    "language model": lambda: language_model(20, attention="sdpa", num_layers=1),
    "loop with products of integers": lambda: low_rank_recurrent(L.GRU(64), 4),
}
CONVERTED_TO = [
    *((name, form) for name in ("recurrent", "convolutions") for form in ("ONNX", "LiteRT")),
    *(("reshape", form) for form in ("ONNX", "OpenVINO", "LiteRT")),
    *((name, "ONNX") for name in ("sum over two axes of a reshape", "choices", "language model")),
    ("loop with products of integers", "OpenVINO"),
]


@pytest.mark.skipif(BACKEND != "tensorflow", reason="converts on TensorFlow only")
@pytest.mark.parametrize(
    ("name", "form"), slow_but(CONVERTED_TO, [*CONVERTED_TO, ("language model", "OpenVINO")])
)
def test_a_file_computes_what_the_model_does(name, form, tmp_path):
    pytest.importorskip(NEEDS[form])
    export(CONVERTED[name](), tmp_path / f"model{SUFFIXES[form]}")  # compares the outputs


@pytest.mark.skipif(BACKEND != "tensorflow", reason="converts on TensorFlow only")
def test_onnx_runtime_knows_the_parts_of_an_encoder(tmp_path):
    ort = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    x = inputs = keras.Input((9, 32))
    x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 16)(x, x))
    x = L.LayerNormalization(scale=False)(x + L.Dense(32, activation="gelu")(x))
    model = keras.Model(inputs, L.LayerNormalization(axis=(1, 2))(x))
    export(model, tmp_path / "model.onnx")  # compares the outputs
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(str(tmp_path / "model.onnx"), options)
    nodes = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert (nodes.count("LayerNormalization"), nodes.count("Gelu")) == (1, 1)
    assert nodes.count("Transpose") <= 4  # queries, keys, values and what they attend to
    assert "Einsum" not in nodes
    assert "ReduceProd" not in nodes


def test_a_file_that_no_runtime_knows_is_refused(tmp_path):
    for name in ("model.h5", "model.bin"):
        with pytest.raises(ValueError, match=rf"\.onnx, \.tflite or \.xml.*{name}"):
            export(classifier(), tmp_path / name)
    with pytest.raises(TypeError, match=r"load_model.*Received: model='model\.keras'"):
        export("model.keras", tmp_path / "model.onnx")


def test_a_runtime_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    form = "LiteRT" if BACKEND == "tensorflow" else "ONNX"
    if BACKEND not in BACKENDS[form]:
        pytest.skip("writes neither ONNX nor LiteRT files")
    with pytest.raises(ImportError, match=r"pip install '\.\[(litert|onnx)\]'"):
        export(classifier(), tmp_path / f"model{SUFFIXES[form]}")


def test_a_saved_model_needs_tensorflow_and_names_it(tmp_path, monkeypatch):
    if BACKEND not in BACKENDS["SavedModel"]:
        pytest.skip("writes no SavedModel")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"package tensorflow\. .*'\.\[tensorflow\]'"):
        export(classifier(), tmp_path / "model")


def integer_products():
    """Looks up and multiplies with integers of 4 and 8 bits."""
    layers = keras.layers

    def of_integers(layer, shape, bits, group_size=32):
        layer.build(shape)
        return quantized_layer(layer, bits, group_size)

    ids = keras.Input((None,), dtype="int32")
    x = of_integers(layers.Embedding(50, 48), None, 4)(ids)
    heads = layers.EinsumDense("abc,cde->abde", (None, 4, 16), bias_initializer="normal")
    x = of_integers(heads, (None, None, 48), 4)(x)
    x = of_integers(layers.EinsumDense("abde,dec->abc", (None, 64)), (None, None, 4, 16), 8)(x)
    wide = layers.Dense(64, "relu", bias_initializer="normal")
    x = layers.GlobalAveragePooling1D()(of_integers(wide, (None, None, 64), 8, 64)(x))
    return keras.Model(ids, x)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="other backends fold weights")
def test_rounded_inputs_spoil_outputs_no_more_than_they_may(tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    monkeypatch.setattr("keras_small.runtimes.onnx_kernels._MINIMUM_BLOCKED", 1)
    monkeypatch.setattr("keras_small.runtimes.onnx_kernels._MINIMUM_BY_COLUMN", 1)
    model = integer_products()
    example = np.random.default_rng(0).integers(0, 50, (3, 9)).astype("int32")
    expected = model.predict(example, verbose=0)

    def exported(name, bound):
        path = export(model, tmp_path / f"{name}.onnx", example, max_error=bound)
        onnx.checker.check_model(path)
        (output,) = run(path, example)
        kinds = [
            node.op_type + str([x.i for x in node.attribute if x.name == "accuracy_level"])
            for node in onnx.load(path).graph.node
        ]
        levels = [kinds.count(f"MatMulNBits[{level}]") for level in (0, 4)]
        counts = [kinds.count(f"{x}[]") for x in ("DynamicQuantizeMatMul", "GatherBlockQuantized")]
        return relative_error(output, expected), levels, counts

    error, levels, counts = exported("rounded", 0.1)
    assert levels == [0, 0]
    assert counts == [3, 1]  # sequences, whose rows are many
    assert 1e-4 < error < 0.012
    fewer, levels, counts = exported("fewer", 0.7 * error)
    assert 1e-5 < fewer <= 0.7 * error
    assert 0 < levels[1] + counts[0] < 3
    exact, levels, counts = exported("exact", 0)
    assert exact < 1e-5
    assert levels[1] == counts[0] == 0
    assert counts[1] == 1


@pytest.mark.skipif(BACKEND != "tensorflow", reason="other backends fold weights")
@pytest.mark.parametrize(
    ("shape", "merging", "operation"),
    [
        ((64,), (), "MatMulNBits"),
        ((4, 4, 4), ("Flatten",), "MatMulNBits"),
        ((5, 64), (), "DynamicQuantizeMatMul"),
    ],
)
def test_products_of_few_rows_read_blocks(shape, merging, operation, tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    monkeypatch.setattr("keras_small.runtimes.onnx_kernels._MINIMUM_BLOCKED", 1)
    monkeypatch.setattr("keras_small.runtimes.onnx_kernels._MINIMUM_BY_COLUMN", 1)
    parts = [getattr(keras.layers, name)() for name in merging]
    parts += [keras.layers.Dense(96, "relu"), keras.layers.Dense(64), keras.layers.Dense(32)]
    model = compress(keras.Sequential([keras.Input(shape), *parts]), bits=4, formats=()).model
    path = export(model, tmp_path / "model.onnx", max_error=1.0)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds.count(operation) == 3


@pytest.mark.skipif(BACKEND != "tensorflow", reason="other backends fold weights")
def test_rows_of_different_sizes_have_scales_of_their_own(tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    monkeypatch.setattr("keras_small.runtimes.onnx_kernels._MINIMUM_BY_COLUMN", 1)
    parts = [keras.layers.Dense(n, "relu", use_bias=False) for n in (32, 24)]
    model = compress(keras.Sequential([keras.Input((48,)), *parts]), bits=8, formats=()).model
    data = np.random.default_rng(0).normal(size=(300, 48)).astype("float32")
    for number, size, count in ((300, 1, 0), (300, 1000, 2), (4, 1, 2)):  # four rows prove nothing
        rows = data[:number] * np.repeat(np.float32([1, size]), number // 2)[:, None]
        path = tmp_path / f"{number}-{size}.onnx"
        write_file(model, path, data, max_error=0.03, data=[rows])
        kinds = [node.op_type for node in onnx.load(path).graph.node]
        assert kinds.count("ReduceMax") == count  # one for each product
        (output,), expected = run(path, rows), model.predict(rows, verbose=0)
        errors = np.linalg.norm(output - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert 1e-4 < errors.max() < 0.05


class Counting(keras.layers.Layer):
    """Returns its inputs, and notes how many rows it computes at once."""

    counts: ClassVar[set] = set()

    def call(self, inputs):
        self.counts.add(inputs.shape[0])
        return inputs


@pytest.mark.skipif(BACKEND != "tensorflow", reason="other backends fold weights")
def test_the_model_never_runs_on_all_rows_at_once(tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    monkeypatch.setattr("keras_small.runtimes.onnx_kernels._MINIMUM_BY_COLUMN", 1)
    parts = [keras.layers.Dense(32), Counting()]
    model = compress(keras.Sequential([keras.Input((48,)), *parts]), bits=8, formats=()).model
    data = np.random.default_rng(0).normal(size=(100, 48)).astype("float32")
    write_file(model, tmp_path / "model.onnx", data[:2], max_error=0.03, data=[data])
    assert max(Counting.counts - {None}) == 8


@pytest.mark.skipif(BACKEND != "tensorflow", reason="writes OpenVINO files on TensorFlow only")
def test_openvino_gets_integers_that_it_knows(tmp_path):
    pytest.importorskip("openvino")
    path = export(integer_products(), tmp_path / "model.xml")  # compares the outputs
    text = path.read_text()
    assert text.count('element_type="u4"') == 4  # the numbers and the zeros of two matrices
    assert text.count('element_type="u8"') >= 4
    assert text.count('type="Subtract"') == 4
    assert "Floor" not in text
    assert "BitwiseAnd" not in text


def small_network():
    parts = [keras.layers.Dense(256, name="d"), keras.layers.Dense(256, name="e")]
    inner = keras.Sequential([keras.Input((256,)), *parts], name="gate")
    inputs = keras.Input((256,))
    return compress(keras.Model(inputs, inner(inputs)), bits=4, formats=(), verbose=0)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="writes LiteRT files on TensorFlow only")
def test_a_file_larger_than_its_small_model_says_so(tmp_path, capsys):
    pytest.importorskip("ai_edge_litert")
    result = small_network()
    # LiteRT multiplies with integers of 4 bits only where they have no zeros.
    assert export(result, tmp_path / "model.tflite") == tmp_path / "model.tflite"
    printed = capsys.readouterr().out
    assert "to 8 bits with a scale for each unit: gate/" in printed
    assert "compress(..., for_runtime='litert')" in printed
    assert "times the" in result.report.notes[-1]
    (costs,) = result.report.files
    assert set(costs.changes) == {"gate/d", "gate/e"}
    export(result.model, tmp_path / "again.tflite")
    assert "note: again.tflite takes" in capsys.readouterr().out
    export(result.model, tmp_path / "model.xml")
    export(keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)]), tmp_path / "x.tflite")
    assert "note" not in capsys.readouterr().out


def test_a_model_without_data_is_tried_on_rows_of_a_middling_length():
    x = keras.Input((None, 4))
    model = keras.Model(x, keras.layers.Conv1D(2, 5)(x))
    assert example_of(model, None).shape == (2, 8, 4)
