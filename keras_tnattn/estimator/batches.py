"""Batches in an order that a resumed run repeats, and what a model computes from them.

TensorFlow is imported only if it is the backend.
"""

import functools
import math

import keras
import numpy as np

MAX_TOKENS = 65_536  # of a batch of long texts, padding included
CHUNK = 65_536  # texts whose lengths are computed at once


class ArrayBatches(keras.utils.PyDataset):
    """Batches of `(inputs, labels)`; the order of an epoch depends only on the seed and the epoch.

    Without a seed it is that of the arrays. With `sample_weights` they are the third of each batch.
    Call `set_epoch` before each epoch. `on_epoch_end` does not serve for this, because Keras also
    calls it before the first epoch.
    """

    def __init__(
        self,
        inputs: np.ndarray,
        labels: np.ndarray,
        batch_size: int,
        seed: int | None = None,
        sample_weights: np.ndarray | None = None,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.labels = labels
        self.batch_size = batch_size
        self.seed = seed
        self.sample_weights = sample_weights
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Selects the order of an epoch, counted from 0."""
        self.order = np.arange(len(self.labels))
        if self.seed is not None:
            self.order = np.random.default_rng((self.seed, epoch)).permutation(self.order)

    def __len__(self) -> int:
        return math.ceil(len(self.labels) / self.batch_size)

    def rows(self, index: int) -> np.ndarray:
        """Returns the numbers of the rows in a batch."""
        return self.order[index * self.batch_size : (index + 1) * self.batch_size]

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        rows = self.rows(index)
        if self.sample_weights is None:
            return self.inputs[rows], self.labels[rows]
        return self.inputs[rows], self.labels[rows], self.sample_weights[rows]

    def fill(self, batch: tuple[np.ndarray, ...], multiple: int) -> tuple[np.ndarray, ...]:
        """Fills a batch up to a multiple of rows with copies that have no weight in the loss.

        The weights of the others keep the loss, a mean over all rows, as it was.
        """
        inputs, labels, *weights = batch
        added = -len(labels) % multiple
        weight = weights[0] if weights else np.ones(len(labels), "float32")
        weight = weight * np.float32((len(labels) + added) / len(labels))
        weight = np.concatenate([weight, np.zeros(added, weight.dtype)])
        return repeat_last(inputs, added), repeat_last(labels, added), weight


class TextBatches(ArrayBatches):
    """Batches of texts without the padding that all texts of a batch share.

    Each batch is as long as its longest text, rounded up to 64, 128, 256 and so on so that few
    shapes are compiled, but at most `L`. The rows of a batch are those of `ArrayBatches`.
    """

    lengths_vary = True

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """The lengths to which the texts are cut, `(R,)`."""
        return compiled_lengths(self.inputs)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        inputs, *others = super().__getitem__(index)
        return inputs[:, : self.lengths[self.rows(index)].max()], *others


class GroupedTextBatches(TextBatches):
    """Batches of texts of similar lengths, without needless padding.

    Texts that are rounded up to the same length share batches, so that a long text makes no short
    one long. A batch has at most `max_tokens` tokens, padding included, or a single longer text.
    Without a seed the texts are sorted by length, in every epoch.
    """

    def __init__(
        self,
        inputs: np.ndarray,
        labels: np.ndarray,
        batch_size: int,
        max_tokens: int,
        seed: int | None = None,
        sample_weights: np.ndarray | None = None,
    ) -> None:
        self.max_tokens = max_tokens
        super().__init__(inputs, labels, batch_size, seed, sample_weights)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        lengths = self.lengths[self.order]
        self._batches: list[np.ndarray] = []
        for length in np.unique(lengths):
            rows = self.order[lengths == length]
            size = max(1, min(self.batch_size, self.max_tokens // length))
            self._batches += [rows[i : i + size] for i in range(0, len(rows), size)]
        if self.seed is not None:
            np.random.default_rng((self.seed, epoch, 1)).shuffle(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def rows(self, index: int) -> np.ndarray:
        return self._batches[index]


def repeat_last(rows: np.ndarray, added: int) -> np.ndarray:
    """Appends `added` copies of the last row."""
    return np.concatenate([rows, np.repeat(rows[-1:], added, axis=0)])


def compiled_lengths(ids: np.ndarray) -> np.ndarray:
    """Returns the lengths of texts `(R, L)`, rounded up to 64, 128 and so on, but at most `L`."""
    length = ids.shape[1]
    lengths = np.zeros(len(ids), "int64")
    for start in range(0, len(ids), CHUNK):  # the ids may be in a file, larger than the memory
        real = ids[start : start + CHUNK] != 0
        last = length - real[:, ::-1].argmax(axis=1)
        lengths[start : start + CHUNK] = np.where(real.any(axis=1), last, 0)
    powers = 2 ** np.ceil(np.log2(np.maximum(lengths, 64))).astype("int64")
    return np.minimum(powers, length)


def outputs_of(model: keras.Model, ids: np.ndarray) -> np.ndarray:
    """Returns the outputs `(R, ...)` for texts `(R, L)`, read without needless padding."""
    texts = GroupedTextBatches(ids, np.zeros(len(ids)), 256, MAX_TOKENS)
    outputs = model.predict(as_dataset(texts), verbose=0)
    order = np.concatenate([texts.rows(index) for index in range(len(texts))])
    return outputs[np.argsort(order)]


def as_dataset(batches: keras.utils.PyDataset) -> object:
    """Returns the batches in a form for `fit`.

    On TensorFlow this is a `tf.data.Dataset` without autotuning. Keras would turn autotuning on;
    then, in TensorFlow 2.21, deleting an iterator waits for the next step of the tuner, whose
    period doubles up to a minute, so that every long epoch ends with an idle wait.
    `tests/training/runs/test_fitting.py` reproduces this with TensorFlow alone.
    """
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

    examples = batches[0], batches[min(1, len(batches) - 1)]
    dataset = tf.data.Dataset.from_generator(
        lambda: (batches[index] for index in range(len(batches))),
        output_signature=keras.tree.map_structure(spec, *examples),
    )
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))
    return dataset.prefetch(2).with_options(options)
