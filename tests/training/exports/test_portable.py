"""Folders with a model and its text, read without Keras and TensorFlow."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from portable_models import HOSTILE, NAMES, RUNTIMES, TEXTS, classifier, printed_alone

from keras_tnattn.text.words import split_words
from keras_tnattn_runtime import reader
from keras_tnattn_train.exports import Classifier, Page, Portable, Search, Version, export, pages


def written(folder, runtime="onnxruntime"):
    pytest.importorskip(RUNTIMES[runtime])
    model, words = classifier()
    card = {"name": "pets", "examples": ["the red fish", *TEXTS]}
    task = Classifier(model, words, NAMES, card=card)
    return export(task, folder / "pets", Portable(runtime))


def rewrite(folder, change):
    """Lets a function change the content of `text.json`, and seals it again."""
    content = reader.read_sealed(folder / "text.json")
    change(content)
    (folder / "text.json").write_bytes(reader.sealed(content))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_reader_gives_the_classes_of_the_model(runtime, tmp_path):
    folder = written(tmp_path, runtime)
    files = {"text.json", "reader.py", "model.onnx" if runtime == "onnxruntime" else "model.tflite"}
    assert {path.name for path in folder.iterdir()} == files
    assert [path.name for path in tmp_path.iterdir()] == ["pets"]
    model, words = classifier()
    expected = model.predict(words([*TEXTS, *HOSTILE]), verbose=0)
    loaded = reader.load(folder)
    np.testing.assert_allclose(loaded.probabilities([*TEXTS, *HOSTILE]), expected, atol=1e-5)
    labels = [NAMES[n] for n in expected.argmax(axis=1)]
    assert loaded([*TEXTS, *HOSTILE]) == labels
    assert loaded(TEXTS[1]) == labels[1]
    assert loaded([]) == []
    assert loaded.card["name"] == "pets"


@pytest.mark.parametrize("by_length", [True, False])
def test_texts_of_similar_length_are_computed_together(by_length, tmp_path):
    folder = written(tmp_path)
    text = reader.read_sealed(folder / "text.json")
    rewrite(
        folder,
        lambda content: content.update(
            by_length=by_length, words={**content["words"], "max_words": 300}
        ),
    )
    loaded, calls = reader.load(folder), []
    words = text["words"]["vocabulary"]
    lengths = [200, 3, 64, 0, 65, 130, 2, 400]
    texts = [" ".join((words * 400)[:length]) for length in lengths]
    alone = np.concatenate([loaded.probabilities(text) for text in texts])
    compute = loaded._model

    def noted(**arrays):
        calls.append(next(iter(arrays.values())).shape)
        return compute(**arrays)

    noted.inputs, loaded._model = compute.inputs, noted
    np.testing.assert_allclose(loaded.probabilities(texts), alone, atol=1e-6)
    if by_length:
        assert sorted(rows for rows, _ in calls) == [1, 1, 1, 1, 1, 3]
        assert max(length for _, length in calls) == 300
        assert (3, 64) in calls
    else:
        assert calls == [(8, 300)]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_another_process_needs_neither_keras_nor_tensorflow(runtime, tmp_path):
    folder = written(tmp_path, runtime)
    assert printed_alone(folder, "model('a red fish')") == reader.load(folder)("a red fish")


def words_of_training(text):
    return [word.decode() for word in split_words([text])[0].numpy()]


@pytest.mark.parametrize("text", HOSTILE)
def test_words_of_hostile_texts_are_those_of_the_exported_graph(text, tmp_path):
    words = reader.Words([], reader_rules(), 100_000)
    assert words.split(text) == words_of_training(text)


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_words_of_any_text_are_those_of_training(text):
    _, vectorizer = classifier()
    words = reader.Words(vectorizer.get_vocabulary()[2:], reader_rules(), vectorizer.max_words)
    ids = words(text)
    assert vectorizer([text])[0].tolist() == ids + [0] * (12 - len(ids))


def reader_rules():
    from keras_tnattn.text.words import BETWEEN_WORDS

    return BETWEEN_WORDS


def test_damaged_folders_are_refused(tmp_path):
    folder = written(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"text\.json"):
        reader.load(tmp_path)
    text = (folder / "text.json").read_bytes()
    rewrite(folder, lambda content: content.update(format=99))
    with pytest.raises(ValueError, match=r"version 99.*export the model again"):
        reader.load(folder)
    for damaged in (b"{", text[:-1], text.replace(b'"task"', b'"tusk"'), text.lower()):
        (folder / "text.json").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"text\.json.*damaged"):
            reader.load(folder)
    # As before there were checksums.
    content = json.loads(text)
    del content["sha256"]
    (folder / "text.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(ValueError, match=r"checksum.*earlier version.*export the model again"):
        reader.load(folder)
    (folder / "text.json").write_bytes(text)
    rewrite(folder, lambda content: content["files"]["model"].pop("sha256"))
    with pytest.raises(ValueError, match=r"text\.json.*damaged"):
        reader.load(folder)
    (folder / "text.json").write_bytes(text)
    assert reader.load(folder)("a red fish") in NAMES


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_damage_of_a_model_is_found(runtime, tmp_path):
    folder = written(tmp_path, runtime)
    model = next(folder.glob("model.*"))
    content = model.read_bytes()
    model.write_bytes(content[:-100])
    with pytest.raises(ValueError, match=r"model\..*bytes.*Copy the file again"):
        reader.load(folder)
    # Of the same size, in one bit, at many places: most such files run, and answer otherwise.
    for place in np.linspace(0, len(content) - 1, 12).astype(int):
        damaged = bytearray(content)
        damaged[place] ^= 1
        model.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model\..*damaged.*checksum.*Copy it again"):
            reader.load(folder)
    model.write_bytes(content)
    assert reader.load(folder)("a red fish") in NAMES


def test_a_missing_runtime_is_named(tmp_path, monkeypatch):
    folder = written(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="pip install onnxruntime"):
        reader.load(folder)


def test_arguments_are_checked_before_anything_is_written(tmp_path):
    model, words = classifier()
    task = Classifier(model, words, NAMES)
    with pytest.raises(ValueError, match="runtime='tvm'"):
        export(task, tmp_path / "new", Portable("tvm"))
    with pytest.raises(ValueError, match="runtime='tvm'"):
        export(task, tmp_path / "new", Version(engines=("tvm",)))
    for form in (Portable(), Version()):
        with pytest.raises(ValueError, match="2 class_names"):
            export(Classifier(model, words, NAMES[:2]), tmp_path / "new", form)
    for form in (Portable(), Page(tmp_path)):
        with pytest.raises(FileExistsError, match="never overwrite"):
            export(task, tmp_path, form)
    with pytest.raises(FileNotFoundError, match="onnxruntime-web"):
        export(task, tmp_path / "page", Page(tmp_path))
    with pytest.raises(ValueError, match=r"Page of a search.*Portable\("):
        export(Search(model, None, ["a"]), tmp_path / "new", Portable())
    assert not list(tmp_path.iterdir())


def test_the_page_ships_little_beside_the_runtime():
    page = Path(pages.__file__).with_name("page")
    sizes = {file.name: file.stat().st_size for file in page.iterdir()}
    others = ("pieces.js", "search.js", "translator.js")  # which pages of classifiers do not have
    assert sum(map(sizes.pop, others)) < 12_000
    assert sum(sizes.values()) < 19_000
