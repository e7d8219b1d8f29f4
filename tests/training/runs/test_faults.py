"""Full disks, diverging losses and damaged metrics: one clear line, and the run can be resumed."""

import contextlib
import dataclasses
import importlib.util
import resource
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from conformance import assert_same_arrays

from keras_tnattn.estimator.batches import ArrayBatches
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs import finishing
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import fit, reset_session, start_session

# The tests of the commands train as a graph.
pytestmark = pytest.mark.usefixtures("eagerly")


@dataclasses.dataclass(frozen=True)
class Config:
    epochs: int = 3
    learning_rate: float = 0.01
    tensorboard: bool = False
    export: bool = False


def small_model(learning_rate=0.01):
    reset_session(0)
    inputs = keras.Input((3,), dtype="int32")
    x = keras.layers.Flatten()(keras.layers.Embedding(9, 40)(inputs))
    x = keras.layers.Dense(4)(keras.layers.Dropout(0.5)(x))
    model = keras.Model(inputs, x)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(learning_rate, momentum=0.9), loss)
    return model


def small_batches(kind=ArrayBatches):
    ids = np.random.default_rng(0).integers(0, 9, (12, 3))
    return kind(ids, np.arange(12) % 4, 4, seed=0)


@contextlib.contextmanager
def largest_file(num_bytes):
    """No file can grow beyond so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    return run


def weights(model):
    return [keras.ops.convert_to_numpy(weight) for weight in model.weights]


def test_a_checkpoint_that_cannot_be_written(run, tmp_path):
    whole = Run(tmp_path / "whole")
    whole.folder.mkdir()
    expected = small_model()
    fit(expected, small_batches(), Config(), whole)

    class FullInTheSecondEpoch(ArrayBatches):
        def set_epoch(self, epoch):
            super().set_epoch(epoch)
            if epoch == 1:
                stack.enter_context(largest_file(2000))

    with contextlib.ExitStack() as stack:
        message = r"Could not write .*last\.npz: file too large\. .*--resume"
        with pytest.raises(InputError, match=message):
            fit(small_model(), small_batches(FullInTheSecondEpoch), Config(), run)
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["last.npz"]
    resumed = small_model()
    log = fit(resumed, small_batches(), Config(), run)
    assert [row["epoch"] for row in log.rows] == [1, 2, 3]
    assert_same_arrays(weights(resumed), weights(expected))


def test_a_checkpoints_folder_that_cannot_be_made(run):
    (run.folder / "checkpoints").write_text("a file")
    with pytest.raises(InputError, match=r"Could not write .*checkpoints: file exists"):
        fit(small_model(), small_batches(), Config(), run)


@pytest.mark.parametrize(
    ("num_bytes", "name"),
    [(500, "model.keras"), pytest.param(40_000, "results.json", marks=pytest.mark.slow)],
)
def test_a_model_or_results_that_cannot_be_written(run, num_bytes, name):
    results = {"notes": "x" * 50_000}
    with largest_file(num_bytes), pytest.raises(InputError) as caught:
        finishing.finish(Config(), run, small_model(), results, None)
    assert f"{name}: file too large. Solve this" in str(caught.value)
    assert run.results is None
    assert not [path for path in run.folder.iterdir() if path.name.startswith(".partial")]
    finishing.finish(Config(), run, small_model(), results, None)
    assert run.results == results


@pytest.mark.parametrize("learning_rate", [1e30, pytest.param(1e15, marks=pytest.mark.slow)])
def test_a_diverging_training_stops_at_once(run, learning_rate):
    config = Config(epochs=500, learning_rate=learning_rate)
    with pytest.raises(InputError) as caught:
        fit(small_model(learning_rate), small_batches(), config, run)
    message = str(caught.value)
    epochs = len(run.read_metrics())
    assert f"in epoch {epochs + 1}" in message
    assert f"than {learning_rate:g}" in message
    assert "nothing was exported" in message
    assert epochs < 20
    assert all(np.isfinite(row["loss"]) for row in run.read_metrics())


class BrokenInTheThirdEpoch(ArrayBatches):
    def __getitem__(self, index):
        ids, labels = super().__getitem__(index)
        broken = self.epoch == 2 and index == 1
        return ids, labels, np.full(len(ids), np.nan if broken else 1.0, "float32")

    def set_epoch(self, epoch):
        super().set_epoch(epoch)
        self.epoch = epoch


def test_the_last_good_checkpoint_is_kept(run):
    fit(small_model(), small_batches(BrokenInTheThirdEpoch), Config(epochs=2), run)
    good = (run.folder / "checkpoints/last.npz").read_bytes()
    with pytest.raises(InputError, match=r"epoch 3, after 2 of 3 steps.*has the state after epoch"):
        fit(small_model(), small_batches(BrokenInTheThirdEpoch), Config(), run)
    assert (run.folder / "checkpoints/last.npz").read_bytes() == good


def test_a_folder_name_that_is_too_long(tmp_path):
    with pytest.raises(InputError, match=r"Could not use the run folder .*: file name too long"):
        Run(tmp_path / ("x" * 300)).check_new()


def test_tensorboard_that_is_not_installed(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "tensorboard" else found(name)
    )
    start_session(ClassifyConfig())
    with pytest.raises(InputError, match=r"\[tensorboard\]"):
        start_session(ClassifyConfig(tensorboard=True))


def test_an_export_of_another_run_is_not_taken_for_ones_own(tmp_path):
    pytest.importorskip("tensorflow")
    config = SimpleNamespace(export_folder=tmp_path / "saved", export_options={"beam": 1})
    config.export_folder.mkdir()
    killed, other = Run(tmp_path / "killed"), Run(tmp_path / "other")
    for run in (killed, other):
        run.folder.mkdir()

    def writing(text):
        def write(folder, version):
            (folder / str(version)).write_text(text)
            return folder / str(version)

        return write

    def kill(folder, version):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finishing._export_once(config, killed, kill)
    assert finishing._export_once(config, other, writing("other")).name == "1"
    path = finishing._export_once(config, killed, writing("killed"))
    assert (path.name, path.read_text()) == ("2", "killed")
    # Once is enough.
    assert finishing._export_once(config, killed, kill) == path
    assert finishing._export_once(config, other, kill).read_text() == "other"
    path.unlink()
    assert finishing._export_once(config, killed, writing("again")).read_text() == "again"
    path.unlink()

    def refuse(folder, version):
        raise InputError("Expected something else")

    with pytest.raises(InputError, match=r"^Expected something else$"):
        finishing._export_once(config, killed, refuse)
