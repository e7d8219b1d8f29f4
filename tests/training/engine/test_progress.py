import time

import keras
import pytest

from training.engine.progress import LINES, EpochLines


class Model(keras.Model):
    """A model that stops after an epoch, or never."""

    stop_training = False


@pytest.mark.parametrize(
    ("epochs", "printed"),
    [(3, [1, 2, 3]), (10, list(range(1, 11))), (11, [2, 4, 6, 8, 10, 11])],
)
def test_prints_at_most_ten_epochs_with_the_time_since_the_start(
    epochs, printed, monkeypatch, capsys
):
    clock = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: 60 * next(clock))
    lines = EpochLines(epochs)
    lines.set_model(Model())
    lines.on_train_begin()
    for epoch in range(epochs):
        lines.on_epoch_end(epoch, {"loss": 1 / 3})
    assert len(printed) <= LINES
    assert capsys.readouterr().out.splitlines() == [
        f"epoch {number} of {epochs}: loss 0.3333 ({60 * minutes} s so far)"
        for minutes, number in enumerate(printed, 1)
    ]


def test_prints_the_epoch_at_which_the_training_stops(capsys):
    lines = EpochLines(100)
    model = Model()
    lines.set_model(model)
    lines.on_train_begin()
    lines.on_epoch_end(4)
    model.stop_training = True
    lines.on_epoch_end(5)
    assert capsys.readouterr().out.startswith("epoch 6 of 100: ")
