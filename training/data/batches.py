"""Batches in an order that a continued run meets again."""

import math

import keras
import numpy as np

from training.data.prepared import Sentences, TokenizedPart


class ShuffledBatches(keras.utils.PyDataset):
    """Batches of `(ids, labels)`; the order of an epoch depends on the seed and the epoch alone.

    Whoever trains calls `set_epoch` before each epoch: Keras' own `on_epoch_end` of a data set is
    also called before the first one.

    Args:
        ids: Integers `(R, L)`.
        labels: Integers `(R,)`.
        batch_size: Rows of a batch; the last one of an epoch may be shorter.
        seed: Seed of the order.
    """

    def __init__(self, ids: np.ndarray, labels: np.ndarray, batch_size: int, seed: int) -> None:
        super().__init__()
        self.ids, self.labels, self.batch_size, self.seed = ids, labels, batch_size, seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Takes the order of an epoch, counted from 0."""
        self.order = np.random.default_rng((self.seed, epoch)).permutation(len(self.labels))

    def __len__(self) -> int:
        return math.ceil(len(self.labels) / self.batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        return self.ids[rows], self.labels[rows]


class BucketedBatches(keras.utils.PyDataset):
    """Batches of pairs of like length, for a translator that is told the target so far.

    A batch is `({"source": (B, S), "target": (B, T)}, labels (B, T))`: `target` is a sentence
    without its last id, `labels` the same without its first, 0 is padding. `S` and `T` are the
    longest of the batch, rounded up, so that few shapes are met and compiled. The order of an
    epoch depends on the seed and the epoch alone; whoever trains calls `set_epoch` before each.

    Args:
        part: The tokenised pairs.
        batch_size: Pairs of a batch; one batch of an epoch may have fewer.
        seed: Seed of the order. `None`: the order given by the lengths, the same in all epochs.
        multiple: `S` and `T` are multiples of it. Default 8.

    Raises:
        ValueError: If `batch_size` or `multiple` is not positive.
    """

    def __init__(
        self, part: TokenizedPart, batch_size: int, seed: int | None = None, multiple: int = 8
    ) -> None:
        super().__init__()
        if batch_size < 1 or multiple < 1:
            raise ValueError(
                "Expected batch_size >= 1 and multiple >= 1. "
                f"Received: batch_size={batch_size}, multiple={multiple}"
            )
        self.part, self.batch_size, self.seed, self.multiple = part, batch_size, seed, multiple
        # What the model is shown: the target loses an id at one end or the other.
        self.source_buckets = -(-part.source.lengths // multiple)
        self.target_buckets = -(-(part.target.lengths - 1) // multiple)
        self.set_epoch(0)

    @property
    def tokens(self) -> int:
        """How many target ids are predicted in an epoch."""
        return len(self.part.target.ids) - len(self.part)

    def set_epoch(self, epoch: int) -> None:
        """Takes the order of an epoch, counted from 0."""
        rows, batches = np.arange(len(self.part)), np.arange(len(self))
        if self.seed is not None:
            draw = np.random.default_rng((self.seed, epoch))
            rows, batches = draw.permutation(rows), draw.permutation(batches)
        # `lexsort` is stable: within a bucket the order stays drawn.
        rows = rows[np.lexsort((self.source_buckets[rows], self.target_buckets[rows]))]
        self.rows, self.batches = rows, batches

    def __len__(self) -> int:
        return math.ceil(len(self.part) / self.batch_size)

    def __getitem__(self, index: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        start = self.batches[index] * self.batch_size
        rows = self.rows[start : start + self.batch_size]
        source, target = self.part.source, self.part.target
        inputs = {
            "source": self._padded(source, rows),
            "target": self._padded(target, rows, left_out=1),
        }
        return inputs, self._padded(target, rows, start=1, left_out=1)

    def _padded(
        self, sentences: Sentences, rows: np.ndarray, start: int = 0, left_out: int = 0
    ) -> np.ndarray:
        """Returns ids `(B, L)`: of every sentence `left_out` less than all, from `start` on."""
        lengths = sentences.offsets[rows + 1] - sentences.offsets[rows] - left_out
        longest = -(-lengths.max() // self.multiple) * self.multiple
        place = np.arange(longest)
        inside = place < lengths[:, None]
        ids = np.zeros(inside.shape, "int32")
        ids[inside] = sentences.ids[((sentences.offsets[rows] + start)[:, None] + place)[inside]]
        return ids
