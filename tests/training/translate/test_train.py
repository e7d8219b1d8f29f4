"""Training a translator from the command line."""

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from conformance import to_numpy
from import_path import run_python
from run_folders import (
    EXPORTS,
    FILES,
    assert_equal,
    assert_refused,
    interrupted_after,
    killed_after,
)
from translate_commands import RESIDUAL, SMALL, command, small, table

from keras_tnattn_train.cli import train as main
from keras_tnattn_train.runs.checkpoints import load_weights
from keras_tnattn_train.runs.run import Run, from_json, to_json
from keras_tnattn_train.translate import train as training
from keras_tnattn_train.translate.config import TranslateConfig
from keras_tnattn_train.translate.train import TranslatorLog


def resuming(folder, *more):
    return ["translate", "--run-dir", str(folder), "--resume", *more]


def resumed(folder):
    return main(resuming(folder))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run, and the table it was trained on."""
    folder = tmp_path_factory.mktemp("whole")
    corpus = table(folder / "pairs.tsv")
    options = ["--checkpoint-epochs", "2", "3", "--early-stopping", "3"]
    assert main(command(corpus, folder / "run", *options)) == 0
    return corpus, folder / "run"


def copy_of(run, folder):
    """The run's folder as if it had been cut off before its end."""
    shutil.copytree(run, folder)
    for name in ("results.json", "model.keras", "learning_curves.png"):
        (folder / name).unlink()
    return folder


def test_a_run_folder_holds_it_all(whole):
    _, folder = whole
    assert {path.name for path in folder.iterdir()} == (FILES | {"prepared"}) - {"export.json"}
    kept = ("best_loss", "best_accuracy", "epoch_0002", "epoch_0003")
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {
        *("last.npz", *(f"{name}.weights.npz" for name in kept))
    }
    rows = Run(folder).read_metrics()
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "seconds"} <= set(rows[0])
    assert all(row["tokens_per_second"] > 0 for row in rows)
    results = Run(folder).results
    assert results["pairs"] == {"train": 108, "validation": 6, "test": 6}
    assert results["epochs"] == 4
    assert results["val_loss"] == min(row["val_loss"] for row in rows)
    # No other run, and nothing half made, beside it.
    assert {path.name for path in folder.parent.iterdir()} == {"pairs.tsv", "run"}


def test_lengths_of_both_parts_are_rounded_up(tmp_path, monkeypatch):
    rounded = []

    def fit(model, batches, config, run, validation, log):
        rounded.extend([batches.multiple, validation.multiple])
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "fit", fit)
    options = {name.replace("-", "_"): value for name, value in SMALL.items()}
    config = TranslateConfig(corpus=table(tmp_path / "pairs.tsv"), name="run", **options)
    with pytest.raises(KeyboardInterrupt):
        training.train_translator(config, Run(tmp_path / "run"), multiple=16)
    assert rounded == [16, 16]


def test_the_model_is_that_of_the_lowest_loss(whole):
    _, folder = whole
    model = keras.models.load_model(folder / "model.keras")
    rows = Run(folder).read_metrics()
    best = 1 + int(np.argmin([row["val_loss"] for row in rows]))
    weights, saved_weights = to_numpy(model.trainable_weights), {}
    for name in ("best_loss", "epoch_0002", "epoch_0003"):
        load_weights(model, folder / f"checkpoints/{name}.weights.npz", "")
        saved_weights[name] = to_numpy(model.trainable_weights)
    assert all(map(np.array_equal, weights, saved_weights["best_loss"]))
    assert not all(map(np.array_equal, saved_weights["epoch_0002"], saved_weights["epoch_0003"]))
    if best in (2, 3):
        assert all(map(np.array_equal, weights, saved_weights[f"epoch_000{best}"]))


@pytest.mark.slow
def test_an_interrupted_run_ends_as_an_uninterrupted_one(whole, tmp_path, monkeypatch):
    corpus, folder = whole
    run = tmp_path / "run"
    options = ["--checkpoint-epochs", "2", "3", "--early-stopping", "3"]
    interrupted_after(2, command(corpus, run, *options), monkeypatch)
    assert Run(run).results is None
    # The corpus is prepared already: it is not read again.
    monkeypatch.setattr("keras_tnattn_train.translate.train.load_pairs", None)
    assert resumed(run) == 0
    assert_equal(run, folder)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--attention", "sdpa"], ["--steps-per-execution", "3"]])
def test_killed_again_and_again(options, tmp_path):
    corpus = table(tmp_path / "pairs.tsv")
    without = RESIDUAL if "sdpa" in options else ()
    options = ["--corpus", corpus, *small(*without), *options, "--epochs", "60", "--run-dir"]
    assert main(["translate", *options, str(tmp_path / "whole")]) == 0
    folder = tmp_path / "run"
    killed_after(1, ["translate", *options, str(folder)], folder)
    for epochs in (3, 4):
        killed_after(epochs, ["translate", "--run-dir", str(folder), "--resume"], folder)
    assert resumed(folder) == 0
    assert_equal(folder, tmp_path / "whole")


@pytest.mark.slow
def test_a_lost_preparation_is_made_anew(whole, tmp_path):
    folder = copy_of(whole[1], tmp_path / "run")
    shutil.rmtree(folder / "prepared")
    assert resumed(folder) == 0
    assert_equal(folder, whole[1])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
def test_one_rename_starts_a_run(tmp_path, monkeypatch):
    partial = tmp_path / ".partial-run"
    partial.mkdir()
    (partial / "half").write_text("of an attempt that was killed")
    contents = []

    def interrupt(self, folder, config, data, *checked):
        contents.extend(path.name for path in folder.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "describe", interrupt)
    assert main(command(table(tmp_path / "pairs.tsv"), tmp_path / "run")) == 130
    assert contents == ["prepared"]
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.tsv"]


@pytest.mark.parametrize(("losses", "best"), [((3, 1, 2, 2, 2), 4), ((3, 3, 2, 1, 2), 5)])
def test_the_epochs_after_the_lowest_loss(tmp_path, losses, best):
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    log = TranslatorLog(run, None, (), 10, epochs_after_best=2)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    log.set_model(model)
    for epoch, loss in enumerate(losses, start=1):
        log.rows.append({"epoch": epoch, "val_loss": loss, "val_accuracy": 0.0})
        model.layers[0].bias.assign([epoch])
        log.keep_weights()
    assert log.chosen_epoch == best
    log.restore_best()
    assert keras.ops.convert_to_numpy(model.layers[0].bias).tolist() == [best]


JAX = """
import sys
for name in ("tensorflow", "tensorflow_text", "tensorflow_datasets"):
    sys.modules[name] = None
from keras_tnattn_train.cli import train as main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_training_on_jax_needs_no_tensorflow(whole, tmp_path):
    pytest.importorskip("jax")
    options = ["--prepared", str(whole[1] / "prepared"), "--run-dir", str(tmp_path / "run")]
    options += [*small("vocabulary-size"), "--epochs", "1", "--batch-size", "120"]
    run_python("-c", JAX, "translate", *options, backend="jax")
    assert Run(tmp_path / "run").results["epochs"] == 1
    assert not (tmp_path / "run/prepared").exists()


MIRRORED = """
import sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
found = tf.config.list_logical_devices
tf.config.list_logical_devices = lambda kind=None: found("CPU" if kind == "GPU" else kind)
made = tf.distribute.MirroredStrategy
def mirrored():
    strategy = made(["CPU:0", "CPU:1"])
    print("replicas", strategy.num_replicas_in_sync)
    return strategy
tf.distribute.MirroredStrategy = mirrored
from keras_tnattn_train.cli import train as main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not EXPORTS, reason="the strategies are TensorFlow's")
def test_several_devices_share_the_batches(whole, tmp_path):
    options = ["--dropout", "0", "--attention-dropout", "0", "--batch-size", "36"]
    arguments = command(whole[0], tmp_path / "run", *options)
    assert "replicas 2" in run_python("-c", MIRRORED, *arguments).stdout
    assert main(command(whole[0], tmp_path / "one", *options)) == 0
    losses = [
        [row["val_loss"] for row in Run(tmp_path / name).read_metrics()] for name in ("run", "one")
    ]
    # A loss is a mean over tokens, of which the halves of a batch have not the same number.
    np.testing.assert_allclose(*losses, rtol=0.1)


@pytest.mark.skipif(not EXPORTS, reason="only the TensorFlow backend exports")
@pytest.mark.slow
def test_a_finished_run_is_exported(whole, tmp_path, capsys):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers the operations on text

    folder = tmp_path / "run"
    shutil.copytree(whole[1], folder)
    saved = str(tmp_path / "saved")
    arguments = resuming(folder, "--export", "--export-beam", "2", "--saved-models", saved)
    assert main(arguments) == 0
    results = Run(folder).results
    assert results == Run(whole[1]).results | {"exported": results["exported"]}
    assert Path(results["exported"]).parents[1] == tmp_path / "saved"
    assert_equal(folder, whole[1])
    model = tf.saved_model.load(results["exported"])
    result = model.signatures["ids"](tf.constant([[2, 5, 6, 3]]))
    assert result["ids"].shape[:2] == (1, 2)
    assert main(arguments) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert resumed(folder) == 0
    assert len(list(Path(results["exported"]).parent.iterdir())) == 1


class TestRefusals:
    def test_options_given_again(self, whole, capsys):
        assert main(resuming(whole[1], "--checkpoint-epochs", "2", "3")) == 0
        assert "finished" in capsys.readouterr().out

    @pytest.mark.slow
    def test_a_corpus_that_changed(self, whole, capsys, tmp_path):
        # Prepared anew from other sentences, because the first preparation is gone.
        folder = copy_of(whole[1], tmp_path / "run")
        shutil.rmtree(folder / "prepared")
        config = from_json(TranslateConfig, (folder / "config.json").read_text())
        corpus = table(tmp_path / "other.tsv", pairs=110)
        config = config.replace(corpus=corpus)
        (folder / "config.json").write_text(to_json(config))
        assert_refused(capsys, resuming(folder), "was started", "vocabulary")

    def test_a_damaged_preparation(self, whole, capsys, tmp_path):
        folder = copy_of(whole[1], tmp_path / "run")
        (folder / "prepared/train_source_ids.npy").write_bytes(b"half a file")
        told = "prepare the corpus again"
        assert_refused(capsys, resuming(folder), "train_source_ids.npy", told)

    def test_a_missing_checkpoint(self, whole, capsys, tmp_path):
        folder = copy_of(whole[1], tmp_path / "run")
        # Only a best epoch before the last one is read from a file of its own.
        *rows, last = Run(folder).read_metrics()
        Run(folder).write_metrics([*rows, {**last, "val_loss": 99.0}])
        (folder / "checkpoints/best_loss.weights.npz").unlink()
        told = "to train the run from the beginning"
        assert_refused(capsys, resuming(folder), "best_loss.weights.npz", told)

    def test_a_checkpoint_of_another_vocabulary(self, whole, capsys, tmp_path):
        folder = copy_of(whole[1], tmp_path / "run")
        with np.load(folder / "checkpoints/last.npz") as file:
            arrays = [file[f"arr_{i}"] for i in range(len(file.files))]
        arrays[1] = arrays[1][:-1]  # the source embedding: a word piece less
        np.savez(folder / "checkpoints/last.npz", *arrays)
        assert_refused(capsys, resuming(folder), "checkpoint of this model", "last.npz")


@pytest.mark.slow
@pytest.mark.parametrize(("warmup", "warned"), [(4, False), (5, True)])
def test_a_warm_up_that_is_longer_than_the_run(whole, tmp_path, capsys, warmup, warned):
    # An epoch has 4 steps.
    more = ["--epochs", "1", "--warmup-steps", str(warmup)]
    assert main(command(whole[0], tmp_path / "run", *more)) == 0
    error = capsys.readouterr().err
    assert ("the 5 warm-up steps are more than the 4 steps of this run" in error) == warned
    assert ("--warmup-steps" in error) == warned
