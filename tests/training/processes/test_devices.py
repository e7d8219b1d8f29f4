"""Several devices and processes train as one does; JAX trains in processes of its own here."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from conformance import assert_same_arrays
from import_path import IMPORT_PATH
from run_folders import assert_refused
from translate_commands import table

from keras_tnattn.estimator.batches import ArrayBatches
from keras_tnattn_train.data.pairs.batches import BucketedBatches
from keras_tnattn_train.data.pairs.loading import load_pairs
from keras_tnattn_train.data.pairs.prepared import Preparing, load_prepared, prepare
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.processes import devices as devices_module
from keras_tnattn_train.processes.devices import COORDINATOR, NUM_PROCESSES, PROCESS_ID
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import ProcessShare

ROOT = Path(__file__).parents[3]
CODE = """
import json, sys
from keras_tnattn_train.cli import train as main
for arguments in json.loads(sys.argv[1]):
    print("status", main(arguments), file=sys.stderr)
"""
RULES = ["--length", "6", "--batches-per-epoch", "3", "--batch-size", "8", "--bond-dim", "2"]


def on_jax(words, devices=None, **options):
    """Starts Python on JAX with so many devices of the CPU."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": IMPORT_PATH}
    if devices is not None:
        environment["JAX_NUM_CPU_DEVICES"] = str(devices)
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *words], env=environment, cwd=ROOT, **options)


def run_all(*commands, devices=4):
    """Runs commands of `train.py` one after the other in one process; returns its stderr."""
    process = on_jax(["-c", CODE, json.dumps(commands)], devices)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return errors.splitlines()


def launched(*arguments, processes=2):
    return on_jax(["-m", "keras_tnattn_train", "launch", "-n", str(processes), "--", *arguments])


def finished(process, timeout=600):
    """Waits for a process that has to succeed; returns its stdout."""
    output, errors = process.communicate(timeout=timeout)
    assert process.returncode == 0, errors
    return output


def trained(run):
    """What a run's last checkpoint holds, and its metrics but for the times."""
    with np.load(run / "checkpoints/last.npz") as file:
        arrays = [file[name] for name in file.files]
    rows = [
        {k: v for k, v in row.items() if not k.startswith(("seconds", "tokens_per_second"))}
        for row in Run(run).read_metrics()
    ]
    return arrays, rows


def assert_same_training(run, expected, metrics=1e-5):
    (arrays, rows), (expected_arrays, expected_rows) = trained(run), trained(expected)
    assert_same_arrays(arrays, expected_arrays, rtol=0, atol=1e-5)
    for row, other in zip(rows, expected_rows, strict=True):
        assert row == pytest.approx(other, rel=0, abs=metrics)


def labeled(path, rows):
    words = ["good fine great", "bad poor awful", "red green blue"]
    lines = [f"{words[n % 3]} thing {n % 7},{n % 3}" for n in range(rows)]
    path.write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A prepared corpus of 108 training and 6 validation pairs."""
    pytest.importorskip("tensorflow_text")
    folder = tmp_path_factory.mktemp("corpus")
    prepare(load_pairs(table(folder / "pairs.tsv")), folder / "prepared", Preparing(90))
    return str(folder / "prepared")


def classify(dataset, run, *more):
    options = ["--embedding-dim", "8", "--batch-size", "16", "--epochs", "2", "--word-dropout"]
    return ["classify", "--dataset", dataset, "--run-dir", str(run), *options, "0.1", *more]


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "part"),
        [
            (["--devices", "0"], "devices=0"),
            (["--num-processes", "2"], "together. Received: coordinator=None, num_processes=2"),
            (["--coordinator", "here", "--num-processes", "2", "--process-id", "0"], "HOST:PORT"),
            (["--coordinator", "a:1", "--num-processes", "2", "--process-id", "2"], "process_id=2"),
        ],
    )
    def test_what_is_refused(self, options, part, capsys, tmp_path):
        assert_refused(capsys, ["rules", "--run-dir", str(tmp_path / "run"), *options], part)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("values", "part"),
        [
            ({NUM_PROCESSES: "2", PROCESS_ID: "0"}, f"{COORDINATOR}=None"),
            ({COORDINATOR: "a:1", NUM_PROCESSES: "2"}, f"{PROCESS_ID}=None"),
            ({COORDINATOR: "a:1", NUM_PROCESSES: "", PROCESS_ID: "0"}, f"{NUM_PROCESSES}=''"),
            ({COORDINATOR: "a:1", NUM_PROCESSES: "0", PROCESS_ID: "0"}, f"< {NUM_PROCESSES}"),
        ],
    )
    def test_variables_that_are_refused(self, values, part, capsys, tmp_path, monkeypatch):
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        assert_refused(capsys, ["rules", "--run-dir", str(tmp_path / "run")], part)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("command", ["language", "nodes"])
    def test_commands_for_one_process(self, command, capsys, tmp_path, monkeypatch):
        for name, value in ((COORDINATOR, "a:1"), (NUM_PROCESSES, "2"), (PROCESS_ID, "1")):
            monkeypatch.setenv(name, value)
        assert_refused(capsys, [command, "--run-dir", str(tmp_path)], f"one process for {command}")

    @pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has several devices")
    def test_other_backends_name_the_one_that_can(self, capsys, tmp_path):
        arguments = ["rules", "--run-dir", str(tmp_path / "run"), "--devices", "2"]
        assert_refused(capsys, arguments, "KERAS_BACKEND=jax")
        assert list(tmp_path.iterdir()) == []

    def test_a_model_is_split_by_translate_only(self, capsys):
        assert_refused(capsys, ["rules", "--model-parallel", "2"], "--model-parallel")


def test_the_devices_that_are_used_of_four():
    pytest.importorskip("jax")
    code = """
import keras
from keras_tnattn_train.options.options import DeviceOptions
from keras_tnattn_train.processes.devices import use_devices
for devices, parts in ((1, 1), (3, 1), (4, 1), (None, 2), (2, 2)):
    options = DeviceOptions(devices=devices, model_parallel=parts)
    use_devices(options, 12, lambda parts: {".*kernel": (None, "model")})
    mesh = keras.distribution.distribution().device_mesh
    print(*mesh.shape, *mesh.devices.ravel())
"""
    assert finished(on_jax(["-c", code], 4)).splitlines() == [
        "1 cpu:0",
        "3 cpu:0 cpu:1 cpu:2",
        "4 cpu:0 cpu:1 cpu:2 cpu:3",
        "2 2 cpu:0 cpu:1 cpu:2 cpu:3",
        "1 2 cpu:0 cpu:1",
    ]


@pytest.mark.parametrize("parts", [4, 5])
def test_a_model_takes_a_whole_number_of_processes_or_a_process_of_models(parts, monkeypatch):
    # Two processes of 6 devices: 4 divides the 12, but neither divides the 6 nor is a multiple.
    monkeypatch.setattr(devices_module, "start_backend", lambda: None)
    monkeypatch.setattr(devices_module, "num_processes", lambda: 2)
    monkeypatch.setattr(devices_module, "_jax_devices", lambda number: list(range(12)))
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    options = SimpleNamespace(devices=None, model_parallel=parts)
    with pytest.raises(InputError, match=f"the 6 of a process. Received: model_parallel={parts}"):
        devices_module.use_devices(options, 12, None)


class TestShares:
    def shares(self, batches, replicas, processes, monkeypatch):
        for process in range(processes):
            monkeypatch.setenv(NUM_PROCESSES, str(processes))
            monkeypatch.setenv(PROCESS_ID, str(process))
            yield ProcessShare(batches, replicas)

    def test_they_are_the_rows_of_the_batch_in_order(self, monkeypatch):
        batches = ArrayBatches(np.arange(22)[:, None], np.arange(22), 8, seed=0)
        shares = list(self.shares(batches, 4, 2, monkeypatch))
        for index in range(len(batches)):
            ids, labels = batches[index]
            parts = [share[index] for share in shares]
            assert len({len(part[1]) for part in parts}) == 1
            shared = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
            assert len(shared[1]) % 4 == 0
            np.testing.assert_array_equal(shared[0][: len(ids)], ids)
            np.testing.assert_array_equal(shared[1][: len(labels)], labels)

    def test_parts_of_a_model_compute_the_same_rows(self, monkeypatch):
        batches = ArrayBatches(np.arange(8)[:, None], np.arange(8), 8)
        shares = self.shares(batches, 2, 4, monkeypatch)
        assert [share[0][1].tolist() for share in shares] == [
            *([0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7])
        ]

    @pytest.mark.parametrize("weights", [None, np.array([1.0, 2.0, 0.5], "float32")])
    def test_rows_that_fill_a_batch_change_no_loss(self, weights):
        rng = np.random.default_rng(0)
        ids, labels = rng.normal(size=(3, 5)).astype("float32"), np.array([0, 3, 1])
        batches = ArrayBatches(ids, labels, 8, sample_weights=weights)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        filled = batches.fill(batches[0], 4)
        assert [len(array) for array in filled] == [4, 4, 4]
        x, y, weight = filled
        expected = loss(labels, ids, sample_weight=weights)
        np.testing.assert_allclose(loss(y, x, sample_weight=weight), expected, rtol=1e-6)

    def test_pairs_that_fill_a_batch_have_no_labels(self, corpus):
        part = load_prepared(corpus).parts["validation"]
        batches = BucketedBatches(part, 16)
        inputs, labels = batches.fill(batches[0], 4)
        assert len(part) == 6
        assert {len(array) for array in (*inputs.values(), labels)} == {8}
        assert not labels[6:].any()
        np.testing.assert_array_equal(labels[:6], batches[0][1])
        np.testing.assert_array_equal(inputs["source"][6:], inputs["source"][[5, 5]])


@pytest.mark.slow
def test_two_devices_train_as_one_and_refuse_what_they_cannot(tmp_path):
    pytest.importorskip("jax")
    dataset = labeled(tmp_path / "table.csv", 45)  # 27 training rows
    start = ["--run-dir", str(tmp_path / "none"), "--devices"]
    split = ["translate", "--prepared", str(tmp_path), *start, "2", "--model-parallel"]
    refused = {
        "Expected devices of 1 to 2, as many as there are. Received: devices=3": [
            *("rules", *start, "3")
        ],
        "batch_size that 2 devices can share evenly. Received: batch_size=7": [
            *("rules", *start, "2", "--batch-size", "7")
        ],
        "divide 2 devices, and to divide, or be a multiple of, the 2 of a process. "
        "Received: model_parallel=3": [*split, "3"],
        "embedding=dense for model_parallel=2": [*split, "2", "--embedding", "low_rank"],
        "feedforward=dense for model_parallel=2": [*split, "2", "--feedforward", "tensor_train"],
        "residual_dim to be a multiple of model_parallel=2. Received: residual_dim=5": [
            *(*split, "2", "--residual-dim", "5")
        ],
    }
    # One process: each start takes seconds.
    errors = run_all(
        *refused.values(),
        classify(dataset, tmp_path / "one"),
        classify(dataset, tmp_path / "two", "--devices", "2"),
        devices=2,
    )
    statuses = [line for line in errors if line.startswith("status ")]
    assert statuses == ["status 2"] * len(refused) + ["status 0"] * 2
    told = [line for line in errors if line.startswith("error: ")]
    for part, error in zip(refused, told, strict=True):
        assert part in error
    assert not (tmp_path / "none").exists()
    # The last batch has 11 rows and is filled up to 12, which its metrics count.
    assert_same_training(tmp_path / "two", tmp_path / "one", metrics=0.1)
    results = [Run(tmp_path / name).results for name in ("one", "two")]
    for name in ("train_accuracy", "test_accuracy", "parameters"):
        assert results[0][name] == results[1][name]
    sizes = [(tmp_path / name / "model.keras").stat().st_size for name in ("one", "two")]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


@pytest.mark.slow
def test_two_processes_write_one_run(tmp_path):
    pytest.importorskip("jax")
    options = ["rules", *RULES, "--epochs", "1", "--run-dir"]
    output = finished(launched("training/train.py", *options, str(tmp_path / "run")))
    assert output.count("run folder: ") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    assert Run(tmp_path / "run").results["epochs"] == 1
    # One device goes on where two processes stopped.
    config = json.loads((tmp_path / "run/config.json").read_text())
    (tmp_path / "run/config.json").write_text(json.dumps({**config, "epochs": 2}))
    (tmp_path / "run/results.json").unlink()
    errors = run_all(["rules", "--run-dir", str(tmp_path / "run"), "--resume"])
    assert errors[-1] == "status 0"
    assert [row["epoch"] for row in Run(tmp_path / "run").read_metrics()] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "epochs", "steps", "tolerance"), [("sdpa", 5, 10, 1e-5), ("plga", 1, 2, 1e-7)]
)
def test_steps_of_a_translator(attention, epochs, steps, tolerance, tmp_path):
    """1, 2 and 4 devices, 2 processes, and models of which each device holds a half.

    The power law amplifies rounding (see the guide to several devices): few of its steps count.
    """
    pytest.importorskip("jax")

    def words(name, devices, parts):
        numbers = (str(n) for n in (epochs, steps, devices, parts))
        return ["tests/support/train_on_devices.py", tmp_path / name, attention, *numbers]

    for name, devices, parts in (("one", 1, 1), ("two", 2, 1), ("four", 4, 1), ("split", 4, 2)):
        finished(on_jax(words(name, devices, parts), devices))
    for name, parts in (("processes", 1), ("halves", 2)):
        finished(launched(*words(name, 1, parts)))
    for name in ("two", "four", "split", "processes", "halves"):
        losses = [[row["val_loss"] for row in trained(tmp_path / n)[1]] for n in (name, "one")]
        np.testing.assert_allclose(*losses, rtol=0, atol=tolerance)
        if attention == "sdpa":
            assert_same_training(tmp_path / name, tmp_path / "one", metrics=0.1)


@pytest.mark.slow
def test_two_processes_train_a_translator(tmp_path):
    pytest.importorskip("jax")
    corpus = ["--corpus", "cldr:pt-en", "--vocabulary-size", "300", "--max-length", "8"]
    sizes = ["--model-dim", "8", "--num-heads", "2", "--feedforward-dim", "8", "--epochs", "1"]
    options = ["translate", *corpus, "--preset", "sdpa", *sizes]
    options += ["--batch-size", "2048", "--num-layers", "1", "--run-dir", str(tmp_path / "run")]
    output = finished(launched("training/train.py", *options))
    assert output.count("run folder: ") == 1
    assert Run(tmp_path / "run").results["epochs"] == 1


@pytest.mark.slow
def test_fifty_steps_of_a_rule(tmp_path):
    pytest.importorskip("jax")

    def command(name, *more):
        epochs = ["--epochs", "17"]  # of 3 steps
        return ["rules", *RULES, *epochs, "--run-dir", str(tmp_path / name), *more]

    run_all(command("one"), *(command(n, "--devices", n) for n in "24"))
    finished(launched("training/train.py", *command("processes")))
    for name in ("2", "4", "processes"):
        assert_same_training(tmp_path / name, tmp_path / "one", metrics=1e-5)


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_the_run_goes_on(tmp_path):
    pytest.importorskip("jax")
    epochs = 400
    options = ["rules", *RULES, "--epochs", str(epochs), "--run-dir"]
    process = launched("training/train.py", *options, tmp_path / "run")
    children: list[str] = []
    deadline = time.monotonic() + 300
    while len(Run(tmp_path / "run").read_metrics()) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[1]), signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "Process 1 was killed by SIGKILL" in errors
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert 2 <= len(Run(tmp_path / "run").read_metrics()) < epochs
    finished(launched("training/train.py", "rules", "--run-dir", tmp_path / "run", "--resume"))
    run_all([*options, str(tmp_path / "whole")])
    assert_same_training(tmp_path / "run", tmp_path / "whole")
