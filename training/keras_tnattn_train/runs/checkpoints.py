"""Checkpoints from which an interrupted run continues exactly as if it had not stopped."""

import math
import struct
import time
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.processes.devices import (
    leave_to_process_0,
    process_id,
    to_numpy,
    wait_for_all,
)
from keras_tnattn_train.runs.runs import TRAIN_AGAIN, Run
from keras_tnattn_train.system.files import replacing, writing

# What zipfile and NumPy raise when they read a file that is damaged or not an archive.
ARCHIVE_ERRORS = (
    OSError,
    EOFError,
    KeyError,  # a member is missing
    MemoryError,  # a damaged header claims a huge array
    RuntimeError,  # a damaged header claims encryption or an unknown compression
    ValueError,  # a damaged header of an array
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def save_state(model: keras.Model, epochs: int, path: Path) -> None:
    """Writes everything the next epoch depends on: weights, random and optimizer states."""
    _save(path, epochs, _variables(model))


def load_state(model: keras.Model, path: Path) -> int:
    """Restores what `save_state` wrote into the same model, which has to be compiled.

    Returns:
        The number of epochs trained so far.

    Raises:
        InputError: If the file cannot be read or belongs to another model.
    """
    return _load(path, _variables(model), "Delete it to train the run from the beginning")


def save_weights(model: keras.Model, epochs: int, path: Path) -> None:
    """Writes only the weights, as a zip archive, which has checksums (HDF5 has none)."""
    _save(path, epochs, model.weights)


def load_weights(model: keras.Model, path: Path, hint: str) -> int:
    """Restores what `save_weights` wrote into the same model, compiled or not.

    Args:
        model: The model.
        path: The file.
        hint: A sentence for the error message: what to do if the file cannot be read.

    Returns:
        The number of epochs trained.

    Raises:
        InputError: If the file cannot be read or belongs to another model.
    """
    return _load(path, model.weights, hint)


def _save(path: Path, epochs: int, variables: list[Any]) -> None:
    arrays = [to_numpy(variable) for variable in variables]
    if process_id() == 0:
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez(file, epochs, *arrays)
    wait_for_all("a checkpoint")  # which any process may read from now on


def _load(path: Path, variables: list[Any], hint: str) -> int:
    try:
        # Open the file here, because NumPy does not close a damaged file that it opened itself.
        # ZipFile rejects other files, for which NumPy would suggest unpickling.
        with path.open("rb") as file, zipfile.ZipFile(file), np.load(file) as saved:
            arrays = [saved[name] for name in saved.files]
            expected = [(), *(tuple(variable.shape) for variable in variables)]
            if [array.shape for array in arrays] != expected:
                raise ValueError("the shapes of its arrays are not those of this model")
            epochs = int(arrays[0])
    except ARCHIVE_ERRORS as error:
        raise InputError(
            f"Expected a checkpoint of this model. Received: {path} ({first_line(error)}). {hint}"
        ) from error
    for variable, array in zip(variables, arrays[1:], strict=True):
        variable.assign(array)
    return epochs


def first_line(error: Exception) -> str:
    """Returns the first line of an error message."""
    return str(error).strip().partition("\n")[0]


def _variables(model: keras.Model) -> list[Any]:
    model.optimizer.build(model.trainable_variables)
    # The random states of dropout are among the non-trainable variables here, but are not in
    # the files of `save_weights`.
    return [
        *model.trainable_variables,
        *model.non_trainable_variables,
        *model.optimizer.variables,
    ]


def copied_to_one_device(model: keras.Model) -> keras.Model:
    """Returns a copy of a compiled model for this process alone, on its first device.

    Keras distributes the batches of `predict` as it does in `fit`, also where the devices cannot
    share them evenly. Only process 0 returns; the others have done their part and end here.
    """
    arrays = [to_numpy(variable) for variable in _variables(model)]
    leave_to_process_0()
    keras.distribution.set_distribution(None)
    copy = type(model).from_config(model.get_config())
    copy.compile_from_config(model.get_compile_config())
    for variable, array in zip(_variables(copy), arrays, strict=True):
        variable.assign(array)
    return copy


class EpochLog(keras.callbacks.Callback):
    """Writes a run's metrics and checkpoints after each epoch, and stops the training early.

    The metrics are written first, so that every checkpoint has its row of metrics. If an epoch is
    interrupted between the two, its row is dropped when the run is resumed.

    Training stops with a `FloatingPointError` at the first loss that is not finite. Nothing from
    that epoch is written, so the last checkpoint is still good.

    Args:
        run: The run.
        patience: Stop after this many epochs without a better value of `monitor`. Default: never.
        monitor: `"loss"` or `"accuracy"` of the validation part. Default: `"loss"`.

    Attributes:
        own_columns: The columns of `metrics.csv` besides Keras' metrics.
    """

    own_columns: tuple[str, ...] = ("epoch", "seconds_per_step", "seconds")

    def __init__(self, run: Run, patience: int | None = None, monitor: str = "loss") -> None:
        super().__init__()
        self._monitor = monitor
        self._validated = False
        self.run = run
        self.patience = patience
        self.rows: list[dict[str, float]] = []
        self._last = run.folder / "checkpoints" / "last.npz"
        self._best = run.folder / "checkpoints" / "best.npz"
        if process_id() == 0:
            with writing(self._last.parent):
                self._last.parent.mkdir(exist_ok=True)

    def restore(self, validated: bool = False) -> int:
        """Restores the model of the last epoch.

        Args:
            validated: Whether each epoch ends with a validation. Default `False`.

        Returns:
            The number of epochs trained so far.

        Raises:
            InputError: If the checkpoint or the metrics cannot be read or are another training's.
        """
        self._validated = validated
        epochs = load_state(self.model, self._last) if self._last.exists() else 0
        self.rows = self.run.read_metrics()[:epochs] if epochs else []
        if len(self.rows) < epochs:
            raise InputError(
                f"Expected a row for each of {epochs} epochs in {self.run.folder}/metrics.csv. "
                f"Received: {len(self.rows)}. {TRAIN_AGAIN}"
            )
        if self.rows and validated and "val_loss" not in self.rows[0]:
            raise self._other_columns(["val_loss"])
        return epochs

    def _check_columns(self, metrics: Mapping[str, float]) -> None:
        """Raises `InputError` if the epochs before this one were measured by other metrics."""
        validation = [f"val_{name}" for name in metrics] if self._validated else []
        columns = [*self.own_columns, *metrics, *validation]
        if set(columns) != set(self.rows[0]):
            raise self._other_columns(columns)

    def _other_columns(self, expected: Sequence[str]) -> InputError:
        return InputError(
            f"Expected columns {', '.join(expected)} in {self.run.folder}/metrics.csv. "
            f"Received: {', '.join(self.rows[0])}. {TRAIN_AGAIN}"
        )

    @property
    def has_checkpoint(self) -> bool:
        """Whether `restore` will find a state, from which the training continues."""
        return self._last.exists()

    @property
    def last_checkpoint(self) -> Path | None:
        """The checkpoint to resume from; `None` before the end of the first epoch."""
        return self._last if self.rows else None

    @property
    def done(self) -> bool:
        """Whether the patience is exhausted."""
        if not self.patience:
            return False
        return len(self.rows) - self._monitored_epoch >= self.patience

    @property
    def _monitored_epoch(self) -> int:
        return self.best_epoch(f"val_{self._monitor}", highest=self._monitor == "accuracy")

    def restore_best(self) -> None:
        """Restores the model of the best epoch by `monitor`, if there is a patience."""
        if self.patience:
            load_state(self.model, self._best)

    def keep_weights(self) -> None:
        """Writes further checkpoints of the last epoch, besides the state to resume from."""
        if self.patience and self._monitored_epoch == len(self.rows):
            save_state(self.model, len(self.rows), self._best)

    def best_epoch(self, metric: str = "val_loss", highest: bool = False) -> int:
        """Returns the epoch of the lowest or highest value, counted from 1; 0 if there is none."""
        values = np.array([row[metric] for row in self.rows]) * (-1 if highest else 1)
        # argmin would return a NaN as the lowest value.
        return 1 + int(np.where(np.isnan(values), np.inf, values).argmin()) if self.rows else 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        # The number of finished steps and the time, after each execution.
        self._clock = [(0, time.perf_counter())]

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        # With several steps per execution, the last execution of an epoch may have fewer.
        steps = min(batch + 1, self.params["steps"])
        self._clock.append((steps, time.perf_counter()))
        if self.rows and len(self._clock) == 2:  # only now are the names of the metrics known
            self._check_columns(logs or {})
        self._check_finite(logs or {}, f"after {steps} of {self.params['steps']} steps")

    @property
    def _seconds_per_step(self) -> float:
        """The mean over all executions, without the first one if there are others: it compiles."""
        first = 1 if len(self._clock) > 2 else 0
        (begin, began), (end, ended) = self._clock[first], self._clock[-1]
        return (ended - began) / (end - begin)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        self._check_finite(metrics, "at its end")
        if not all(np.isfinite(to_numpy(weight)).all() for weight in self.model.weights):
            raise FloatingPointError(f"The weights overflowed in epoch {epoch + 1}")
        row = {
            "epoch": epoch + 1,
            **metrics,
            "seconds_per_step": self._seconds_per_step,
            "seconds": self._clock[-1][1] - self._clock[0][1],
        }
        self.rows.append(row)
        self.run.write_metrics(self.rows)
        self.keep_weights()
        save_state(self.model, len(self.rows), self._last)
        self.model.stop_training = self.done

    def _check_finite(self, metrics: Mapping[str, float], when: str) -> None:
        for name in ("loss", "val_loss"):
            if name in metrics and not math.isfinite(metrics[name]):
                raise FloatingPointError(
                    f"{name} became {float(metrics[name])} in epoch {len(self.rows) + 1}, {when}"
                )
