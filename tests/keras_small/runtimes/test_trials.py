"""New files are tried in a process of their own, whose crash ends no other."""

import os
import sys

import keras
import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from keras_small import export
from keras_small.runtimes import computation
from keras_small.runtimes.computation import outputs_of, samples_of
from keras_small.runtimes.exporting import FORMS
from keras_tnattn_runtime import trial_process

BACKEND = keras.backend.backend()
SUFFIXES = [suffix for suffix, form in FORMS.items() if BACKEND in form.writers]
# Converters warn of their own libraries.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def process(monkeypatch):
    process = trial_process.TrialProcess()
    monkeypatch.setattr(computation, "trial_process", process)
    yield process
    process.end()


def model_of(units):
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_crash_of_a_runtime_is_an_error(suffix, process, tmp_path, monkeypatch):
    for module in FORMS[suffix].packages:
        pytest.importorskip(module)
    crash = "import os, sys; print('out of luck', file=sys.stderr, flush=True); os.abort()"
    path = tmp_path / f"model{suffix}"
    with monkeypatch.context() as patched:
        patched.setattr(trial_process, "_COMMAND", (sys.executable, "-c", crash))
        with pytest.raises(RuntimeError, match="crashed") as raised:
            export(model_of(2), path)
    message = str(raised.value)
    assert f"as {FORMS[suffix].name} from" in message
    assert "(SIGABRT): out of luck" in message
    assert "Write another kind of file" in message
    assert not list(tmp_path.iterdir())
    assert export(model_of(2), path).exists()  # by the next process


@pytest.mark.skipif(BACKEND == "jax", reason="does not write ONNX")
def test_one_process_serves_all_trials(process, tmp_path):
    for units in (2, 3):
        export(model_of(units), tmp_path / f"{units}.onnx")
        assert process._process.poll() is None
        if units == 2:
            first = process._process.pid
    assert process._process.pid == first != os.getpid()
    example = np.ones((2, 3), "float32")
    assert outputs_of(tmp_path / "3.onnx", [example])[0][0].shape == (2, 3)
    # An error of the runtime is no crash.
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(RuntimeError, match=r"(?i)protobuf|invalid"):
        outputs_of(tmp_path / "broken.onnx", [example])
    assert process._process.pid == first


def test_an_interrupted_trial_does_not_answer_the_next(process, monkeypatch):
    example = np.ones((2, 3), "float32")

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(trial_process.pickle, "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            process.ask("outputs", ".none", "file", [example])
    with pytest.raises(RuntimeError, match=r"\.other"):
        process.ask("outputs", ".other", "file", [example])


@pytest.mark.skipif(BACKEND == "jax", reason="does not write ONNX")
def test_samples_stand_for_outputs(tmp_path):
    model = keras.Sequential([keras.Input((6, 50)), keras.layers.Dense(40)])
    examples = list(np.random.default_rng(0).normal(size=(3, 1, 6, 50)).astype("float32"))
    path = export(model, tmp_path / "model.onnx", examples[0])
    samples = samples_of(path.read_bytes(), examples, ".onnx", 20)
    outputs = outputs_of(path, examples)
    for ((numbers, means),), (output,) in zip(samples, outputs, strict=True):
        assert 20 <= numbers.size <= 2 * 20 + 2
        assert np.isin(numbers, output).all()
        assert (numbers.min(), numbers.max()) == (output.min(), output.max())
        np.testing.assert_allclose(means, output.mean(axis=(0, 2)), rtol=1e-5)
