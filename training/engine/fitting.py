"""Training that ends with the same weights, stopped and continued or not.

TensorFlow is imported where it is the backend alone.
"""

import contextlib
import sys

import keras
import numpy as np

from training.engine.checkpoints import EpochLog
from training.engine.runs import Run
from training.errors import InputError
from training.options import RunConfig


def reset_session(seed: int) -> None:
    """Clears Keras' global state and seeds every random generator."""
    keras.utils.clear_session()
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if tf.config.list_physical_devices("GPU"):
            # A GPU adds in any order, so that a resumed run would drift. On a CPU the deterministic
            # kernels change nothing and make a step 1.5 times as slow.
            tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(seed)


def on_all_gpus(batch_size: int) -> contextlib.AbstractContextManager:
    """Returns a context; a model made and compiled in it trains on all GPUs, if there are several.

    That is so on the TensorFlow backend: each takes its share of every batch. Elsewhere the
    context is of no effect.

    Raises:
        InputError: If the GPUs cannot share a batch evenly, which Keras wants of the first one.
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
    config: RunConfig,
    run: Run,
    patience: int | None = None,
    validation: keras.utils.PyDataset | None = None,
    log: EpochLog | None = None,
) -> EpochLog:
    """Trains a compiled model from where its run stands to the last epoch.

    Args:
        model: The model.
        batches: What an epoch trains on. `set_epoch` makes it that of an epoch, counted from 0,
            and nothing but that and the seed may change it.
        config: Says how many epochs.
        run: The run, started.
        patience: Stop after so many epochs without a lower loss on the validation part, and put
            the model where that was lowest. Default: never.
        validation: The batches of that part.
        log: What keeps the metrics and checkpoints. Default: `EpochLog(run, patience)`.

    Returns:
        The log of all epochs.
    """
    log = log or EpochLog(run, patience)
    log.set_model(model)
    epoch = log.restore()
    if epoch < config.epochs and not log.done:
        ordered = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: batches.set_epoch(epoch)
        )
        model.fit(
            as_dataset(batches),
            initial_epoch=epoch,
            epochs=config.epochs,
            validation_data=None if validation is None else as_dataset(validation),
            shuffle=False,  # Keras would shuffle the batches too, by a state of its own
            callbacks=[ordered, log],
            verbose=1 if sys.stdout.isatty() else 2,
        )
    log.restore_best()
    return log


def as_dataset(batches: keras.utils.PyDataset) -> object:
    """Returns the batches in the form in which Keras should read them.

    On TensorFlow that is a `tf.data.Dataset` without autotuning. With autotuning, which Keras would
    choose, deleting an iterator in TensorFlow 2.21 waits for the tuner's next turn; its period
    doubles up to a minute, so that every long epoch ends with an idle wait.
    `tests/training/engine/test_fitting.py` reproduces this with TensorFlow alone.
    """
    if keras.backend.backend() != "tensorflow":
        return batches
    import tensorflow as tf

    # A size may vary if it does between the first two batches; Keras goes by that too.
    def spec(one: np.ndarray, other: np.ndarray) -> tf.TensorSpec:
        sizes = zip(one.shape[1:], other.shape[1:], strict=True)
        return tf.TensorSpec([None, *(m if m == n else None for m, n in sizes)], one.dtype)

    some = batches[0], batches[min(1, len(batches) - 1)]
    dataset = tf.data.Dataset.from_generator(
        lambda: (batches[index] for index in range(len(batches))),
        output_signature=keras.tree.map_structure(spec, *some),
    )
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))
    return dataset.prefetch(2).with_options(options)
