"""Parallel sentences, and their split into parts."""

import dataclasses
import hashlib
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from keras_tnattn_train.data.stored import StoredSequence, StoredTexts
from keras_tnattn_train.options.errors import InputError

Pair = tuple[str, str]

PARTS = ("train", "validation", "test")
# The size of a part that is split off the training part: a share of its pairs, and a maximum.
CUT_FRACTION = 0.05
CUT_MOST = 2000


class StoredPairs(StoredSequence[Pair]):
    """Pairs of sentences in a temporary file; memory holds 16 bytes per pair."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._texts = StoredTexts(itertools.chain.from_iterable(pairs))

    def __len__(self) -> int:
        return len(self._texts) // 2

    def __iter__(self) -> Iterator[Pair]:
        texts = iter(self._texts)
        return zip(texts, texts, strict=True)

    def _item(self, place: int) -> Pair:
        return self._texts[2 * place], self._texts[2 * place + 1]


class Side(StoredSequence[str]):
    """The sentences of one side of pairs, read when they are needed."""

    def __init__(self, pairs: Sequence[Pair], side: int) -> None:
        self._pairs = pairs
        self._side = side

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[str]:
        return (pair[self._side] for pair in self._pairs)

    def _item(self, place: int) -> str:
        return self._pairs[place][self._side]


@dataclasses.dataclass(frozen=True)
class ParallelCorpus:
    """Sentences in two languages."""

    languages: tuple[str, str]
    train: Sequence[Pair]
    validation: Sequence[Pair]
    test: Sequence[Pair]
    notes: tuple[str, ...] = ()

    def part(self, name: str) -> Sequence[Pair]:
        """Returns the pairs of `"train"`, `"validation"` or `"test"`."""
        pairs = getattr(self, name)
        if not pairs:
            raise InputError(
                f"Expected a corpus with a {name} part. Received: one with "
                + ", ".join(f"{len(getattr(self, part))} {part} pairs" for part in PARTS)
                + ". Use another corpus"
            )
        return pairs

    def swap_sides(self) -> "ParallelCorpus":
        """Returns the corpus with source and target exchanged."""
        train, validation, test = (
            StoredPairs((target, source) for source, target in getattr(self, name))
            for name in PARTS
        )
        source, target = self.languages
        return ParallelCorpus((target, source), train, validation, test, self.notes)

    def fingerprint(self) -> str:
        """Returns a SHA-256 that changes with any sentence, part or language, or their order."""
        digest = hashlib.sha256(repr(self.languages).encode())
        for name in PARTS:
            digest.update(f"{name} {len(getattr(self, name))}\n".encode())
            for pair in getattr(self, name):
                for text in pair:
                    digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        return digest.hexdigest()


def cut_parts(
    pairs: Sequence[Pair], seed: int, names: Sequence[str] = PARTS[1:]
) -> dict[str, Sequence[Pair]]:
    """Splits parts off the training pairs; returns them and the rest, `"train"`, in their order.

    Pairs that share a sentence, directly or through other pairs, stay in the same part.
    """
    group = _groups(pairs)
    part_size = min(CUT_MOST, int(np.ceil(CUT_FRACTION * len(pairs))))
    sizes = np.bincount(group)
    part_of_group = np.zeros(len(sizes), "int8")
    order = iter(np.random.default_rng(seed).permutation(len(sizes)))
    for part in range(1, len(names) + 1):
        room = part_size
        for candidate in order:
            # A large group would make up most of the part, so it stays in the training part.
            if sizes[candidate] <= max(1, part_size // 10):
                part_of_group[candidate] = part
                room -= sizes[candidate]
            if room <= 0:
                break
    number = part_of_group[group]
    parts: dict[str, Sequence[Pair]] = {
        name: StoredPairs(pair for pair, n in zip(pairs, number, strict=True) if n == i)
        for i, name in enumerate(("train", *names))
    }
    if not all(parts.values()):
        raise InputError(
            f"Expected at least {len(parts)} pairs without a sentence in common, for "
            f"{', '.join(parts)}. Received: {len(pairs)} pairs, {len(sizes)} without"
        )
    return parts


def _groups(pairs: Sequence[Pair]) -> np.ndarray:
    """Returns the number of each pair's group `(R,)`; groups have no sentence in common."""
    from scipy import sparse  # takes a while to import, which `--help` should not

    sources, targets = (_numbers(Side(pairs, i)) for i in (0, 1))
    vertices = sources.max() + targets.max() + 2
    edges = (np.ones(len(pairs)), (sources, targets + sources.max() + 1))
    graph = sparse.coo_matrix(edges, shape=(vertices, vertices))
    return sparse.csgraph.connected_components(graph, directed=False)[1][sources]


def _numbers(sentences: Sequence[str]) -> np.ndarray:
    """Numbers sentences, int64 `(R,)`, equal ones alike, in the order of code points.

    The same as `np.unique(sentences, return_inverse=True)[1]`, but only the first eight bytes of
    each sentence are in memory, and all sentences with the same ones.
    """
    beginnings = (text.encode("utf-8", "surrogatepass")[:8] for text in sentences)
    keys = np.fromiter(
        (int.from_bytes(beginning.ljust(8, b"\0"), "big") for beginning in beginnings),
        "uint64",
        len(sentences),
    )
    order = np.argsort(keys, kind="stable")
    # Whether a sentence in this order differs from the one before.
    new = np.ones(len(sentences), bool)
    ends = np.flatnonzero(np.diff(keys[order])) + 1
    starts, ends = np.append(0, ends), np.append(ends, len(sentences))
    for start, end in np.stack([starts, ends], axis=1)[ends - starts > 1]:
        rows = {row: sentences[row] for row in order[start:end].tolist()}
        order[start:end] = sorted(rows, key=rows.__getitem__)
        alike = [rows[row] for row in order[start:end].tolist()]
        new[start + 1 : end] = list(map(operator.ne, alike[1:], alike))
    numbers = np.empty(len(sentences), "int64")
    numbers[order] = np.cumsum(new) - 1
    return numbers
