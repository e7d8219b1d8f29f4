"""Exports of models with strings, with inputs and outputs in any order, and of half floats."""

import itertools
import subprocess
import venv

import keras
import numpy as np
import pytest
from conformance import assert_same_arrays, relative_error
from exported_files import run
from slow_cases import slow_but

from keras_small import export

BACKEND = keras.backend.backend()
if BACKEND != "tensorflow":
    pytest.skip("other backends write fewer files", allow_module_level=True)

SUFFIXES = {"ONNX": ".onnx", "LiteRT": ".tflite", "OpenVINO": ".xml"}
FORMS = [*SUFFIXES, "SavedModel"]
NEEDS = {"ONNX": "onnxruntime", "LiteRT": "ai_edge_litert", "OpenVINO": "openvino"}
layers = keras.layers
# Converters warn of their own libraries.
pytestmark = pytest.mark.filterwarnings("ignore")


def ids_before_features():
    ids, features = keras.Input((None,), dtype="int32", name="ids"), keras.Input((4,), name="feats")
    mean = layers.GlobalAveragePooling1D()(layers.Embedding(10, 4)(ids))
    return keras.Model([ids, features], layers.Dense(3)(layers.Concatenate()([mean, features])))


def difference(first, second, as_dict=False):
    a, b = keras.Input((3,), name=first), keras.Input((3,), name=second)
    output = layers.Dense(2)(a) - 3 * layers.Dense(2)(b)
    return keras.Model({second: a, first: b} if as_dict else [a, b], output)


def twelve_inputs():
    inputs = [keras.Input((3,)) for _ in range(12)]  # their default names pass from 9 to 10
    return keras.Model(inputs, layers.Concatenate()([layers.Dense(1)(x) for x in inputs]))


def twelve_outputs():
    x = keras.Input((3,), name="x")
    return keras.Model(x, [layers.Dense(n + 1)(x) for n in range(12)])


def unread_input():
    a, b = keras.Input((3,), name="z"), keras.Input((3,), name="a")
    return keras.Model([a, b], layers.Dense(2)(a))


def outputs_twice():
    x = keras.Input((3,), name="x")
    y = layers.Dense(2)(x)
    return keras.Model(x, {"z": y, "b": y, "x": x})


ORDERS = {
    "ids, feats": ids_before_features,
    "right, left": lambda: difference("right", "left"),
    "enc, dec": lambda: difference("enc", "dec"),
    "words of Python": lambda: difference("self", "class"),
    "names that are one identifier": lambda: difference("a b", "a_b", as_dict=True),
    "names that are none": lambda: difference("é", "1st"),
    "names of each other": lambda: difference("a", "b", as_dict=True),
    "twelve inputs": twelve_inputs,
    "twelve outputs": twelve_outputs,
    "an input that nothing reads": unread_input,
    "outputs twice": outputs_twice,
}


@pytest.mark.parametrize(
    ("name", "form"),
    slow_but(
        [(name, "ONNX") for name in ORDERS] + [("enc, dec", form) for form in FORMS],
        itertools.product(ORDERS, FORMS),
    ),
)
def test_inputs_and_outputs_keep_the_order_of_the_model(name, form, tmp_path):
    pytest.importorskip(NEEDS.get(form, BACKEND))
    model = ORDERS[name]()
    path = str(export(model, tmp_path / f"model{SUFFIXES.get(form, '')}"))
    rng = np.random.default_rng(1)
    example = [
        rng.integers(0, 9, (5, 3)) if x.dtype == "int32" else rng.normal(size=(5, x.shape[1]))
        for x in model.inputs
    ]
    example = [x.astype(y.dtype) for x, y in zip(example, model.inputs, strict=True)]
    inputs = keras.tree.pack_sequence_as(model.input, example)
    expected = model(inputs)
    assert_same_arrays(run(path, inputs), keras.tree.flatten(expected), atol=1e-5)


def test_names_of_layers_that_graphs_refuse(tmp_path):
    pytest.importorskip("onnxruntime")
    x = keras.Input((3,), name="in put")
    parts = layers.Dense(2, name="_d:d")(layers.Dense(2, name="class scores")(x))
    model = keras.Model(x, parts, name="_my model")
    path = export(model, tmp_path / "model.onnx", example := np.eye(3, dtype="float32"))
    (got,) = run(path, example)
    np.testing.assert_allclose(got, model(example), atol=1e-5)
    names = ["_my model", "in put", "class scores", "_d:d"]
    assert [x.name for x in (model, *model.layers)] == names
    with pytest.raises(RuntimeError, match=r"scope name.*Name layers by letters, digits"):
        export(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def string_lookup():
    word, numbers = keras.Input((), dtype="string", name="word"), keras.Input((3,), name="numbers")
    vectors = layers.Embedding(3, 4)(layers.StringLookup(vocabulary=["a", "b"], name="ids")(word))
    model = keras.Model([word, numbers], layers.Dense(2)(layers.Concatenate()([vectors, numbers])))
    return model, "ids", [np.array(["a", "?"]), np.ones((2, 3), "float32")]


def text_vectorization():
    text = layers.TextVectorization(vocabulary=["a", "b"], name="ids")
    parts = [text, layers.Embedding(4, 3), layers.GlobalAveragePooling1D(), layers.Dense(2)]
    model = keras.Sequential([keras.Input((1,), dtype="string"), *parts])
    return model, "ids", np.array([["a b"], ["c"]])


def looked_up(dtype, layer, example):
    x = keras.Input((1,), dtype=dtype)
    vectors = layers.Embedding(9, 3)(layer(x))
    return keras.Model(x, layers.Dense(2)(layers.Flatten()(vectors))), layer.name, example


def class_names():
    x = keras.Input((3,))
    number = keras.ops.cast(layers.Dense(1)(x)[:, 0] > 0, "int32")
    names = layers.StringLookup(vocabulary=["a", "b"], invert=True, num_oov_indices=0, name="names")
    return keras.Model(x, names(number)), "names", np.eye(3, dtype="float32")


TEXTS = {
    "StringLookup": string_lookup,
    "TextVectorization": text_vectorization,
    "Hashing": lambda: looked_up("string", layers.Hashing(8), np.array([["a"], ["b"]])),
    "IntegerLookup": lambda: looked_up(
        "int64", layers.IntegerLookup(vocabulary=[3, 5]), np.array([[3], [4]])
    ),
    "names of classes": class_names,
}


@pytest.mark.parametrize("name", TEXTS)
def test_models_of_words_are_saved_whole_or_told_where_to_cut(name, tmp_path):
    pytest.importorskip("onnxruntime")
    model, layer, example = TEXTS[name]()
    for given in (None, example):
        export(model, tmp_path / f"saved_{given is None}", given)
    for form, suffix in SUFFIXES.items():
        pytest.importorskip(NEEDS[form])
        with pytest.raises(ValueError, match=rf"export keras\.Model.*{layer}") as raised:
            export(model, tmp_path / f"model{suffix}", example)
    # The sentence has the model that can be exported.
    code = str(raised.value).partition("export ")[2].partition(". Received")[0]
    rest = eval(code, {"keras": keras, "model": model})
    assert export(rest, tmp_path / "rest.onnx").exists()
    assert {x.name for x in tmp_path.iterdir()} == {"saved_True", "saved_False", "rest.onnx"}


def attention():
    ids = keras.Input((None,), dtype="int32")
    x = layers.Embedding(30, 16)(ids)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
    x = layers.Dense(32, activation="gelu")(x)
    return keras.Model(ids, layers.Dense(3, activation="softmax")(keras.ops.max(x, axis=1)))


def convolutions():
    parts = [layers.Conv2D(8, 3), layers.BatchNormalization(), layers.ReLU(), layers.Flatten()]
    return keras.Sequential([keras.Input((8, 8, 3)), *parts, layers.Dense(3)])


def last_in_floats():
    parts = [layers.Dense(64, activation="relu"), layers.Dense(3, dtype="float32")]
    return keras.Sequential([keras.Input((16,)), *parts])


@pytest.mark.parametrize("form", ["", *SUFFIXES.values()])
@pytest.mark.parametrize(
    ("make", "policy"),
    [
        (attention, "mixed_float16"),
        (convolutions, "bfloat16"),
        (last_in_floats, "float16"),
        pytest.param(attention, "bfloat16", marks=pytest.mark.slow),
        pytest.param(convolutions, "mixed_float16", marks=pytest.mark.slow),
        pytest.param(last_in_floats, "mixed_bfloat16", marks=pytest.mark.slow),
    ],
)
def test_models_of_half_floats(make, policy, form, tmp_path):
    for module in NEEDS.values():
        pytest.importorskip(module)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = make()
    finally:
        keras.config.set_dtype_policy(before)
    path = export(model, tmp_path / f"model{form}")
    assert model.layers[-2].compute_dtype == policy.removeprefix("mixed_")
    # Half floats take two bytes in these files, too.
    if policy == "float16" and form in (".onnx", ".tflite"):
        assert path.stat().st_size < 2 * model.count_params() + 15_000


@pytest.mark.parametrize("form", SUFFIXES.values())
def test_float64_is_a_right_file_or_names_the_way_out(form, tmp_path, caplog):
    for module in NEEDS.values():
        pytest.importorskip(module)
    inputs = keras.Input((8, 8, 3), dtype="float64")
    conv = layers.Conv2D(4, 3, dtype="float64", name="wide")
    path = tmp_path / f"model{form}"
    if form == ".xml":
        assert export(keras.Model(inputs, conv(inputs)), path).exists()  # compares the outputs
        assert not caplog.records
        return
    with pytest.raises(RuntimeError, match=r"dtype='float32'.*wide of float64"):
        export(keras.Model(inputs, conv(inputs)), path)
    assert not path.exists()


QUANTIZE = """
import sys
from ai_edge_quantizer import quantizer, recipe
work = quantizer.Quantizer(sys.argv[1])
work.load_quantization_recipe(recipe.dynamic_wi8_afp32())
work.quantize().export_model(sys.argv[2])
"""


@pytest.mark.slow
def test_the_quantizer_of_others_reads_float_files(tmp_path):
    pytest.importorskip("ai_edge_litert")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    install = [python, "-m", "pip", "install", "-q", "ai-edge-quantizer==0.10.0"]
    if subprocess.run(install, check=False).returncode:
        pytest.skip("no package index")
    # The ones of a new normalization are integers in the file.
    parts = [layers.Dense(512, "relu"), layers.LayerNormalization(), layers.Dense(8)]
    model = keras.Sequential([keras.Input((64,)), *parts])
    path, small = export(model, tmp_path / "model.tflite"), tmp_path / "small.tflite"
    subprocess.run([python, "-c", QUANTIZE, path, small], check=True)
    assert small.stat().st_size < path.stat().st_size / 3
    example = np.random.default_rng(0).normal(size=(4, 64)).astype("float32")
    (got,), expected = run(small, example), model.predict(example, verbose=0)
    assert relative_error(got, expected) < 0.03


def several_layers():
    return keras.Sequential([keras.Input((4, 6)), layers.LayerNormalization(), layers.Flatten()])


STEPS = {
    "dense": ((None, 6), lambda: layers.Dense(5)),
    "mean": ((None, 4, 6), layers.GlobalAveragePooling1D),  # of what is not masked
    "convolution": ((None, 7, 7, 2), lambda: layers.Conv2D(3, 3, strides=2)),
    "several layers": ((None, 4, 6), several_layers),
    "steps of known number": ((3, 6), lambda: layers.Dense(2)),
    "recurrent": ((None, 4, 6), lambda: layers.LSTM(4)),
}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *itertools.product(["dense", "convolution"], SUFFIXES.values()),
        *((name, ".onnx") for name in STEPS if name not in ("dense", "convolution")),
        ("dense", ""),
    ],
)
def test_layers_see_any_number_of_steps_of_any_number_of_rows(name, form, tmp_path):
    for module in NEEDS.values():
        pytest.importorskip(module)
    shape, layer = STEPS[name]
    inputs = keras.Input(shape)
    masked = layers.Masking()(inputs) if name in ("dense", "mean") else inputs
    model = keras.Model(inputs, layers.TimeDistributed(layer())(masked))
    path = export(model, tmp_path / f"model{form}")
    for rows, steps in ((2, 9), (4, 5)):
        sizes = [rows, *(steps if size is None else size for size in shape)]
        example = np.random.default_rng(0).normal(size=sizes).astype("float32")
        example[(0, -1, 0) if name == "mean" else (0, -1)] = 0  # masked
        expected = [keras.ops.convert_to_numpy(model(example))]
        assert_same_arrays(run(path, example), expected, atol=1e-5)
    assert "call" not in vars(model.layers[-1])
