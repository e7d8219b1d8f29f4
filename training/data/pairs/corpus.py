"""Parallel sentences, and their split into parts."""

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from training.base.errors import InputError

Pair = tuple[str, str]

PARTS = ("train", "validation", "test")
# The size of a part that is split off the training part: a share of its pairs, and a maximum.
CUT_FRACTION, CUT_MOST = 0.05, 2000


@dataclasses.dataclass(frozen=True)
class ParallelCorpus:
    """Sentences in two languages.

    Args:
        languages: The names of the source and the target language.
        train: The training pairs, a source and a target sentence each; may be empty.
        validation: The validation pairs; may be empty.
        test: The test pairs; may be empty.
        notes: Sentences that describe how the pairs were changed while they were read.
    """

    languages: tuple[str, str]
    train: Sequence[Pair]
    validation: Sequence[Pair]
    test: Sequence[Pair]
    notes: tuple[str, ...] = ()

    def part(self, name: str) -> Sequence[Pair]:
        """Returns the pairs of `"train"`, `"validation"` or `"test"`.

        Raises:
            InputError: If the part is empty.
        """
        pairs = getattr(self, name)
        if not pairs:
            raise InputError(
                f"Expected a corpus with a {name} part. Received: one with "
                + ", ".join(f"{len(getattr(self, part))} {part} pairs" for part in PARTS)
                + ". Use another corpus"
            )
        return pairs

    def reversed(self) -> "ParallelCorpus":
        """Returns the corpus with source and target exchanged."""
        train, validation, test = (
            [(target, source) for source, target in getattr(self, name)] for name in PARTS
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
) -> dict[str, list[Pair]]:
    """Splits parts off the training pairs.

    Pairs that share a sentence, directly or through other pairs, stay in the same part.

    Args:
        pairs: The pairs.
        seed: Seed of the choice.
        names: The names of the parts. Default: validation and test.

    Returns:
        The pairs of each part and of the rest, `"train"`, in their original order.

    Raises:
        InputError: If there are too few pairs for these parts.
    """
    from scipy import sparse  # takes a while to import, which `--help` should not

    sides = [np.unique(side, return_inverse=True)[1] for side in np.array(pairs, object).T]
    sources, targets = sides
    vertices = sources.max() + targets.max() + 2
    edges = (np.ones(len(pairs)), (sources, targets + sources.max() + 1))
    graph = sparse.coo_matrix(edges, shape=(vertices, vertices))
    group = sparse.csgraph.connected_components(graph, directed=False)[1][sources]

    part_size = min(CUT_MOST, int(np.ceil(CUT_FRACTION * len(pairs))))
    number = np.zeros(len(pairs), int)  # of the part
    sizes = np.bincount(group)
    order = iter(np.random.default_rng(seed).permutation(np.unique(group)))
    for part in range(1, len(names) + 1):
        room = part_size
        for candidate in order:
            # A large group would make up most of the part, so it stays in the training part.
            if sizes[candidate] <= max(1, part_size // 10):
                number[group == candidate] = part
                room -= sizes[candidate]
            if room <= 0:
                break
    parts = {
        name: [pair for pair, n in zip(pairs, number, strict=True) if n == i]
        for i, name in enumerate(("train", *names))
    }
    if not all(parts.values()):
        raise InputError(
            f"Expected at least {len(parts)} pairs without a sentence in common, for "
            f"{', '.join(parts)}. Received: {len(pairs)} pairs, {len(sizes)} without"
        )
    return parts
