"""Batches in an order that a resumed run repeats."""

import functools
import math

import keras
import numpy as np

from keras_tnattn_train.data.pairs.prepared import TokenizedPart
from keras_tnattn_train.data.permutation import permuted

BLOCK = 65_536  # texts or pairs whose lengths are computed at once


class ArrayBatches(keras.utils.PyDataset):
    """Batches of `(inputs, labels)`; the order of an epoch depends only on the seed and the epoch.

    Call `set_epoch` before each epoch. `on_epoch_end` does not serve for this, because Keras also
    calls it before the first epoch.

    Args:
        inputs: Arrays `(R, ...)`, for instance ids `(R, L)`.
        labels: Integers `(R,)`.
        batch_size: Rows per batch; the last batch of an epoch may have fewer.
        seed: Seed of the order. Default: the order of the arrays, in every epoch.
        sample_weights: Floats `(R,)`, the weights of the rows in the loss; batches are then
            `(inputs, labels, sample_weights)`. Default: equal weights.
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
        self.inputs, self.labels, self.batch_size, self.seed = inputs, labels, batch_size, seed
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

    def filled(self, batch: tuple[np.ndarray, ...], multiple: int) -> tuple[np.ndarray, ...]:
        """Fills a batch up to a multiple of rows with copies that have no weight in the loss.

        The weights of the others keep the loss, a mean over all rows, as it was.
        """
        inputs, labels, *weights = batch
        added = -len(labels) % multiple
        weight = weights[0] if weights else np.ones(len(labels), "float32")
        weight = weight * np.float32((len(labels) + added) / len(labels))
        weight = np.concatenate([weight, np.zeros(added, weight.dtype)])
        return _repeated(inputs, added), _repeated(labels, added), weight


class TextBatches(ArrayBatches):
    """Batches of texts without the padding that all texts of a batch share.

    Each batch is as long as its longest text, rounded up to 64, 128, 256 and so on so that few
    shapes are compiled, but at most `L`. The rows of a batch are those of `ArrayBatches`.

    Args:
        inputs: Ids `(R, L)`, padded with 0 at the end.
        labels, batch_size, seed, sample_weights: As for `ArrayBatches`.
    """

    lengths_vary = True

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """The lengths to which the texts are cut, `(R,)`."""
        return _compiled_lengths(self.inputs)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        inputs, *others = super().__getitem__(index)
        return inputs[:, : self.lengths[self.rows(index)].max()], *others


class GroupedTextBatches(TextBatches):
    """Batches of texts of similar lengths, without needless padding.

    Texts that are rounded up to the same length share batches, so that a long text makes no short
    one long.

    Args:
        inputs: As for `TextBatches`.
        labels: As for `TextBatches`.
        batch_size: Maximum number of rows in a batch.
        max_tokens: Maximum number of tokens in a batch, padding included; a single longer text is a
            batch.
        seed: As for `TextBatches`. Default: sorted by length, in every epoch.
    """

    def __init__(
        self,
        inputs: np.ndarray,
        labels: np.ndarray,
        batch_size: int,
        max_tokens: int,
        seed: int | None = None,
    ) -> None:
        self.max_tokens = max_tokens
        super().__init__(inputs, labels, batch_size, seed)

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


class BucketedBatches(keras.utils.PyDataset):
    """Batches of sentence pairs of similar length, to train a translator with teacher forcing.

    A batch is `({"source": (B, S), "target": (B, T)}, labels (B, T))`: `target` is a sentence
    without its last id, `labels` is the same sentence without its first id, and 0 is padding. `S`
    and `T` are the greatest lengths in the batch, rounded up so that few shapes are compiled, but
    at most the greatest lengths in the part.

    The order of an epoch depends only on the seed and the epoch: all pairs are shuffled, and among
    each 65,536 those of similar lengths share batches, which come in random order. Call `set_epoch`
    before each epoch, and `keras_tnattn_train.runs.training.fit`, for which the lengths vary.

    Args:
        part: The tokenized pairs.
        batch_size: Pairs per batch; one batch of an epoch may have fewer.
        seed: Seed of the order. Default: the order of the part, sorted by length among each 65,536
            pairs, the same in all epochs.
        multiple: `S` and `T` are rounded up to multiples of this number. Default 8.

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
        self.part, self.batch_size, self.seed, self.multiple = part, batch_size, seed, multiple
        if not len(part):
            raise ValueError("Expected a part with pairs. Received: an empty one")
        # The lengths that the model reads: `target` and `labels` both lack one id.
        self._longest = part.source.longest(), part.target.longest() - 1
        # A corpus may have many millions of pairs; only the order of a block is in memory.
        self._batches_per_block = max(1, BLOCK // batch_size)
        self.set_epoch(0)

    @property
    def tokens(self) -> int:
        """The number of target ids that are predicted in an epoch."""
        return len(self.part.target.ids) - len(self.part)

    def set_epoch(self, epoch: int) -> None:
        """Selects the order of an epoch, counted from 0."""
        self._epoch, self._block = epoch, -1

    def _order(self, block: int) -> None:
        """Draws the pairs of a block and the order of its batches."""
        size = self._batches_per_block * self.batch_size
        rows = np.arange(block * size, min((block + 1) * size, len(self.part)))
        starts = np.arange(0, len(rows), self.batch_size)
        batches = np.arange(len(starts))
        if self.seed is not None:
            rows = permuted(rows, len(self.part), (self.seed, self._epoch))
            batches = np.random.default_rng((self.seed, self._epoch, block)).permutation(batches)
        source = _rounded(self.part.source.lengths_of(rows), self.multiple, self._longest[0])
        target = _rounded(self.part.target.lengths_of(rows) - 1, self.multiple, self._longest[1])
        # The sorts are stable: pairs of equal lengths stay in random order.
        order = np.lexsort((source, target))
        self._block, self._rows, self._batches = block, rows[order], batches
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
            "source": _padded(
                source.ids, source.offsets[rows], source.offsets[rows + 1], source_length
            ),
            "target": _padded(target.ids, begin, end - 1, target_length),
        }
        return inputs, _padded(target.ids, begin + 1, end, target_length)

    def filled(
        self, batch: tuple[dict[str, np.ndarray], np.ndarray], multiple: int
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Fills a batch up to a multiple of rows with copies whose labels are padding."""
        inputs, labels = batch
        added = -len(labels) % multiple
        padding = np.zeros((added, *labels.shape[1:]), labels.dtype)
        inputs = {name: _repeated(ids, added) for name, ids in inputs.items()}
        return inputs, np.concatenate([labels, padding])


def _repeated(rows: np.ndarray, added: int) -> np.ndarray:
    """Appends `added` copies of the last row."""
    return np.concatenate([rows, np.repeat(rows[-1:], added, axis=0)])


def _compiled_lengths(ids: np.ndarray) -> np.ndarray:
    """Returns the lengths of texts `(R, L)`, rounded up to 64, 128 and so on, but at most `L`."""
    length = ids.shape[1]
    lengths = np.zeros(len(ids), "int64")
    for start in range(0, len(ids), BLOCK):  # the ids may be in a file, larger than the memory
        real = ids[start : start + BLOCK] != 0
        last = length - real[:, ::-1].argmax(axis=1)
        lengths[start : start + BLOCK] = np.where(real.any(axis=1), last, 0)
    powers = 2 ** np.ceil(np.log2(np.maximum(lengths, 64))).astype("int64")
    return np.minimum(powers, length)


def _rounded(lengths: np.ndarray, multiple: int, longest: int) -> np.ndarray:
    """Rounds lengths up to multiples, but at most to the greatest one."""
    return np.minimum(-(-lengths // multiple) * multiple, longest)


def _padded(ids: np.ndarray, begin: np.ndarray, end: np.ndarray, length: int) -> np.ndarray:
    """Returns `ids[begin[r]:end[r]]` for each of `B` rows, as `(B, length)`, padded with 0."""
    places = begin[:, None] + np.arange(length)
    inside = places < end[:, None]
    padded = np.zeros(inside.shape, "int32")
    padded[inside] = ids[places[inside]]
    return padded
