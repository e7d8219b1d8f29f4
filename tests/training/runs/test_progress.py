import time

import keras
import pytest

from keras_tnattn_train.runs.progress import LINES, EpochLines


@pytest.fixture
def passed(monkeypatch):
    """Returns a function by which so many seconds pass."""
    now = [0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def callback(epochs):
    lines = EpochLines()
    lines.set_params({"epochs": epochs, "steps": 400})
    lines.set_model(keras.Sequential())
    lines.model.stop_training = False
    lines.on_train_begin()
    return lines


@pytest.mark.parametrize(
    ("epochs", "printed"), [(3, [1, 2, 3]), (10, list(range(1, 11))), (11, [2, 4, 6, 8, 10, 11])]
)
def test_prints_at_most_ten_epochs_with_the_time_since_the_start(epochs, printed, passed, capsys):
    lines = callback(epochs)
    for epoch in range(epochs):
        passed(60)
        lines.on_epoch_end(epoch, {"loss": 1 / 3})
    out = capsys.readouterr().out.splitlines()
    assert len(out) <= LINES
    assert out == [
        f"epoch {n} of {epochs}: loss 0.3333 ({60 * n} s since the start)" for n in printed
    ]


def test_a_long_epoch_tells_how_far_it_is_without_the_step_that_compiles(passed, capsys):
    lines = callback(2)
    lines.on_epoch_begin(0)
    for batch in range(400):
        passed(90 if batch < 2 else 1)
        lines.on_train_batch_end(batch, {"loss": 1 / 3})
    lines.on_epoch_end(0, {"loss": 0.25})
    lines.on_epoch_begin(1)
    passed(91)
    lines.on_train_batch_end(99, {"loss": 0.2})
    out = capsys.readouterr().out.splitlines()
    within = "epoch 1 of 2, step {} of 400: loss 0.3333 ({} s since the start{})"
    assert out[:2] == [within.format(n, 90 * n, "") for n in (1, 2)]
    seconds = 90 + 60  # of 61 steps after the first
    remain = f", about {seconds / 61 * (800 - 62):.0f} s remain"
    assert out[2] == within.format(62, 240, remain)
    assert out[-1] == (
        "epoch 2 of 2, step 100 of 400: loss 0.2 (669 s since the start, about "
        f"{(669 - 90) / 499 * 300:.0f} s remain)"
    )


def test_prints_the_epoch_at_which_the_training_stops(passed, capsys):
    lines = callback(100)
    lines.on_epoch_end(4, {"loss": 2})
    lines.model.stop_training = True
    lines.on_epoch_end(5, {"loss": 1})
    assert capsys.readouterr().out == "epoch 6 of 100: loss 1 (0 s since the start)\n"
