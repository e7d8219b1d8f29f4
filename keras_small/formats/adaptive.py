"""Tables whose rows have a precision of their own, by the frequency of their ids.

The rows are sorted by the error that they would add if they were left out, and cut into blocks: the
first have all coordinates in many bits, the next ones fewer bits or coordinates, and the last rows
are 0. Which coordinates and bits a row gets follows from one price of a byte for the whole table: a
row of importance `a` (its weight times its squared length) with a fraction `D` of its square lost
in `c` bytes has the choice of least `a D + price c`, and the price sets the size.

The coordinates are those along the weighted principal directions. In segments of neighboring ones
they are rotated at random and divided by their size, so that numbers that share a scale are alike.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import keras
import numpy as np

from keras_small.formats.candidates import Candidate
from keras_small.formats.grouped_rows import random_rotation
from keras_small.storage import even_levels
from keras_small.storage.adaptive_embedding import (
    AdaptiveEmbedding,
    basis_bytes,
    position_bytes,
    restored_basis,
)
from keras_small.storage.sizes import item_size
from keras_small.survey.calibration import Statistics
from keras_small.survey.errors import Factors, TableErrors
from keras_small.survey.kinds import is_plain_table, is_table
from keras_tnattn.layers.factored_embedding import embedding_options

# Tables with fewer rows are not cut into blocks.
MINIMUM_ROWS = 500
# The shares of the directions that a row may have.
_DIRECTION_SHARES = (0.125, 0.25, 0.5, 1.0)
# The bits that its coordinates may have.
_COORDINATE_BITS = (2, 3, 4, 8)
# Minimum factor between the bytes of a row in a block and in the next one: each block costs every
# lookup a gather.
_MINIMUM_BYTES_FACTOR = 1.25
# Minimum share of the rows in all blocks that a block has.
_MINIMUM_BLOCK_SHARE = 0.01
# The sizes that are tried, relative to those of the finest rows alone.
_TABLE_SIZES = tuple(0.94**n for n in range(1, 72))


def candidates(
    layer: keras.layers.Layer, statistics: Statistics, bits: int | None
) -> list[Candidate]:
    """Returns tables in blocks of many sizes for a large embedding."""
    if not is_table(layer) or not is_plain_table(layer) or layer.input_dim < MINIMUM_ROWS:
        return []
    return list(_Table(layer, statistics, bits).candidates())


@dataclasses.dataclass(frozen=True)
class _Level:
    """A precision of rows.

    Attributes:
        rank: The number of their coordinates.
        bits: The bits of these, or `None` for floats.
        bytes: The bytes of a row.
        loss: The fraction of the weighted squares that it loses.
        approximation: The rows that estimate errors, as coordinates of the factors.
    """

    rank: int
    bits: int | None
    bytes: int
    loss: float
    approximation: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Block:
    rows: int
    level: _Level


class _Table:
    """The table of an embedding, and the blocks into which it can be cut."""

    def __init__(
        self, layer: keras.layers.Embedding, statistics: Statistics, bits: int | None
    ) -> None:
        self._layer = layer
        self._bits = bits
        self._number = item_size(layer.variable_dtype)
        self._errors = TableErrors(layer, statistics)
        self._factors = self._errors.factors
        weights = self._errors.weights
        coordinates = self._factors.coordinates
        importance = weights * np.einsum("vk,vk->v", coordinates, coordinates)
        self._kept_ids = statistics.kept_ids
        importance[: self._kept_ids or 0] = np.inf  # these ids stay, in front of all others
        self._importance = importance
        self._order = np.argsort(-importance, kind="stable")
        self._places = np.argsort(self._order)
        self._mixing = _mixing(self._factors, weights.sum())
        self._basis = (np.linalg.inv(self._mixing) @ self._factors.basis).astype("float32")

    def _levels(self) -> list[_Level]:
        """Returns the levels to use, which candidates do not keep: they take much memory."""
        rank = len(self._basis)
        widths = [None] if self._bits is None else [w for w in _COORDINATE_BITS if w >= self._bits]
        ranks = sorted({max(1, round(rank * share)) for share in _DIRECTION_SHARES})
        nothing = self._loss(self._errors.coordinates[:, :0]) or 1.0
        return _hull([self._level(own, width, nothing) for own in ranks for width in widths])

    def _loss(self, approximation: np.ndarray) -> float:
        error, weighted = self._errors.of(approximation)
        return (error if weighted is None else weighted) ** 2

    def _level(self, rank: int, bits: int | None, nothing: float) -> _Level:
        coordinates = self._errors.coordinates @ self._mixing[:, :rank]
        size = self._number * rank
        basis = self._basis
        if bits is not None:
            lengths = np.square(basis[:rank]).sum(axis=1)
            coordinates = even_levels.rounded_rows(coordinates, bits, lengths)
            size = even_levels.row_bytes(rank, bits)
            basis = self._restored_basis
        approximation = (coordinates @ (basis[:rank] @ self._factors.inverse)).astype("float32")
        return _Level(
            rank=rank,
            bits=bits,
            bytes=size,
            loss=self._loss(approximation) / nothing,
            approximation=approximation,
        )

    @functools.cached_property
    def _restored_basis(self) -> np.ndarray:
        return restored_basis(self._basis)

    def candidates(self) -> Iterator[Candidate]:
        """Yields a candidate for each size.

        Each row rises from level to level as long as that saves more loss per byte than the price.
        Sorted by what they save, these steps are all choices at all prices.
        """
        levels = self._levels()
        added = np.diff([0, *(level.bytes for level in levels)])
        saved = -np.diff([1.0, *(level.loss for level in levels)]) / added
        steps = np.argsort(-np.outer(saved, self._importance[self._order]), None, kind="stable")
        level_of = steps // len(self._order)
        sizes = np.cumsum(added[level_of])
        seen = set()
        for share in _TABLE_SIZES:
            done = level_of[: np.searchsorted(sizes, share * sizes[-1], side="right")]
            reached = np.bincount(done, minlength=len(added))
            rows = _without_small((reached - np.append(reached[1:], 0)).tolist())
            if any(rows) and rows not in seen:
                seen.add(rows)
                yield self._candidate(rows, levels)

    def _candidate(self, rows: Sequence[int], levels: Sequence[_Level]) -> Candidate:
        """Returns the candidate with some numbers of rows at each level."""
        pairs = [(n, level) for n, level in zip(rows, levels, strict=True) if n]
        blocks = [_Block(n, level) for n, level in reversed(pairs)]
        ends = np.cumsum([block.rows for block in blocks])
        block_of = np.searchsorted(ends, self._places[self._errors.rows], side="right")
        approximation = np.zeros_like(self._errors.coordinates)
        for k, block in enumerate(blocks):
            approximation[block_of == k] = block.level.approximation[block_of == k]
        error, weighted = self._errors.of(approximation)
        rank = max(block.level.rank for block in blocks)
        size = sum(block.rows * block.level.bytes for block in blocks)
        if self._bits is None:
            size += self._number * self._basis[:rank].size
        else:
            size += basis_bytes(rank, self._basis.shape[1]) + 4 * len(blocks)
        if self._kept_ids is None:
            size += position_bytes(len(self._order)) * len(self._order)
        bits = [block.level.bits for block in blocks if block.level.bits is not None]
        quantize = functools.partial(AdaptiveEmbedding.quantized, block_bits=bits) if bits else None
        return Candidate(
            format="adaptive",
            ranks=tuple(int(block.rows) for block in blocks),
            bits=self._bits,
            bytes=size,
            error=error,
            flops=2 * rank * self._basis.shape[1],
            make=functools.partial(self._make, [(x.rows, x.level.rank) for x in blocks]),
            quantize=quantize,
            weighted_error=weighted,
            id_order=lambda: None if self._kept_ids is None else self._order,
        )

    def _make(self, blocks: Sequence[tuple[int, int]]) -> AdaptiveEmbedding:
        """Returns the embedding of blocks, given as pairs of the number of rows and the rank."""
        rows, ranks = zip(*blocks, strict=True)
        layer = AdaptiveEmbedding(
            self._layer.input_dim,
            self._layer.output_dim,
            rows,
            ranks,
            reorder_rows=self._kept_ids is None,
            **embedding_options(self._layer),
        )
        layer.build()
        groups = np.split(self._order, np.cumsum(rows))[: len(blocks)]
        coordinates = [
            self._factors.coordinates[ids] @ self._mixing[:, :rank]
            for ids, rank in zip(groups, ranks, strict=True)
        ]
        layer.assign_blocks(coordinates, self._basis[: max(ranks)])
        if self._kept_ids is None:
            layer.assign_positions(self._places)
        return layer


def _without_small(rows: list[int]) -> tuple[int, ...]:
    """Returns numbers of rows by level, where the rows of a small block have the level below.

    Example:
        >>> _without_small([0, 5000, 3, 400, 2])
        (0, 5003, 0, 402, 0)
    """
    minimum = _MINIMUM_BLOCK_SHARE * sum(rows)
    kept = list(rows)
    for k in range(len(kept) - 1, 0, -1):
        below = [n for n in range(k) if kept[n]]
        if below and kept[k] < minimum:
            kept[below[-1]] += kept[k]
            kept[k] = 0
    return tuple(kept)


def _mixing(factors: Factors, total: float) -> np.ndarray:
    """Returns the matrix `(K, K)` that makes coordinates alike: `x @ mixing`.

    Within a segment of directions, so that leading segments alone are the leading directions.
    """
    rank = len(factors.basis)
    ends = sorted({max(1, round(rank * share)) for share in _DIRECTION_SHARES})
    sizes = np.sqrt(np.maximum(factors.squares, 0.0) / total)
    mixing = np.zeros((rank, rank), "float32")
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        size = np.sqrt(np.mean(sizes[start:end] ** 2))
        size = max(float(size), 1e-6 * float(sizes[0])) or 1.0
        mixing[start:end, start:end] = random_rotation(end - start) / size
    return mixing


def _hull(levels: Sequence[_Level]) -> list[_Level]:
    """Returns the levels of least loss for their bytes, by increasing bytes.

    Those on the lower convex hull, with "no bytes, everything lost" as its first point, of which
    each has clearly more bytes than the one before.
    """
    points = [(0, 1.0)]
    kept: list[_Level] = []

    def saved(first: tuple[int, float], second: tuple[int, float]) -> float:
        return (first[1] - second[1]) / (second[0] - first[0])

    for level in sorted(levels, key=lambda level: (level.bytes, level.loss)):
        point = (level.bytes, level.loss)
        if level.bytes < _MINIMUM_BYTES_FACTOR * points[-1][0] or level.loss >= points[-1][1]:
            continue
        while len(points) > 1 and saved(points[-2], points[-1]) <= saved(points[-1], point):
            points.pop()
            kept.pop()
        points.append(point)
        kept.append(level)
    return kept
