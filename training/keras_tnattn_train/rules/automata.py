"""Elementary cellular automata, and batches of random rows to learn them from."""

from typing import Any

import keras
import numpy as np

from keras_tnattn_train.rules.config import RulesConfig


def evolve(rows: np.ndarray, rule: int, steps: int = 1, boundary: str = "periodic") -> np.ndarray:
    """Returns the rows `steps` steps later under an elementary rule.

    Args:
        rows: Bits `(B, N)`.
        rule: Wolfram's number of the rule, 0 to 255. Its bit `4 l + 2 c + r` is the next state of a
            cell with state `c`, left neighbor `l` and right neighbor `r`.
        steps: Number of steps.
        boundary: `"periodic"` (the row is a ring) or `"fixed"` (zeros beyond both ends).
    """
    mode: Any = {"periodic": "wrap", "fixed": "constant"}[boundary]
    for _ in range(steps):
        padded = np.pad(rows, ((0, 0), (1, 1)), mode=mode)
        rows = (rule >> (4 * padded[:, :-2] + 2 * rows + padded[:, 2:])) & 1
    return rows


class RuleBatches(keras.utils.PyDataset):
    """Batches of random rows and their successors, which depend only on batch number and seed.

    Successive batches take the lengths in turn. Call `set_epoch` before each epoch.
    """

    lengths_vary = True

    def __init__(self, config: RulesConfig) -> None:
        super().__init__()
        self.config = config
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Selects the batches of an epoch, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.config.batches_per_epoch

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        config = self.config
        number = self.epoch * len(self) + index
        length = config.trained_lengths[number % len(config.trained_lengths)]
        rng = np.random.default_rng((config.seed, number))
        rows = rng.integers(0, 2, (config.batch_size, length), "int32")
        return rows, evolve(rows, config.rule, config.steps, config.boundary)

    def fill(self, batch: tuple[np.ndarray, ...], multiple: int) -> tuple[np.ndarray, ...]:
        """Returns the batch, which is whole as every batch here."""
        return batch
