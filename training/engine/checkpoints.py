"""Checkpoints that continue a run as if it had never stopped."""

import struct
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import keras
import numpy as np

from training.engine.runs import FROM_ITS_START, Run
from training.errors import InputError
from training.files import replacing

# What reading a damaged file may raise, of NumPy, of zip archives, of HDF5 and of Keras.
DAMAGE = (
    OSError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    UserWarning,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def save_state(model: keras.Model, epochs: int, path: Path) -> None:
    """Writes all that the next epoch depends on: weights, random states, the optimizer's."""
    _save(path, epochs, _variables(model))


def load_state(model: keras.Model, path: Path) -> int:
    """Restores what `save_state` wrote into the same model, compiled.

    Returns:
        The number of epochs trained so far.

    Raises:
        InputError: If the file cannot be read or is another model's.
    """
    return _load(path, _variables(model), "Delete it to train the run from its start")


def save_weights(model: keras.Model, epochs: int, path: Path) -> None:
    """Writes the weights alone, with the checksums of a zip archive, which HDF5 has not."""
    _save(path, epochs, model.weights)


def load_weights(model: keras.Model, path: Path, instead: str) -> int:
    """Restores what `save_weights` wrote into the same model, compiled or not.

    Args:
        model: The model.
        path: The file.
        instead: What to do if it cannot be read, a sentence.

    Returns:
        The number of epochs trained.

    Raises:
        InputError: If the file cannot be read or is another model's.
    """
    return _load(path, model.weights, instead)


def _save(path: Path, epochs: int, variables: list[Any]) -> None:
    arrays = [keras.ops.convert_to_numpy(variable) for variable in variables]
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, epochs, *arrays)


def _load(path: Path, variables: list[Any], instead: str) -> int:
    try:
        # NumPy leaves a damaged file open that it opened itself, and of what is no archive it says
        # how to read it nevertheless.
        with path.open("rb") as file, zipfile.ZipFile(file), np.load(file) as saved:
            if len(saved.files) != 1 + len(variables):
                raise ValueError(f"{len(saved.files) - 1} arrays instead of {len(variables)}")
            epochs, *arrays = (saved[f"arr_{i}"] for i in range(1 + len(variables)))
        epochs = int(epochs)
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)
    except DAMAGE as error:
        raise InputError(
            f"Expected a checkpoint of this model. Received: {path} ({first_line(error)}). "
            f"{instead}"
        ) from error
    return epochs


def first_line(error: Exception) -> str:
    """Returns what an error says, without its details."""
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


class EpochLog(keras.callbacks.Callback):
    """Keeps a run's metrics and checkpoints, an epoch at a time, and stops it early if asked.

    The metrics are written first: a checkpoint never lacks a row, and the row of an epoch that
    was cut off before its checkpoint is dropped when the run continues.

    Args:
        run: The run.
        patience: Stop after so many epochs without a lower `val_loss`. Default: never.
    """

    def __init__(self, run: Run, patience: int | None = None) -> None:
        super().__init__()
        self.run = run
        self.patience = patience
        self.rows = []
        self._last = run.folder / "checkpoints" / "last.npz"
        self._best = run.folder / "checkpoints" / "best.npz"
        self._last.parent.mkdir(exist_ok=True)

    def restore(self) -> int:
        """Puts the model where the run stands; returns the number of epochs trained so far."""
        epochs = load_state(self.model, self._last) if self._last.exists() else 0
        self.rows = self.run.read_metrics()[:epochs] if epochs else []
        if len(self.rows) < epochs:
            raise InputError(
                f"Expected a row for each of {epochs} epochs in {self.run.folder}/metrics.csv. "
                f"Received: {len(self.rows)}. {FROM_ITS_START}"
            )
        return epochs

    @property
    def done(self) -> bool:
        """Whether the patience is over."""
        return bool(self.patience) and len(self.rows) - self.best_epoch() >= self.patience

    def restore_best(self) -> None:
        """Puts the model where the loss on the validation part was lowest."""
        if self.patience:
            load_state(self.model, self._best)

    def keep_weights(self) -> None:
        """Writes what is kept of the epoch just trained, beside the state to continue from."""
        if self.patience and self.best_epoch() == len(self.rows):
            save_state(self.model, len(self.rows), self._best)

    def best_epoch(self, metric: str = "val_loss", highest: bool = False) -> int:
        """Returns the first epoch, from 1, of the lowest or highest value; 0 before the first."""
        values = np.array([row[metric] for row in self.rows]) * (-1 if highest else 1)
        # argmin would take a NaN for the least.
        return 1 + int(np.where(np.isnan(values), np.inf, values).argmin()) if self.rows else 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        # The steps that are over, and when, after each execution.
        self._clock = [(0, time.perf_counter())]

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        # With several steps per execution, the last one may be cut short by the epoch's end.
        steps = min(batch + 1, self.params["steps"])
        self._clock.append((steps, time.perf_counter()))

    @property
    def _seconds_per_step(self) -> float:
        """The mean of all but the first execution, which compiles, unless there is no other."""
        first = 1 if len(self._clock) > 2 else 0
        (begin, began), (end, ended) = self._clock[first], self._clock[-1]
        return (ended - began) / (end - begin)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        metrics = {name: float(value) for name, value in logs.items()}
        self.rows.append(
            {
                "epoch": epoch + 1,
                **metrics,
                "seconds_per_step": self._seconds_per_step,
                "seconds": self._clock[-1][1] - self._clock[0][1],
            }
        )
        self.run.write_metrics(self.rows)
        self.keep_weights()
        save_state(self.model, len(self.rows), self._last)
        self.model.stop_training = self.done
