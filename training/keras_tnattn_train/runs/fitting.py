"""Trains a model; an interrupted and resumed training ends with the same weights.

TensorFlow is imported only if it is the backend.
"""

import contextlib
import importlib.util
import sys
from typing import Any

import keras
import numpy as np

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import FitConfig
from keras_tnattn_train.processes.devices import num_processes, process_id
from keras_tnattn_train.runs.checkpoints import EpochLog, copied_to_one_device
from keras_tnattn_train.runs.progress import EpochLines
from keras_tnattn_train.runs.runs import RESUME, Run
from keras_tnattn_train.system.files import WriteError


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


def on_all_gpus(batch_size: int) -> contextlib.AbstractContextManager:
    """Returns a context in which a model is built and compiled to train on all GPUs.

    On the TensorFlow backend each GPU processes its share of every batch. With other backends or a
    single GPU the context has no effect.

    Raises:
        InputError: If the GPUs cannot share a batch evenly, which Keras requires.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        gpus = len(tf.config.list_logical_devices("GPU"))
        if gpus > 1:
            if batch_size % gpus:
                raise InputError(
                    f"Expected a batch_size that {gpus} GPUs can share evenly. "
                    f"Received: batch_size={batch_size}"
                )
            return tf.distribute.MirroredStrategy().scope()
    return contextlib.nullcontext()


def fit(
    model: keras.Model,
    batches: keras.utils.PyDataset,
    config: FitConfig,
    run: Run,
    validation: keras.utils.PyDataset | None = None,
    log: EpochLog | None = None,
) -> EpochLog:
    """Trains a compiled model from the run's last checkpoint to the last epoch.

    With several processes, all of them train, and only process 0 returns.

    Args:
        model: The model.
        batches: The training batches. `set_epoch` selects the batches of an epoch, counted from 0,
            which depend only on the epoch and the seed; `filled` fills them up for several devices.
        config: The options; only `epochs`, `tensorboard` and `learning_rate` are used.
        run: The run, already started.
        validation: The validation batches. Default: none.
        log: The callback that writes metrics and checkpoints, and may stop early and restore the
            best epoch. Default: `EpochLog(run)`.

    Returns:
        The callback, with the metrics of all epochs. Its `model` is the trained model; if several
        devices trained it, a copy on one of them.

    Raises:
        InputError: If the loss is not finite, or a checkpoint cannot be read or written.
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
            callbacks.append(EpochLines(config.epochs))
        if config.tensorboard and process_id() == 0:
            callbacks.append(keras.callbacks.TensorBoard(run.folder / "tensorboard"))
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
            raise InputError(_diverged(error, config, log)) from error
        except WriteError as error:
            raise InputError(f"{error}. {RESUME}") from error
    log.restore_best()
    if keras.distribution.distribution() is not None:
        log.set_model(copied_to_one_device(model))
    return log


class ProcessShare(keras.utils.PyDataset):
    """The rows of each batch that this process computes.

    Args:
        batches: The batches; each is filled up with rows that do not count, so that the devices
            share it evenly.
        replicas: The number of devices, or groups of devices, that share each batch.
    """

    def __init__(self, batches: Any, replicas: int) -> None:
        super().__init__()
        self.batches, self.replicas = batches, replicas
        # Processes that hold parts of the same model compute the same rows.
        self._shares = min(replicas, num_processes())
        self._number = process_id() * self._shares // num_processes()

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        batch = self.batches.filled(self.batches[index], self.replicas)
        return keras.tree.map_structure(self._part, batch)

    def _part(self, rows: np.ndarray) -> np.ndarray:
        size = len(rows) // self._shares
        return rows[self._number * size : (self._number + 1) * size]


def _diverged(error: FloatingPointError, config: FitConfig, log: EpochLog) -> str:
    kept = log.last_checkpoint
    return (
        f"Training diverged: {error}. Start another run with a lower --learning-rate than "
        f"{config.learning_rate:g}. "
        + (f"{kept} has the state after epoch {len(log.rows)}" if kept else "No epoch was finished")
        + "; nothing was exported"
    )


def check_tensorboard(config: FitConfig) -> None:
    """Raises `InputError` if TensorBoard logs are requested and TensorBoard is not installed."""
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise InputError(
            "--tensorboard needs the package tensorboard, which is not installed. Install it with: "
            "pip install 'keras-tnattn[tensorboard]'"
        )


def as_dataset(batches: keras.utils.PyDataset) -> object:
    """Returns the batches in a form for `fit`.

    With several devices these are the process's shares of the batches. On TensorFlow this is a
    `tf.data.Dataset` without autotuning. Keras would turn autotuning on; then, in TensorFlow 2.21,
    deleting an iterator waits for the next step of the tuner, whose period doubles up to a minute,
    so that every long epoch ends with an idle wait.
    `tests/training/runs/test_fitting.py` reproduces this with TensorFlow alone.
    """
    distribution = keras.distribution.distribution()
    if distribution is not None:
        return ProcessShare(batches, distribution.device_mesh.shape[0])
    if keras.backend.backend() != "tensorflow":
        return batches
    import tensorflow as tf

    lengths_vary = getattr(batches, "lengths_vary", False)

    # As in Keras, an axis whose size differs between the first two batches may vary. Batches that
    # are drawn anew in each epoch may have equal lengths at first, and say that these vary.
    def spec(one: np.ndarray, other: np.ndarray) -> tf.TensorSpec:
        sizes = [
            None if m != n or lengths_vary else m
            for m, n in zip(one.shape[1:], other.shape[1:], strict=True)
        ]
        return tf.TensorSpec([None, *sizes], one.dtype)

    some = batches[0], batches[min(1, len(batches) - 1)]
    dataset = tf.data.Dataset.from_generator(
        lambda: (batches[index] for index in range(len(batches))),
        output_signature=keras.tree.map_structure(spec, *some),
    )
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))
    return dataset.prefetch(2).with_options(options)
