"""SavedModels, ONNX and LiteRT files of numeric models, run and compared with the model."""

from pathlib import Path

import keras
import numpy as np
import pytest

from keras_tnattn.export import export_litert, export_onnx, export_saved_model, formats
from keras_tnattn.layers import TTDense
from keras_tnattn.models import text_classifier

BACKEND = keras.backend.backend()
EXPORTS = {"SavedModel": export_saved_model, "ONNX": export_onnx, "LiteRT": export_litert}
NEEDS = {"SavedModel": "tensorflow", "ONNX": "onnxruntime", "LiteRT": "tensorflow"}
SUFFIXES = {"SavedModel": "", "ONNX": ".onnx", "LiteRT": ".tflite"}
IDS = np.random.default_rng(0).integers(1, 30, (3, 9)).astype("int32")
IDS[0, 5:] = 0
# Converters warn of their own libraries.
pytestmark = pytest.mark.filterwarnings("ignore")


def classifier():
    # The exporter of PyTorch 2.13 makes a file of the spectral attention that does not load.
    attention = "dpa" if BACKEND == "torch" else "tsa"
    return text_classifier(30, 3, attention, embedding_dim=8, word_dropout=0.2)


@pytest.mark.parametrize("form", EXPORTS)
def test_computes_what_the_model_does(form, tmp_path):
    path = tmp_path / f"model{SUFFIXES[form]}"
    model = classifier()
    if BACKEND not in formats.BACKENDS[form]:
        with pytest.raises(RuntimeError, match=f"KERAS_BACKEND=.*backend='{BACKEND}'"):
            EXPORTS[form](model, path, IDS)
        return
    pytest.importorskip(NEEDS[form])
    options = {"length": 9} if BACKEND == "jax" else {}
    assert EXPORTS[form](model, path, IDS, **options) == path
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    with pytest.raises(FileExistsError, match="model"):
        EXPORTS[form](model, path, IDS)
    if form == "LiteRT" or BACKEND == "torch":
        return
    # Another batch size and, where it is not fixed, length.
    other = IDS[:2] if BACKEND == "jax" else np.tile(IDS[:2], (1, 3))
    run = {"SavedModel": formats._run_saved_model, "ONNX": formats._run_onnx}[form]
    expected = model.predict(other, verbose=0)
    np.testing.assert_allclose(run(str(path), other), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(BACKEND not in formats.BACKENDS["ONNX"], reason="does not write ONNX")
def test_a_model_of_two_inputs_becomes_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    inputs = {name: keras.Input((8,), name=name) for name in ("left", "right")}
    maps = {name: TTDense(4, name=f"{name}_map")(x) for name, x in inputs.items()}
    model = keras.Model(inputs, maps["left"] - 2 * maps["right"])
    rng = np.random.default_rng(0)
    example = {name: rng.normal(size=(3, 8)).astype("float32") for name in inputs}
    assert export_onnx(model, tmp_path / "model.onnx", example).exists()


def test_a_file_that_computes_something_else_is_not_kept(tmp_path, monkeypatch):
    form = next(form for form, backends in formats.BACKENDS.items() if BACKEND in backends)
    monkeypatch.setattr(keras.Model, "export", lambda self, path, **kwargs: open(path, "w").close())
    for name in ("_run_saved_model", "_run_onnx"):
        monkeypatch.setattr(formats, name, lambda path, example: np.zeros((3, 3)))
    with pytest.raises(RuntimeError, match=f"as {form}") as raised:
        EXPORTS[form](classifier(), tmp_path / "model", IDS)
    assert "something else" in str(raised.value.__cause__)
    assert not list(tmp_path.iterdir())


def test_files_of_another_export_do_not_become_part_of_this_one(tmp_path, monkeypatch):
    form = next(form for form, backends in formats.BACKENDS.items() if BACKEND in backends)
    used = []

    def export(self, path, **kwargs):
        Path(path).mkdir()
        (Path(path) / "new").touch()
        used.append(Path(path))

    monkeypatch.setattr(keras.Model, "export", export)
    for name in ("_run_saved_model", "_run_onnx", "_run_litert"):
        monkeypatch.setattr(formats, name, lambda path, example: model.predict(IDS, verbose=0))
    model = classifier()
    options = {"length": 9} if BACKEND == "jax" else {}
    paths = [EXPORTS[form](model, tmp_path / name, IDS, **options) for name in ("a", "b")]
    assert [[file.name for file in path.iterdir()] for path in paths] == [["new"], ["new"]]
    assert len({path.parent for path in used}) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
