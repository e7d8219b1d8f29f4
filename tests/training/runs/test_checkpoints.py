import keras
import numpy as np
import pytest
from conformance import assert_same_arrays

from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs import training
from keras_tnattn_train.runs.checkpoints import (
    first_line,
    load_state,
    load_weights,
    save_state,
    save_weights,
)
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import EpochLog

# The tests of the commands train as a graph.
pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    run.start_or_check(ClassifyConfig(), {})
    return run


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
    assert_same_arrays(first.get_weights(), second.get_weights())


def test_damaged_metrics(run):
    model = tiny_model()
    run.write_metrics([{"epoch": i, "loss": i / 8} for i in (1, 2)])
    log, path = EpochLog(run), run.folder / "metrics.csv"
    log.set_model(model)
    save_state(model, 2, run.folder / "checkpoints/last.npz")
    whole = path.read_bytes()
    assert log.restore() == 2
    cut = (b"", whole[:-9], whole[:-7])
    for damaged in (*cut, whole.replace(b"0.", b"?"), whole + b",,1", b"\xff"):
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
        assert_same_arrays(model.get_weights(), other.get_weights())
    assert refused > len(whole) / 2


def test_arrays_of_other_shapes_are_refused(tmp_path):
    path = tmp_path / "weights.npz"
    wide, narrow = (keras.Sequential([keras.Input((n,)), keras.layers.Dense(2)]) for n in (3, 1))
    save_weights(narrow, 7, path)
    before = wide.get_weights()
    # As many arrays, and one that NumPy would spread over the rows.
    with pytest.raises(InputError, match="shapes of its arrays are not those of this model"):
        load_weights(wide, path, "Choose another")
    assert_same_arrays(wide.get_weights(), before)


def test_a_row_without_its_checkpoint_is_dropped(run):
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
def test_the_time_of_a_step_leaves_compiling_out(run, monkeypatch, ends, seconds):
    log = EpochLog(run)
    log.set_params({"steps": 10})
    log.set_model(tiny_model())
    clock = iter([0.0, *(end for _, end in ends)])
    with monkeypatch.context() as patched:
        patched.setattr("keras_tnattn_train.runs.training.time.perf_counter", lambda: next(clock))
        log.on_epoch_begin(0)
        for steps, _ in ends:
            log.on_train_batch_end(steps - 1)
    log.on_epoch_end(0, {"loss": 1.0})
    assert log.rows == [
        {"epoch": 1, "loss": 1.0, "seconds_per_step": seconds, "seconds": ends[-1][1]}
    ]


def test_a_loss_that_is_no_number_is_not_the_best(run):
    log = EpochLog(run, patience=2)
    log.rows = [{"val_loss": loss} for loss in (1.0, float("nan"), 2.0)]
    assert log.done
    log.rows.append({"val_loss": 0.5})
    assert not log.done


def test_the_accuracy_may_decide_which_epoch_is_best(run, monkeypatch):
    saved, done = [], []
    monkeypatch.setattr(training, "save_state", lambda model, epoch, path: saved.append(epoch))
    log = EpochLog(run, patience=2, monitor="accuracy")
    for loss, accuracy in ((2, 0.5), (3, 0.7), (1, 0.6), (0, 0.7)):
        log.rows.append({"val_loss": loss, "val_accuracy": accuracy})
        log.keep_weights()
        done.append(log.done)
    assert saved == [1, 2]
    assert done == [False, False, False, True]


def test_the_best_epoch_of_a_loss_and_of_an_accuracy(run):
    log = EpochLog(run)
    assert log.best_epoch() == log.best_epoch("val_accuracy", highest=True) == 0
    losses, accuracies = (3.0, 1.0, 2.0, 1.0), (0.1, 0.2, 0.9, 0.9)
    log.rows = [
        {"val_loss": loss, "val_accuracy": accuracy}
        for loss, accuracy in zip(losses, accuracies, strict=True)
    ]
    assert log.best_epoch() == 2
    assert log.best_epoch("val_accuracy", highest=True) == 3


@pytest.mark.parametrize(
    ("columns", "validated", "known"),
    [
        ("epoch loss accuracy seconds_per_step seconds", False, True),
        ("epoch loss accuracy val_loss val_accuracy seconds_per_step seconds", True, True),
        ("epoch loss precision seconds_per_step seconds", False, False),
        ("epoch loss accuracy seconds", False, False),
        ("epoch loss accuracy val_loss val_accuracy seconds_per_step seconds", False, False),
        ("epoch loss accuracy val_loss seconds_per_step seconds", True, False),
    ],
)
def test_columns_of_another_training_end_the_first_step(run, columns, validated, known):
    log, model = EpochLog(run), tiny_model()
    log.set_model(model)
    log.set_params({"steps": 10})
    run.write_metrics([dict.fromkeys(columns.split(), 1.0)])
    save_state(model, 1, run.folder / "checkpoints/last.npz")
    assert log.restore(validated) == 1
    log.on_epoch_begin(1)
    metrics = {"loss": 1.0, "accuracy": 0.5}
    if known:
        log.on_train_batch_end(0, metrics)
    else:
        with pytest.raises(InputError, match=r"Expected columns epoch.*metrics\.csv"):
            log.on_train_batch_end(0, metrics)


def test_the_first_line_of_an_error():
    assert first_line(ValueError("  no file\n  a long trace")) == "no file"
