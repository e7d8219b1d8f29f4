"""The models that come with the package load on every backend and say what they are."""

import io
import json

import keras
import numpy as np
import pytest
from conformance import assert_same_arrays
from import_path import run_python
from sklearn.datasets import load_digits

import keras_small
from keras_small import pretrained


def test_all_together_are_small():
    files = [path for path in pretrained._HERE.glob("*/*") if path.is_file()]
    sizes = {path: path.stat().st_size for path in files}
    assert sum(size for path, size in sizes.items() if path.parent.name != "minilm") < 500_000
    assert sum(sizes.values()) < 6_800_000  # the wheel, which deflates text, is to have 7 MB


@pytest.mark.parametrize("name", pretrained.names())
def test_the_card_says_where_a_model_is_from(name):
    if name == "minilm":
        pytest.importorskip("constriction")
    model = keras_small.load(name)
    assert model.card["name"] == name
    assert {"data", "licence", "commands", "trained", "bytes"} <= model.card.keys()
    (path,) = (pretrained._HERE / name).glob("model.*")
    assert model.card["bytes"] == path.stat().st_size
    assert isinstance(model.model, keras.Model)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "dates-and-names",
            "translator dates-and-names: called with a sentence, it gives its translation",
        ),
        ("digits", "classifier digits: called with a picture (8, 8), it gives one of 10 classes"),
        ("docstrings", "text classifier docstrings: called with a text, it gives one of 8 classes"),
    ],
)
def test_models_say_what_they_are(name, said):
    assert repr(keras_small.load(name)) == f"<{said}>"


@pytest.mark.parametrize("name", ["docstrings", "dates-and-names"])
@pytest.mark.parametrize("texts", [{"a", "b"}, {"a": "b"}, b"a", 1, [1]])
def test_functions_of_texts_refuse_what_is_none(name, texts):
    with pytest.raises(TypeError, match=r"a text or a sequence of texts\. Received: texts"):
        keras_small.load(name)(texts)


def test_docstrings_are_told_apart():
    classify = keras_small.load("docstrings")
    texts = [
        "Draws a line with markers on the axes of the figure.",
        "Fits the estimator to the training samples.",
    ]
    assert classify(texts) == ["matplotlib", "sklearn"]
    assert classify(texts[0]) == "matplotlib"
    np.testing.assert_allclose(classify.probabilities(texts).sum(axis=1), 1, atol=1e-5)


@pytest.mark.usefixtures("eagerly_once")
def test_dates_and_names_are_translated():
    translate = keras_small.load("dates-and-names")
    assert translate("terça-feira, 17 de dezembro de 1963") == "Tuesday, December 17, 1963"
    (best, *_), (other, *_) = translate.n_best(["16:52", "Nova Caledônia"], beam_size=2)
    assert (best[0], other[0]) == ("4:52 PM", "New Caledonia")


@pytest.mark.slow
def test_jax_translates_without_an_import_of_tensorflow():
    pytest.importorskip("jax")
    code = "import sys, keras_small; print(keras_small.load('dates-and-names')('16:52'))"
    code += "; assert 'tensorflow' not in sys.modules"
    run_python("-c", code, backend="jax")


def test_digits_are_read():
    data = load_digits()
    read = keras_small.load("digits")
    pictures = data.images / 16
    assert np.mean(np.array(read(pictures)) == data.target.astype(str)) > 0.95
    assert read(pictures[0]) == "0"
    assert read([]) == read(pictures[:0]) == []
    with pytest.raises(ValueError, match=r"pictures.shape=\(3, 0, 8\)"):
        read(np.zeros((3, 0, 8)))
    with pytest.raises(ValueError, match=r"shape \(8, 8\).*pictures.shape=\(2, 8, 7\)"):
        read(pictures[:2, :, :7])


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"task": "digits"}'])
def test_unknown_names_and_damaged_folders_are_refused(damage, tmp_path):
    with pytest.raises(ValueError, match=r"dates-and-names.*name='dogs'"):
        keras_small.load("dogs")
    with pytest.raises(TypeError, match=r"dates-and-names.*a \.tnz file\. Received: name=None"):
        keras_small.load(None)
    (tmp_path / pretrained.ABOUT).write_bytes(damage)
    with pytest.raises(ValueError, match="Could not load the model in"):
        keras_small.load(tmp_path)


def test_a_coded_file_is_loaded_by_its_path_or_open(tmp_path):
    pytest.importorskip("constriction")
    layers = [keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(3)]
    result = keras_small.compress(keras.Sequential(layers), bits=4, formats=(), verbose=0)
    path = tmp_path / "a.tnz"
    result.save(path)
    with path.open("rb") as file:
        opened = keras_small.load(file)
    loaded = [keras_small.load(path), keras_small.load(str(path)), opened]
    loaded.append(keras_small.load(io.BytesIO(path.read_bytes())))
    for model in loaded:
        assert_same_arrays(model.get_weights(), result.model.get_weights())
    with pytest.raises(FileNotFoundError, match=r"none\.tnz"):
        keras_small.load(tmp_path / "none.tnz")
    with pytest.raises(ValueError, match="does not begin as one"):
        keras_small.load(io.BytesIO(b"something else"))
    with pytest.raises(TypeError, match="mode 'rb'"):
        keras_small.load(io.StringIO("text"))


@pytest.mark.parametrize(
    ("file", "way"),
    [
        ("a.keras", r"Use keras\.models\.load_model\('.*a\.keras'\)"),
        ("a.onnx", r"keras_small\.runtimes\.file_outputs"),
        ("a/saved_model.pb", r"Use keras_tnattn\.export\.load"),
        ("a/3/saved_model.pb", r"Use keras_tnattn\.export\.load"),
        ("a/text.json", r"Use keras_tnattn_runtime\.reader\.load"),
        ("a/config.json", "keras-tnattn predict"),
        ("b", r"keras\.models\.load_model loads \.keras files"),
    ],
)
def test_what_others_load_is_told(file, way, tmp_path):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    named = path if path.parent == tmp_path else tmp_path / "a"
    with pytest.raises(ValueError, match=f"Received: name='{named}'.*{way}"):
        keras_small.load(named)


def test_a_folder_of_ones_own(tmp_path):
    source = pretrained._HERE / "digits"
    for path in source.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    about = json.loads((tmp_path / pretrained.ABOUT).read_text(encoding="utf-8"))
    assert keras_small.load(tmp_path).card == about["card"]
