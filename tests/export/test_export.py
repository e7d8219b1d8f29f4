import json
import os
import shutil
import time

import keras
import numpy as np
import pytest
from import_path import run_python

from keras_tnattn import TensorizedSpectralAttention
from keras_tnattn.export import class_names_file, export_signatures, load, signatures
from keras_tnattn.export.classifiers import ignores_padding
from keras_tnattn.export.signatures import next_version
from keras_tnattn.text.words import split_words, word_vectorizer
from keras_tnattn_train.exports import Classifier, Version, export

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="only the TensorFlow backend exports"
)
TEXTS = ["the cat sat", "a dog ran", "the cat ran and the dog sat"]
NAMES = ("cat", "dog", "çat")


@pytest.fixture(scope="module")
def parts():
    vectorizer = word_vectorizer(TEXTS, max_words=6)
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(vectorizer.vocabulary_size(), 4)(ids)
    x = keras.layers.Lambda(lambda x: keras.ops.mean(x, axis=1))(x)
    return keras.Model(ids, keras.layers.Dense(3, "softmax")(x)), vectorizer


@pytest.fixture(scope="module")
def exported(parts, tmp_path_factory):
    return export(Classifier(*parts, NAMES), tmp_path_factory.mktemp("saved") / "pets")


@tensorflow_only
def test_both_signatures_equal_the_model(parts, exported):
    model, vectorizer = parts
    texts = [*TEXTS, ""]
    ids = np.asarray(vectorizer(np.array(texts)))
    want = model.predict(ids, verbose=0)
    classifier = load(exported)
    for got in (classifier(texts), classifier.from_ids(ids)):
        np.testing.assert_array_equal(got["probabilities"], want)
        assert list(got["label"]) == [NAMES[i] for i in want.argmax(1)]
    with pytest.raises(TypeError, match=r"Pass \[text\]"):
        classifier("a text")
    assert classifier.class_names == list(NAMES)
    assert classifier([])["label"].shape == (0,)
    assert classifier.from_ids(ids[:, :2])["probabilities"].shape == (4, 3)


@tensorflow_only
def test_loads_with_tensorflow_alone(parts, exported):
    code = f"""
import json, sys
import tensorflow as tf
model = tf.saved_model.load({str(exported)!r})
got = model.signatures["serving_default"](tf.constant({TEXTS!r} + [""]))
assert not any(name.startswith("keras_tnattn") for name in sys.modules)
labels = [label.decode() for label in got["label"].numpy()]
print(json.dumps([got["probabilities"].numpy().tolist(), labels]))
"""
    out = run_python("-c", code)
    probabilities, labels = json.loads(out.stdout)
    got = load(exported)([*TEXTS, ""])
    np.testing.assert_array_equal(np.float32(probabilities), got["probabilities"])
    assert labels == list(got["label"])
    assert np.isfinite(probabilities).all()


@tensorflow_only
def test_versions_count_up_and_are_never_changed(parts, tmp_path):
    folder = tmp_path / "pets"
    # What killed exports left is removed after a day.
    for name, hours in ((".partial-1-old", 25), (".partial-1-new", 1)):
        (folder / name).mkdir(parents=True)
        os.utime(folder / name, (time.time() - 3600 * hours,) * 2)
    assert export(Classifier(*parts, NAMES), folder, Version(9)).name == "9"
    assert export(Classifier(*parts, NAMES), folder).name == "10"
    assert load(folder).path == folder / "10"
    assert load(folder / "9").path == folder / "9"
    with pytest.raises(FileExistsError, match="9 exists"):
        export(Classifier(*parts, NAMES), folder, Version(9))
    with pytest.raises(ValueError, match="version=0"):
        export(Classifier(*parts, NAMES), folder, Version(0))
    with pytest.raises(ValueError, match="2 class_names"):
        export(Classifier(*parts, NAMES[:2]), folder)
    assert sorted(p.name for p in folder.iterdir()) == [".partial-1-new", "10", "9"]


def test_the_next_version_follows_the_highest(tmp_path):
    for name in ("1", "2", "5", "12", "notes"):
        (tmp_path / name).mkdir()
    assert next_version(tmp_path) == 13


@tensorflow_only
def test_weights_are_stored_once_and_without_gradients(exported):
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    names = [name for name, _ in tf.train.list_variables(str(exported / "variables" / "variables"))]
    assert not [name for name in names if name.startswith("variables/")]
    content = (exported / "saved_model.pb").read_bytes()
    library = saved_model_pb2.SavedModel.FromString(content).meta_graphs[0].graph_def.library
    assert not library.gradient
    assert b"_gradient_op_type" not in content
    assert not [f.signature.name for f in library.function if "grad" in f.signature.name]


@tensorflow_only
def test_damaged_models_are_named(exported, tmp_path):
    with pytest.raises(FileNotFoundError, match="path="):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"keras\.models\.load_model"):
        load(tmp_path / "model.keras")
    copy = tmp_path / "copy"
    shutil.copytree(exported, copy)
    for name in ("variables/variables.data-00000-of-00001", "saved_model.pb"):
        content = (copy / name).read_bytes()
        changed = bytearray(content)
        changed[len(content) // 2] ^= 1  # of the same size
        for damaged in (content[: len(content) // 2], changed):
            (copy / name).write_bytes(damaged)
            with pytest.raises(ValueError, match=rf"copy.*damaged.*{name}.*Export the model again"):
                load(copy)
        (copy / name).write_bytes(content)
    assert load(copy).class_names == list(NAMES)
    # Without a description TensorFlow finds what it can.
    (copy / "assets.extra" / "signatures.json").unlink()
    graph = copy / "saved_model.pb"
    graph.write_bytes(graph.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"saved_model\.pb.*damaged"):
        load(copy)


@tensorflow_only
def test_a_failed_export_leaves_nothing(parts, tmp_path):
    def broken(text):
        raise RuntimeError("no ids today")

    with pytest.raises((RuntimeError, ValueError)):
        export(Classifier(parts[0], broken, NAMES), tmp_path / "pets")
    assert list(tmp_path.iterdir()) == []


@tensorflow_only
def test_what_is_no_model_of_text_is_refused(parts, tmp_path):
    import tensorflow as tf

    traces = []

    def double(bits):
        traces.append(bits)
        return {"bits": 2 * bits}

    signature = (double, tf.TensorSpec([None], tf.int32, "bits"))
    for name, names in (("plain", None), ("named", NAMES)):
        path = export_signatures(
            {"serving_default": signature},
            [parts[0]],
            tmp_path / name,
            extra_files=names and class_names_file(names),
        )
        with pytest.raises(ValueError, match=r"and score\. .*from bits to bits"):
            load(path)
    assert len(traces) == 2  # one for each export


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="TensorFlow does export")
def test_other_backends_say_how(parts, tmp_path):
    with pytest.raises(RuntimeError, match="KERAS_BACKEND=tensorflow"):
        export(Classifier(*parts, NAMES), tmp_path / "pets")
    assert list(tmp_path.iterdir()) == []


@tensorflow_only
@pytest.mark.parametrize("masked", [True, False])
def test_texts_are_padded_as_little_as_the_model_allows(masked, tmp_path, capfd):
    import tensorflow as tf

    class Shown(keras.layers.Layer):
        supports_masking = True

        def call(self, inputs):
            tf.print("columns:", tf.shape(inputs)[1])
            return inputs

    vectorizer = word_vectorizer(["a b c d"], max_words=12)
    ids = keras.Input((None,), dtype="int32")
    x = Shown()(keras.layers.Embedding(6, 4, mask_zero=masked)(ids))
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(ids, keras.layers.Dense(2, "softmax")(x))
    # Its probabilities are 0 and 1 with any padding, so they do not show whether it matters.
    embedding = next(x for x in model.layers if isinstance(x, keras.layers.Embedding))
    embedding.set_weights([1e4 * np.ones((6, 4)) + np.arange(24).reshape(6, 4)])
    model.layers[-1].set_weights([np.array([[1.0, -1.0]] * 4), np.zeros(2)])
    folder = export(Classifier(model, vectorizer, ["x", "y"]), tmp_path)
    card = json.loads((folder / "assets.extra" / "model_card.json").read_text())
    assert card["inputs"]["text"] == {"by_length": masked}
    for texts, longest in ((["a b", "c a b d"], 4), ([" "], 1)):
        text = tf.constant(texts)
        expected = model(vectorizer(text))
        capfd.readouterr()
        signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
        got = signature(text=text)["probabilities"]
        assert capfd.readouterr().err.strip().endswith(f"columns: {longest if masked else 12}")
        np.testing.assert_allclose(got, expected, rtol=1e-5)


@tensorflow_only
def test_padding_counts_if_only_words_other_than_unknown_ones_show_it():
    ids = keras.Input((None,), dtype="int32")
    embedding = keras.layers.Embedding(4, 2)
    mean = keras.layers.GlobalAveragePooling1D()(embedding(ids))
    model = keras.Model(ids, keras.layers.Dense(2, "softmax")(mean))
    embedding.set_weights([np.array([[0, 0], [0, 0], [1, 2], [3, 4]])])
    assert not ignores_padding(model, 4)
    assert ignores_padding(model, 1)  # without words there are unknown ones alone


@tensorflow_only
def test_outputs_of_an_operation_keep_the_padding(tmp_path):
    vectorizer = word_vectorizer(["a b c d"], max_words=12)
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(6, 4, mask_zero=True)(ids)
    masked = keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(x))
    columns = keras.ops.sum(keras.ops.ones_like(ids, "float32"), axis=1, keepdims=True)
    model = keras.Model(ids, keras.ops.softmax(masked + columns * np.array([[0.1, 0.0]])))
    folder = export(Classifier(model, vectorizer, ["x", "y"]), tmp_path)
    card = json.loads((folder / "assets.extra" / "model_card.json").read_text())
    assert card["inputs"]["text"] == {"by_length": False}


@tensorflow_only
def test_a_model_of_one_length_gets_all_its_padding(tmp_path):
    import tensorflow as tf

    vectorizer = word_vectorizer(["a b c d"], max_words=12)
    ids = keras.Input((12,), dtype="int32")
    x = keras.layers.Flatten()(keras.layers.Embedding(6, 4)(ids))
    model = keras.Model(ids, keras.layers.Dense(2, "softmax")(x))
    folder = export(Classifier(model, vectorizer, ["x", "y"]), tmp_path)
    text = tf.constant(["a b", "c"])
    got = tf.saved_model.load(str(folder)).signatures["serving_default"](text=text)
    np.testing.assert_allclose(got["probabilities"], model(vectorizer(text)), rtol=1e-5)


@tensorflow_only
def test_exports_at_the_same_time_get_versions_of_their_own(parts, tmp_path, monkeypatch):
    folder, cards = tmp_path / "pets", signatures.technical

    def beside_another():
        monkeypatch.setattr(signatures, "technical", cards)
        export(Classifier(*parts, NAMES), folder)  # is complete before the one that began first
        return cards()

    monkeypatch.setattr(signatures, "technical", beside_another)
    path = export(Classifier(*parts, NAMES), folder)
    assert path.name == "2"
    assert sorted(p.name for p in folder.iterdir()) == ["1", "2"]
    for version in "12":
        card = folder / version / "assets.extra" / "model_card.json"
        assert json.loads(card.read_text())["version"] == int(version)
        assert load(folder / version)(TEXTS)["label"].shape == (3,)
    # A version that was asked for is not replaced by another.

    def taken():
        (folder / "7" / "variables").mkdir(parents=True)
        return cards()

    monkeypatch.setattr(signatures, "technical", taken)
    with pytest.raises(FileExistsError, match="7 exists"):
        export(Classifier(*parts, NAMES), folder, Version(7))


@tensorflow_only
@pytest.mark.parametrize("masked", [True, False])
def test_servers_pad_ids_only_where_padding_counts_nothing(masked, tmp_path):
    import tensorflow as tf

    vectorizer = word_vectorizer(TEXTS, max_words=12)
    ids = keras.Input((None,), dtype="int32")
    size = vectorizer.vocabulary_size()
    x = keras.layers.Embedding(size, 4, "random_normal", mask_zero=masked)(ids)
    x = TensorizedSpectralAttention(1, name="attention")(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(ids, keras.layers.Dense(3, "softmax")(10 * x))
    folder = export(Classifier(model, vectorizer, NAMES, split_words), tmp_path)
    card = json.loads((folder / "assets.extra" / "model_card.json").read_text())
    assert ("padding" in card["inputs"]["ids"]) == masked
    # An explanation is one of what the other signatures compute.
    signatures = tf.saved_model.load(str(folder)).signatures
    for texts in (TEXTS[:1], TEXTS):
        text = tf.constant(texts)
        explained, served = (
            signatures["explain"](text=text),
            signatures["serving_default"](text=text),
        )
        np.testing.assert_allclose(
            explained["probabilities"], served["probabilities"], rtol=1e-5, atol=1e-6
        )
        longest = max(len(text.split()) for text in texts)
        assert explained["graph"].shape == (len(texts), longest, longest)
