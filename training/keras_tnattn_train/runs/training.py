"""Trains a model; an interrupted and resumed training ends with the same weights.

TensorFlow is imported only if it is the backend.
"""

import importlib.util
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tnattn.estimator import batches as one_device
from keras_tnattn_runtime.extras import installation
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import ExportConfig, FitConfig, RunConfig
from keras_tnattn_train.processes.devices import leave_to_process_0, share_of_batches, to_numpy
from keras_tnattn_train.runs.checkpoints import load_state, save_state, variables_of
from keras_tnattn_train.runs.progress import EpochLines
from keras_tnattn_train.runs.run import RESUME_HINT, TRAIN_AGAIN_HINT, Run
from keras_tnattn_train.system.files import WriteError, reason


def start_session(config: RunConfig) -> None:
    """Begins a training: seeds every random generator, and checks that its results can be written.

    Clears Keras' global state except the distribution.
    """
    if isinstance(config, ExportConfig) and config.export:
        _check_export(config.export_folder)
    if isinstance(config, FitConfig) and config.tensorboard:
        _check_tensorboard()
    reset_session(config.seed)


def reset_session(seed: int) -> None:
    """Clears Keras' global state except the distribution, and seeds every random generator."""
    distribution = keras.distribution.distribution()
    keras.utils.clear_session()
    keras.distribution.set_distribution(distribution)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if tf.config.list_physical_devices("GPU"):
            # On a GPU the order of additions varies, so that a resumed run would end with other
            # weights. On a CPU the deterministic kernels change nothing, and take time.
            tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(seed)


def metrics_of(run: Run, epochs: int) -> list[dict[str, float]]:
    """Returns the metrics of each of the finished epochs."""
    rows = run.read_metrics()[:epochs]
    if len(rows) < epochs:
        raise InputError(
            f"Expected a row for each of {epochs} epochs in {run.folder}/metrics.csv. "
            f"Received: {len(rows)}. {TRAIN_AGAIN_HINT}"
        )
    return rows


class EpochLog(keras.callbacks.Callback):
    """Writes a run's metrics and checkpoints after each epoch, and stops the training early.

    The metrics are written first, so that every checkpoint has its row of metrics. If an epoch is
    interrupted between the two, its row is dropped when the run is resumed. `patience` epochs
    without a better loss, or accuracy, of the validation part end the training.

    Training stops with a `FloatingPointError` at the first loss that is not finite. Nothing from
    that epoch is written, so the last checkpoint is still good.

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
        self._last = run.last_checkpoint
        self._best = self._last.with_name("best.npz")

    def restore(self, validated: bool = False) -> int:
        """Restores the model of the last epoch."""
        self._validated = validated
        epochs = load_state(self.model, self._last) if self._last.exists() else 0
        self.rows = metrics_of(self.run, epochs) if epochs else []
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
            f"Received: {', '.join(self.rows[0])}. {TRAIN_AGAIN_HINT}"
        )

    @property
    def costs(self) -> dict[str, float]:
        """What `results.json` says about the training itself."""
        return {
            "epochs": len(self.rows),
            "seconds_per_step": min(row["seconds_per_step"] for row in self.rows),
            "seconds": sum(row["seconds"] for row in self.rows),
        }

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

    def copy_to_one_device(self) -> None:
        """Replaces the model by a copy for this process alone, on its first device.

        Keras distributes the batches of `predict` as it does in `fit`, also where the devices
        cannot share them evenly. Only process 0 returns; the others have done their part and end
        here.
        """
        model = self.model
        arrays = [to_numpy(variable) for variable in variables_of(model)]
        leave_to_process_0()
        keras.distribution.set_distribution(None)
        copy = type(model).from_config(model.get_config())
        copy.compile_from_config(model.get_compile_config())
        for variable, array in zip(variables_of(copy), arrays, strict=True):
            variable.assign(array)
        self.set_model(copy)

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


def fit(
    model: keras.Model,
    batches: keras.utils.PyDataset,
    config: FitConfig,
    run: Run,
    validation: keras.utils.PyDataset | None = None,
    log: EpochLog | None = None,
) -> EpochLog:
    """Trains a compiled model from the run's last checkpoint to the last epoch.

    `batches.set_epoch` selects the batches of an epoch, counted from 0, which depend only on the
    epoch and the seed. With several processes, all of them train, and only process 0 returns.

    Returns:
        The callback, with the metrics of all epochs. Its `model` is the trained model; if several
        devices trained it, a copy on one of them.
    """
    log = log or EpochLog(run)
    log.set_model(model)
    epoch = log.restore(validation is not None)
    if epoch < config.epochs and not log.done:
        ordered = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: batches.set_epoch(epoch)
        )
        callbacks = [ordered, log]
        terminal = sys.stdout.isatty()
        if not terminal:
            callbacks.append(EpochLines())
        if config.tensorboard:
            callbacks += run.tensorboard()
        try:
            model.fit(
                as_dataset(batches),
                initial_epoch=epoch,
                epochs=config.epochs,
                validation_data=None if validation is None else as_dataset(validation),
                shuffle=False,  # Keras would also shuffle the batches, which a resume cannot repeat
                callbacks=callbacks,
                verbose=1 if terminal else 0,
            )
        except FloatingPointError as error:
            raise InputError(_divergence(error, config, log)) from error
        except WriteError as error:
            raise InputError(f"{error}. {RESUME_HINT}") from error
    log.restore_best()
    if keras.distribution.distribution() is not None:
        log.copy_to_one_device()
    return log


class ProcessShare(keras.utils.PyDataset):
    """The rows of each batch, filled up for all `replicas`, that this process computes."""

    def __init__(self, batches: Any, replicas: int) -> None:
        super().__init__()
        self.batches = batches
        self.replicas = replicas
        self._number, self._shares = share_of_batches(replicas)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        batch = self.batches.fill(self.batches[index], self.replicas)
        return keras.tree.map_structure(self._part, batch)

    def _part(self, rows: np.ndarray) -> np.ndarray:
        size = len(rows) // self._shares
        return rows[self._number * size : (self._number + 1) * size]


def _divergence(error: FloatingPointError, config: FitConfig, log: EpochLog) -> str:
    last = log.run.last_checkpoint
    epochs = len(log.rows)
    state = f"{last} has the state after epoch {epochs}" if epochs else "No epoch was finished"
    return (
        f"Training diverged: {error}. Start another run with a lower --learning-rate than "
        f"{config.learning_rate:g}. {state}; nothing was exported"
    )


def _check_export(folder: Path) -> None:
    from keras_tnattn.export.signatures import check_backend

    try:
        check_backend()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except RuntimeError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(
            f"Could not write to the export folder {folder}: {reason(error)}. Choose another with "
            "--saved-models"
        ) from error


def _check_tensorboard() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError(
            "--tensorboard needs the package tensorboard, which is not installed. "
            f"{installation('tensorboard')}"
        )


def as_dataset(batches: keras.utils.PyDataset) -> object:
    """Returns the batches, or with several devices this process's shares of them, for `fit`."""
    distribution = keras.distribution.distribution()
    if distribution is not None:
        return ProcessShare(batches, distribution.device_mesh.shape[0])
    return one_device.as_dataset(batches)
