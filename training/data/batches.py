"""Batches in an order that a continued run meets again."""

import math

import keras
import numpy as np


class ShuffledBatches(keras.utils.PyDataset):
    """Batches of `(inputs, labels)`; the order of an epoch depends on the seed and the epoch alone.

    Whoever trains calls `set_epoch` before each epoch: Keras' own `on_epoch_end` of a data set is
    also called before the first one.

    Args:
        inputs: Arrays `(R, ...)`, for instance ids `(R, L)`.
        labels: Integers `(R,)`.
        batch_size: Rows of a batch; the last one of an epoch may be shorter.
        seed: Seed of the order.
    """

    def __init__(self, inputs: np.ndarray, labels: np.ndarray, batch_size: int, seed: int) -> None:
        super().__init__()
        self.inputs, self.labels, self.batch_size, self.seed = inputs, labels, batch_size, seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Takes the order of an epoch, counted from 0."""
        self.order = np.random.default_rng((self.seed, epoch)).permutation(len(self.labels))

    def __len__(self) -> int:
        return math.ceil(len(self.labels) / self.batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        return self.inputs[rows], self.labels[rows]
