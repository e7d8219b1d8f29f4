"""Batches of sentence pairs, in an order that a resumed run repeats."""

import math

import keras
import numpy as np

from keras_tnattn.estimator.batches import repeat_last
from keras_tnattn_train.data.pairs.prepared import TokenizedPart
from keras_tnattn_train.data.permutation import permute

PAIRS_AT_ONCE = 65_536  # whose order and lengths are in memory


class BucketedBatches(keras.utils.PyDataset):
    """Batches of sentence pairs of similar length, to train a translator with teacher forcing.

    A batch is `({"source": (B, S), "target": (B, T)}, labels (B, T))`: `target` is a sentence
    without its last id, `labels` is the same sentence without its first id, and 0 is padding. `S`
    and `T` are the greatest lengths in the batch, rounded up to `multiple` so that few shapes are
    compiled, but at most the greatest lengths in the part.

    The order of an epoch depends only on the seed and the epoch: all pairs are shuffled, and among
    each 65,536 those of similar lengths share batches, which come in random order. Without a seed
    it is always that of the part, sorted by length. Call `set_epoch` before each epoch, and
    `keras_tnattn_train.runs.training.fit`, for which the lengths vary.

    Raises:
        ValueError: If `batch_size` or `multiple` is not positive, or the part has no pairs.
    """

    lengths_vary = True

    def __init__(
        self, part: TokenizedPart, batch_size: int, seed: int | None = None, multiple: int = 8
    ) -> None:
        super().__init__()
        if batch_size < 1 or multiple < 1:
            raise ValueError(
                "Expected batch_size >= 1 and multiple >= 1. "
                f"Received: batch_size={batch_size}, multiple={multiple}"
            )
        self.part = part
        self.batch_size = batch_size
        self.seed = seed
        self.multiple = multiple
        if not len(part):
            raise ValueError("Expected a part with pairs. Received: an empty one")
        # The lengths that the model reads: `target` and `labels` both lack one id.
        self._longest = part.source.longest(), part.target.longest() - 1
        # A corpus may have many millions of pairs; only the order of a block is in memory.
        self._batches_per_block = max(1, PAIRS_AT_ONCE // batch_size)
        self.set_epoch(0)

    def sample(self, number: int) -> list:
        """Returns at most `number` batches at even distances, of short and of long sentences."""
        places = np.linspace(0, len(self) - 1, min(number, len(self))).round().astype(int)
        return [self[place] for place in places]

    @property
    def tokens(self) -> int:
        """The number of target ids that are predicted in an epoch."""
        return len(self.part.target.ids) - len(self.part)

    def set_epoch(self, epoch: int) -> None:
        """Selects the order of an epoch, counted from 0."""
        self._epoch = epoch
        self._block = -1

    def _order(self, block: int) -> None:
        """Draws the pairs of a block and the order of its batches."""
        size = self._batches_per_block * self.batch_size
        rows = np.arange(block * size, min((block + 1) * size, len(self.part)))
        starts = np.arange(0, len(rows), self.batch_size)
        batches = np.arange(len(starts))
        if self.seed is not None:
            rows = permute(rows, len(self.part), (self.seed, self._epoch))
            batches = np.random.default_rng((self.seed, self._epoch, block)).permutation(batches)
        source = _round_up(self.part.source.lengths_of(rows), self.multiple, self._longest[0])
        target = _round_up(self.part.target.lengths_of(rows) - 1, self.multiple, self._longest[1])
        # The sorts are stable: pairs of equal lengths stay in random order.
        order = np.lexsort((source, target))
        self._block = block
        self._rows = rows[order]
        self._batches = batches
        self._lengths = np.stack(  # (batches, 2)
            [np.maximum.reduceat(sizes[order], starts) for sizes in (source, target)], axis=1
        )

    def __len__(self) -> int:
        return math.ceil(len(self.part) / self.batch_size)

    def __getitem__(self, index: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        block, place = divmod(index, self._batches_per_block)
        if block != self._block:
            self._order(block)
        batch = self._batches[place]
        rows = self._rows[batch * self.batch_size : (batch + 1) * self.batch_size]
        source_length, target_length = self._lengths[batch]
        source, target = self.part.source, self.part.target
        begin, end = target.offsets[rows], target.offsets[rows + 1]
        inputs = {
            "source": _pad(
                source.ids, source.offsets[rows], source.offsets[rows + 1], source_length
            ),
            "target": _pad(target.ids, begin, end - 1, target_length),
        }
        return inputs, _pad(target.ids, begin + 1, end, target_length)

    def fill(
        self, batch: tuple[dict[str, np.ndarray], np.ndarray], multiple: int
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Fills a batch up to a multiple of rows with copies whose labels are padding."""
        inputs, labels = batch
        added = -len(labels) % multiple
        padding = np.zeros((added, *labels.shape[1:]), labels.dtype)
        inputs = {name: repeat_last(ids, added) for name, ids in inputs.items()}
        return inputs, np.concatenate([labels, padding])


def _round_up(lengths: np.ndarray, multiple: int, longest: int) -> np.ndarray:
    """Rounds lengths up to multiples, but at most to the greatest one."""
    return np.minimum(-(-lengths // multiple) * multiple, longest)


def _pad(ids: np.ndarray, begin: np.ndarray, end: np.ndarray, length: int) -> np.ndarray:
    """Returns `ids[begin[r]:end[r]]` for each of `B` rows, as `(B, length)`, padded with 0."""
    places = begin[:, None] + np.arange(length)
    inside = places < end[:, None]
    padded = np.zeros(inside.shape, "int32")
    padded[inside] = ids[places[inside]]
    return padded
