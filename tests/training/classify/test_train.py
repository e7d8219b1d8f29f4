import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from run_folders import FILES, assert_equal, assert_refused

from keras_tnattn.models import ATTENTIONS as CLASSIFIERS
from training.classify.config import ATTENTIONS, ClassifyConfig
from training.data.batches import ArrayBatches
from training.data.texts import split_rows
from training.engine.checkpoints import EpochLog, load_state, load_weights, save_state, save_weights
from training.engine.runs import Run
from training.errors import InputError
from training.files import replacing
from training.options import from_json, to_json
from training.train import main

ROOT = Path(__file__).parents[3]
EPOCHS = 30  # far more than a run has done when it is killed
DEADLINE = 120  # seconds a process has until its kill


def small_table(path, rows=240):
    rng = np.random.default_rng(0)
    words = {"a": ["red", "blue", "green", "grey"], "b": ["one", "two", "three", "four"]}
    lines = ["text,label"]
    for i in range(rows):
        label = "ab"[i % 2]
        lines.append(" ".join(rng.choice([*words[label], "the", "of"], 6)) + f",{label}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def command(table, folder, *more):
    options = "--max-words 8 --vocabulary-size 20 --embedding-dim 4 --batch-size 8"
    options += f" --epochs {EPOCHS}"
    return ["classify", "--dataset", table, "--run-dir", str(folder), *options.split(), *more]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    table = small_table(folder / "table.csv")
    assert main(command(table, folder / "run")) == 0
    return table, folder / "run"


def killed_after(epochs, arguments, folder):
    """Runs the command in a process of its own; kills it when so many epochs are written."""
    script = [sys.executable, str(ROOT / "training/train.py"), *arguments]
    deadline = time.monotonic() + DEADLINE
    with subprocess.Popen(script, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and len(Run(folder).read_metrics()) < epochs:
            if time.monotonic() > deadline:
                break
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert len(Run(folder).read_metrics()) >= epochs
    assert process.returncode == -signal.SIGKILL


def test_a_killed_run_ends_as_an_uninterrupted_one(uninterrupted, tmp_path):
    table, whole = uninterrupted
    folder = tmp_path / "run"
    killed_after(3, command(table, folder), folder)
    assert Run(folder).results is None
    assert main(["classify", "--run-dir", str(folder), "--resume"]) == 0
    assert_equal(folder, whole)
    assert [row["epoch"] for row in Run(folder).read_metrics()] == list(range(1, EPOCHS + 1))


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--early-stopping", "4"], ["--steps-per-execution", "4"]])
def test_killed_again_and_again(options, tmp_path):
    table = small_table(tmp_path / "table.csv")
    assert main(command(table, tmp_path / "whole", *options)) == 0
    folder = tmp_path / "run"
    killed_after(1, command(table, folder, *options), folder)
    for epochs in (2, 4, 5):
        killed_after(epochs, ["classify", "--run-dir", str(folder), "--resume"], folder)
    assert main(["classify", "--run-dir", str(folder), "--resume"]) == 0
    assert_equal(folder, tmp_path / "whole")


def test_a_run_folder_holds_it_all(uninterrupted):
    _, folder = uninterrupted
    assert {path.name for path in folder.iterdir()} == FILES - {"export.json"} | {
        "confusion_matrix.png",
        "psi.png",
        "report.csv",
        "mistakes.csv",
    }
    results = Run(folder).results
    assert results["test_accuracy"] > 0.9
    assert results["rows"] == {"train": 144, "test": 96}
    assert results["epochs"] == EPOCHS


def test_a_finished_run_stays_as_it_is(uninterrupted, capsys):
    _, folder = uninterrupted
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert main(["classify", "--run-dir", str(folder), "--resume"]) == 0
    assert "finished" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_cut_off_after_the_last_epoch(uninterrupted, tmp_path):
    # As if killed before the pictures and the model: nothing is trained, all is written.
    _, whole = uninterrupted
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.json", "data.json", "metrics.csv"):
        (folder / name).write_bytes((whole / name).read_bytes())
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints/last.npz").write_bytes((whole / "checkpoints/last.npz").read_bytes())
    assert main(["classify", "--run-dir", str(folder), "--resume"]) == 0
    assert_equal(folder, whole)


def test_every_attention_of_the_classifier_has_an_option():
    assert set(ATTENTIONS) <= set(CLASSIFIERS)


@pytest.mark.parametrize("attention", ["tn", "plga", "sdpa"])
def test_other_attentions_train(tmp_path, attention):
    table = small_table(tmp_path / "table.csv", rows=40)
    assert main(command(table, tmp_path / "run", "--attention", attention, "--epochs", "1")) == 0
    assert Run(tmp_path / "run").results["parameters"]["attention"] > 0


def test_graph_attention_trains_and_is_drawn(tmp_path):
    table = small_table(tmp_path / "table.csv")
    arguments = command(table, tmp_path / "run", "--attention", "tga", "--epochs", "1")
    assert main(arguments) == 0
    assert (tmp_path / "run/psi.png").is_file()


def test_small_embeddings_and_word_dropout_reach_the_model(tmp_path):
    options = "--attention dpa --epochs 1 --embedding tensor_train --embedding-rank 2"
    arguments = command(small_table(tmp_path / "table.csv", 40), tmp_path / "run", *options.split())
    assert main([*arguments, "--word-dropout", "0.25"]) == 0
    model = keras.models.load_model(tmp_path / "run/model.keras")
    assert type(model.get_layer("embedding")).__name__ == "TTEmbedding"
    assert max(model.get_layer("embedding").ranks) == 2
    assert model.get_layer("word_dropout").rate == 0.25


def test_rare_classes_count_as_much_as_frequent_ones(tmp_path, monkeypatch):
    seen = {}

    class Watched(ArrayBatches):
        def __init__(self, inputs, labels, batch_size, seed=None, sample_weights=None):
            super().__init__(inputs, labels, batch_size, seed, sample_weights)
            seen["labels"], seen["weights"] = labels, sample_weights

    monkeypatch.setattr("training.classify.train.ArrayBatches", Watched)
    table = tmp_path / "table.csv"
    rows = [f"word{i % 7} the,{'b' if i % 4 == 0 else 'a'}" for i in range(40)]
    table.write_text("\n".join(["text,label", *rows]) + "\n")
    options = ["--attention", "dpa", "--epochs", "1", "--class-weights", "balanced"]
    options += ["--tensorboard"]
    assert main(command(str(table), tmp_path / "run", *options)) == 0
    totals = [seen["weights"][seen["labels"] == label].sum() for label in (0, 1)]
    np.testing.assert_allclose(totals, len(seen["labels"]) / 2, rtol=1e-6)
    assert list((tmp_path / "run/tensorboard").rglob("events.out.tfevents.*"))


@pytest.mark.parametrize("learning_rate", ["1e30"])
def test_a_diverging_run_stops(tmp_path, capsys, learning_rate):
    arguments = command(small_table(tmp_path / "table.csv", 40), tmp_path / "run", "--attention")
    arguments += ["dpa", "--learning-rate", learning_rate]
    assert_refused(capsys, arguments, "Training diverged", "lower --learning-rate than 1e+30")
    assert Run(tmp_path / "run").results is None


@pytest.mark.parametrize("script", [["training/train.py"], ["-m", "training.train"]])
def test_both_ways_to_start(script):
    run = [sys.executable, *script, "classify", "--help"]
    shown = subprocess.run(run, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "(default: 0.9)" in shown
    assert "--dataset reuters --attention dpa" in shown


def test_early_stopping_keeps_the_best_epoch(tmp_path):
    table = small_table(tmp_path / "table.csv")
    # A learning rate this high is soon past its best.
    options = ["--early-stopping", "2", "--learning-rate", "0.3"]
    assert main(command(table, tmp_path / "run", *options)) == 0
    losses = [row["val_loss"] for row in Run(tmp_path / "run").read_metrics()]
    assert len(losses) == min(EPOCHS, int(np.argmin(losses)) + 3)
    assert Run(tmp_path / "run").results["rows"] == {"train": 129, "test": 96, "validation": 15}

    model = keras.models.load_model(tmp_path / "run/model.keras")
    weights = [keras.ops.convert_to_numpy(weight) for weight in model.trainable_variables]
    checkpoints = []
    for name in ("best", "last"):
        with np.load(tmp_path / f"run/checkpoints/{name}.npz") as file:
            checkpoints.append([file[f"arr_{i}"] for i in range(1, 1 + len(weights))])
    best, last = checkpoints
    assert all(map(np.array_equal, weights, best))
    assert not any(map(np.array_equal, weights, last))


def test_each_epoch_has_an_order_of_its_own(tmp_path, monkeypatch):
    orders = []

    class Watched(ArrayBatches):
        def __getitem__(self, index):
            orders.append(self.order.tobytes())
            return super().__getitem__(index)

    monkeypatch.setattr("training.classify.train.ArrayBatches", Watched)
    table = small_table(tmp_path / "table.csv", rows=40)
    assert main(command(table, tmp_path / "run", "--attention", "dpa", "--epochs", "3")) == 0
    assert len(set(orders)) == 3


def test_words_of_the_test_part_alone_are_not_learned(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["text,label", *(f"word{i} the,{i % 2}" for i in range(40))]) + "\n")
    options = ["--vocabulary-size", "99", "--attention", "dpa", "--epochs", "1"]
    assert main(command(str(table), tmp_path / "run", *options)) == 0
    vocabulary = json.loads((tmp_path / "run/data.json").read_text())["vocabulary"]
    train, _ = split_rows(np.arange(40) % 2, 0.4, seed=0)
    assert {word for word in vocabulary if word.startswith("word")} == {f"word{i}" for i in train}


class TestRefusals:
    def test_an_existing_run(self, uninterrupted, capsys):
        table, folder = uninterrupted
        assert_refused(capsys, command(table, folder), "which exists", "--resume")

    def test_nothing_to_resume(self, capsys, tmp_path):
        folder = tmp_path / "run"
        assert_refused(
            capsys, ["classify", "--run-dir", str(folder), "--resume"], "Leave out --resume"
        )

    def test_other_options(self, uninterrupted, capsys):
        table, folder = uninterrupted
        assert_refused(
            capsys, command(table, folder, "--resume", "--seed", "3"), "seed=0", "seed=3"
        )

    def test_other_data(self, uninterrupted, capsys, tmp_path):
        _, whole = uninterrupted
        table = small_table(tmp_path / "table.csv", rows=100)
        config = from_json(ClassifyConfig, (whole / "config.json").read_text())
        run = Run(tmp_path / "run")
        run.start(config.changed(dataset=table), {})
        assert_refused(
            capsys, ["classify", "--run-dir", str(run.folder), "--resume"], "other texts"
        )

    def test_an_unreadable_checkpoint(self, uninterrupted, capsys, tmp_path):
        _, whole = uninterrupted
        folder = tmp_path / "run"
        (folder / "checkpoints").mkdir(parents=True)
        for name in ("config.json", "data.json"):
            (folder / name).write_bytes((whole / name).read_bytes())
        (folder / "checkpoints/last.npz").write_bytes(b"PK half a file")
        arguments = ["classify", "--run-dir", str(folder), "--resume"]
        assert_refused(capsys, arguments, "last.npz", "Delete it")

    @pytest.mark.parametrize(
        ("options", "parts"),
        [
            (["--dataset", "no_such_set"], ["dataset='no_such_set'"]),
            (["--text-column", "body"], ["column 'body'"]),
            (["--damping", "1.0"], ["damping=1.0"]),
            (["--vocabulary-size", "2"], ["vocabulary_size=2"]),
            (["--test-fraction", "1.5"], ["test_fraction=1.5"]),
            (["--epochs", "0"], ["epochs=0"]),
            (["--learning-rate", "0"], ["learning_rate=0"]),
            (["--learning-rate", "inf"], ["learning_rate=inf"]),
            (["--learning-rate", "nan"], ["learning_rate=nan"]),
            (["--name", "../out"], ["name='../out'"]),
            (["--attention", "dpa", "--damping", "0.5"], ["damping=0.5", "attention='dpa'"]),
            (["--attention", "dpa", "--residual-dim", "8"], ["residual_dim=8", "'dpa'"]),
            (["--attention", "tn", "--num-heads", "3"], ["num_heads=3", "attention='tn'"]),
            (["--embedding-rank", "8"], ["embedding_rank=8", "embedding='dense'"]),
            (["--word-dropout", "1"], ["word_dropout=1"]),
        ],
    )
    def test_bad_options_leave_no_folder(self, tmp_path, capsys, options, parts):
        table = small_table(tmp_path / "table.csv")
        assert_refused(capsys, command(table, tmp_path / "runs/run", *options), *parts)
        assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]

    @pytest.mark.parametrize(
        ("content", "part"),
        [
            ("", "empty"),
            ("text,label\na,x\nb,x\n", "two classes"),
            ("text,label\n" + "?,x\n!,y\n" * 5, "without any"),
            ("text,label\na,x\nb,y\n", "two rows or more"),
        ],
    )
    def test_bad_tables_leave_no_folder(self, tmp_path, capsys, content, part):
        (tmp_path / "table.csv").write_text(content)
        arguments = command(str(tmp_path / "table.csv"), tmp_path / "runs/run")
        assert_refused(capsys, arguments, part)
        assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]

    @pytest.mark.skipif(
        keras.backend.backend() == "tensorflow", reason="the TensorFlow backend does export"
    )
    def test_export_on_another_backend(self, tmp_path, capsys):
        table = small_table(tmp_path / "table.csv")
        arguments = command(table, tmp_path / "run", "--export")
        assert_refused(capsys, arguments, "KERAS_BACKEND=tensorflow")
        assert not (tmp_path / "run").exists()


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="only the TensorFlow backend exports"
)
class TestExport:
    def arguments(self, tmp_path, *more):
        options = ["--attention", "dpa", "--epochs", "1", "--name", "small", "--export"]
        options += ["--saved-models", str(tmp_path / "saved"), *more]
        return command(small_table(tmp_path / "table.csv"), tmp_path / "run", *options)

    def test_an_impossible_folder_is_told_before_the_training(self, tmp_path, capsys):
        (tmp_path / "saved").write_text("a file")
        assert main(self.arguments(tmp_path)) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert str(tmp_path / "saved") in error
        assert not (tmp_path / "run").exists()

    def test_a_failed_export_is_told_in_a_line(self, tmp_path, capsys, monkeypatch):
        def full(*_):
            raise OSError("No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("training.classify.train.export", full)
            assert main(self.arguments(tmp_path)) == 2
        assert "no space left" in capsys.readouterr().err
        assert Run(tmp_path / "run").results is None
        assert main(["classify", "--run-dir", str(tmp_path / "run"), "--resume"]) == 0
        assert Run(tmp_path / "run").results["exported"] == str(tmp_path / "saved/small/1")

    def test_a_continued_run_exports_no_second_time(self, tmp_path, capsys):
        assert main(self.arguments(tmp_path)) == 0
        run = Run(tmp_path / "run")
        results = run.results
        (run.folder / "results.json").unlink()  # as if killed between the two
        assert main(["classify", "--run-dir", str(run.folder), "--resume"]) == 0
        assert run.results == results
        assert [path.name for path in (tmp_path / "saved/small").iterdir()] == ["1"]
        resume = ["classify", "--run-dir", str(run.folder), "--resume", "--saved-models"]
        assert main([*resume, str(tmp_path / "saved")]) == 0
        assert "nothing to do" in capsys.readouterr().out
        assert main([*resume, str(tmp_path / "other")]) == 0  # of a finished run
        assert run.results == results | {"exported": str(tmp_path / "other/small/1")}
        assert Path(run.results["exported"]).is_dir()


def test_config_survives_json():
    config = ClassifyConfig(dataset="tfds:ag_news_subset", damping=0.5)
    assert config.name == "ag_news_subset-tsa-0"
    assert from_json(ClassifyConfig, to_json(config)) == config
    with pytest.raises(InputError, match="color"):
        from_json(ClassifyConfig, '{"color": "red"}')


@pytest.mark.parametrize(
    ("dataset", "source"),
    [
        ("docstrings", "docstrings"),
        ("my data.csv", "my_data"),
        ("C:table.v2.tsv.xz", "C_table"),
        ("-.csv", "_"),
        (".", "here"),
        ("../there/../here/", "here"),
        ("/", "data"),
        ("tfds:ag_news_subset:1.0.0", "ag_news_subset"),
        ("tfds:glue/cola", "glue_cola"),
    ],
)
def test_the_default_name_is_a_name(tmp_path, monkeypatch, dataset, source):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert ClassifyConfig(dataset=dataset).name == f"{source}-tsa-0"


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def interrupted():
        with replacing(path) as partial:
            partial.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def tiny_model():
    inputs = keras.Input((3,), dtype="int32")
    x = keras.layers.Embedding(9, 4)(inputs)
    x = keras.layers.Dropout(0.5)(keras.layers.Flatten()(x))
    model = keras.Model(inputs, keras.layers.Dense(2, "softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def test_a_checkpoint_holds_all_that_the_next_epoch_needs(tmp_path):
    ids, labels = np.arange(24).reshape(8, 3) % 9, np.arange(8) % 2
    first, second = tiny_model(), tiny_model()
    first.fit(ids, labels, verbose=0)
    save_state(first, 7, tmp_path / "state.npz")
    assert load_state(second, tmp_path / "state.npz") == 7
    for model in (first, second):
        model.fit(ids, labels, shuffle=False, verbose=0)
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1', "\x00", None])
def test_damaged_descriptions_of_a_run(tmp_path, content):
    run = Run(tmp_path / "run")
    run.start(ClassifyConfig(), {"a": 1})
    run.finish({"loss": 1.0})
    for name, read in (
        ("results.json", lambda: run.results),
        ("data.json", lambda: run.check_data({"a": 1})),
        ("config.json", lambda: run.read_config(ClassifyConfig, {})),
    ):
        path = run.folder / name
        path.write_bytes(b"\xff" if content is None else content.encode())
        with pytest.raises(InputError, match="Received"):
            read()


def test_damaged_metrics(tmp_path):
    run, model = Run(tmp_path / "run"), tiny_model()
    run.start(ClassifyConfig(), {})
    run.write_metrics([{"epoch": i, "loss": i / 8} for i in (1, 2)])
    log, path = EpochLog(run), run.folder / "metrics.csv"
    log.set_model(model)
    save_state(model, 2, run.folder / "checkpoints/last.npz")
    whole = path.read_bytes()
    assert log.restore() == 2
    for damaged in (
        b"",
        whole[:-9],
        whole[:-7],
        whole.replace(b"0.", b"?"),
        whole + b",,1",
        b"\xff",
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"metrics\.csv.*Delete its checkpoints"):
            log.restore()
    path.unlink()
    with pytest.raises(InputError, match="each of 2 epochs"):
        log.restore()


def test_a_damaged_checkpoint_is_refused_or_the_same(tmp_path):
    model, other = tiny_model(), tiny_model()
    path = tmp_path / "weights.npz"
    save_weights(model, 7, path)
    whole, refused = path.read_bytes(), 0
    for position in range(len(whole)):
        path.write_bytes(
            whole[:position]
            + bytes([whole[position] ^ (1 + position % 255)])
            + whole[position + 1 :]
        )
        try:
            assert load_weights(other, path, "Choose another") == 7
        except InputError:
            refused += 1
            continue
        for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    assert refused > len(whole) / 2


def test_a_row_without_its_checkpoint_is_dropped(tmp_path):
    run = Run(tmp_path / "run")
    run.start(ClassifyConfig(), {})
    run.write_metrics([{"epoch": i, "loss": 1.0} for i in (1, 2, 3)])
    log, model = EpochLog(run), tiny_model()
    log.set_model(model)
    save_state(model, 2, run.folder / "checkpoints/last.npz")
    assert log.restore() == 2
    assert [row["epoch"] for row in log.rows] == [1, 2]


@pytest.mark.parametrize(
    ("ends", "seconds"),
    [
        ([(1, 100.0), (2, 101.0), (3, 102.0), (10, 109.0)], 1.0),
        ([(4, 100.0), (8, 104.0), (12, 106.0)], 1.0),  # 10 steps, 4 in an execution
        ([(10, 100.0)], 10.0),
    ],
)
def test_the_time_of_a_step_leaves_compiling_out(tmp_path, monkeypatch, ends, seconds):
    run = Run(tmp_path / "run")
    run.start(ClassifyConfig(), {})
    log = EpochLog(run)
    log.set_params({"steps": 10})
    log.set_model(tiny_model())
    clock = iter([0.0, *(end for _, end in ends)])
    with monkeypatch.context() as patched:
        patched.setattr("training.engine.checkpoints.time.perf_counter", lambda: next(clock))
        log.on_epoch_begin(0)
        for steps, _ in ends:
            log.on_train_batch_end(steps - 1)
    log.on_epoch_end(0, {"loss": 1.0})
    assert log.rows == [
        {"epoch": 1, "loss": 1.0, "seconds_per_step": seconds, "seconds": ends[-1][1]}
    ]


def test_a_loss_that_is_no_number_is_not_the_best(tmp_path):
    run = Run(tmp_path / "run")
    run.start(ClassifyConfig(), {})
    log = EpochLog(run, patience=2)
    log.rows = [{"val_loss": loss} for loss in (1.0, float("nan"), 2.0)]
    assert log.done
    log.rows.append({"val_loss": 0.5})
    assert not log.done


def test_the_order_depends_on_seed_and_epoch():
    def order(seed, epoch):
        batches = ArrayBatches(np.arange(10)[:, None], np.arange(10), 4, seed)
        batches.set_epoch(epoch)
        seen = [batches[i] for i in range(len(batches))]
        assert [len(labels) for _, labels in seen] == [4, 4, 2]
        assert all((ids[:, 0] == labels).all() for ids, labels in seen)
        return np.concatenate([labels for _, labels in seen]).tolist()

    assert order(3, 5) == order(3, 5)
    assert sorted(order(3, 5)) == list(range(10))
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
