"""Parallel sentences, and their split into parts."""

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from training.errors import InputError

Pair = tuple[str, str]

PARTS = ("train", "validation", "test")
# The parts cut from a corpus without: a share of its pairs, and at most so many.
CUT_FRACTION, CUT_MOST = 0.05, 2000


@dataclasses.dataclass(frozen=True)
class ParallelCorpus:
    """Sentences in two languages.

    Args:
        languages: The names of the source and the target language.
        train: Pairs of a source and a target sentence; none where the corpus has no such part.
        validation: Likewise.
        test: Likewise.
        notes: What was done to the pairs while reading, a sentence each.
    """

    languages: tuple[str, str]
    train: Sequence[Pair]
    validation: Sequence[Pair]
    test: Sequence[Pair]
    notes: tuple[str, ...] = ()

    def part(self, name: str) -> Sequence[Pair]:
        """Returns the pairs of `"train"`, `"validation"` or `"test"`.

        Raises:
            InputError: If the part has none.
        """
        pairs = getattr(self, name)
        if not pairs:
            raise InputError(
                f"Expected a corpus with a {name} part. Received: one with "
                + ", ".join(f"{len(getattr(self, part))} {part} pairs" for part in PARTS)
                + ". Take another corpus for it"
            )
        return pairs

    def reversed(self) -> "ParallelCorpus":
        """Returns the corpus of the other direction."""
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
    """Cuts parts from training pairs.

    Pairs that share a sentence, directly or through others, stay in one part.

    Args:
        pairs: The pairs.
        seed: Seed of the choice.
        names: The parts to cut. Default: validation and test.

    Returns:
        The pairs of each part and of what is left, `"train"`, in the order given.

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

    wanted = min(CUT_MOST, int(np.ceil(CUT_FRACTION * len(pairs))))
    number = np.zeros(len(pairs), int)  # of the part
    sizes = np.bincount(group)
    order = iter(np.random.default_rng(seed).permutation(np.unique(group)))
    for part in range(1, len(names) + 1):
        room = wanted
        for candidate in order:
            # A large group would be most of the part: it is trained on.
            if sizes[candidate] <= max(1, wanted // 10):
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
