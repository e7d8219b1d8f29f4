"""The candidates to replace an embedding."""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
from keras import ops

from keras_tnattn.compression import grouped_rows
from keras_tnattn.compression.calibration import Seen
from keras_tnattn.compression.candidates import (
    Candidate,
    byte_count,
    item_size,
    quantized,
    ranks_to_try,
)
from keras_tnattn.layers import LowRankEmbedding, TTEmbedding
from keras_tnattn.layers.base_embedding import embedding_options
from keras_tnattn.layers.tt_embedding import rounded_core
from keras_tnattn.ops import low_rank, quantization

# The weight of an id that never occurred in the data, relative to the mean count.
_UNSEEN = 0.06
# The weight that every direction of the rows has at least, relative to the mean.
_FLOOR = 0.1
# Tables with fewer rows get no tensor train.
_FEWEST_ROWS = 500
# The ranks of tensor trains that are tried: shares of the number of columns and, for each, of the
# rank at which the tensor train is half as large as a table of low rank.
_WIDTHS = (1.0, 0.875, 0.75, 0.625, 0.5, 0.4375, 0.375, 0.3125, 0.25, 0.1875, 0.125, 0.0625)
_DEPTHS = tuple(0.92**n for n in range(36))
# How often the rows of a chosen tensor train move to better places.
_ROUNDS = 6
# Numbers in the Gram matrices with which a tensor train is fitted, `R^2` for each group; the
# largest ranks of large tables are not tried.
_GRAM_NUMBERS = 2**27
_log = logging.getLogger(__name__)


def embedding_candidates(
    layer: keras.layers.Embedding,
    seen: Seen,
    formats: Sequence[str],
    bits: int | None,
    renumber: int | None,
) -> list[Candidate]:
    """Returns the candidates for an embedding, in any order.

    Args:
        layer: A built embedding.
        seen: What was observed of it.
        formats: The allowed formats.
        bits: Bits of the integers, or `None` for floats.
        renumber: The number of leading ids that stay if the others may be renumbered, or `None`.
    """
    table = ops.convert_to_numpy(layer.embeddings).astype("float64")
    weights, directions = row_weights(layer, seen), direction_weights(seen)

    def error_of(near: np.ndarray) -> float:
        return table_error(table, near, weights)

    def weighted_error_of(near: np.ndarray) -> float | None:
        return None if directions is None else table_error(table, near, weights, directions)

    number = item_size(layer.variable_dtype)
    found = []
    for width in sorted({bits, 8}) if bits is not None else ():
        small = quantized(layer, width)
        near = _table(small)
        found.append(
            Candidate(
                "dense",
                (),
                width,
                byte_count(small),
                error_of(near),
                0,
                lambda: layer,
                weighted_error=weighted_error_of(near),
            )
        )
    coordinates, basis = _factors(table, weights, directions)
    for rank in ranks_to_try(len(basis)) if "low_rank" in formats else ():
        factors = functools.partial(_low_rank_factors, coordinates, basis, rank, bits)
        left, right = factors()
        kept, size = left, number * left.size
        if bits is not None:
            kept, size = quantization.rounded_rows(left, bits)
        near = kept @ right
        found.append(
            Candidate(
                "low_rank",
                (rank,),
                bits,
                size + number * right.size,
                error_of(near),
                2 * rank * len(basis),
                functools.partial(_low_rank, layer, factors),
                weighted_error=weighted_error_of(near),
            )
        )
    if "tensor_train" not in formats or len(table) < _FEWEST_ROWS:
        return found
    for trains in _grouped_rows(layer, weights, coordinates, basis, renumber, bits):
        # Only the chosen one will be improved. How much that helps depends mostly on the width, and
        # is measured on one of the middle ranks.
        share = trains[len(trains) // 2].measured_error_left() - 1
        for train in trains:
            near, size = train.rounded(number)
            improved = near + share * train.errors(*train.first) @ train.basis
            found.append(
                Candidate(
                    "tensor_train",
                    train.ranks,
                    bits,
                    size,
                    error_of(near),
                    2 * max(train.ranks) * table.shape[1],
                    train.make,
                    error_of(improved),
                    weighted_error_of(improved),
                    train.id_order,
                )
            )
    return found


def _low_rank_factors(
    coordinates: np.ndarray, basis: np.ndarray, rank: int, bits: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the factors of a rank, with `bits` rotated so that they round well."""
    left, right = coordinates[:, :rank], basis[:rank]
    if bits is None:
        return left, right
    rotation = grouped_rows.random_rotation(rank)
    return left @ rotation, rotation.T @ right


def _low_rank(
    layer: keras.layers.Embedding, factors: Callable[[], tuple[np.ndarray, np.ndarray]]
) -> LowRankEmbedding:
    coordinates, basis = factors()
    rows, columns = layer.input_dim, layer.output_dim
    new = LowRankEmbedding(rows, columns, len(basis), **embedding_options(layer))
    new.build()
    new.assign_factors(coordinates, basis)
    return new


@dataclasses.dataclass(frozen=True)
class _GroupedRows:
    """A tensor train of groups of similar rows, which is improved once it is chosen.

    Attributes:
        layer: The embedding to replace.
        rows: The coordinates of its rows in `basis`, array `(V, K)`.
        weights: The weights of the rows.
        basis: Array `(K, D)`: the third core or, if `K = D`, a factor of the second.
        renumber: As in `embedding_candidates`.
        bits: As in `embedding_candidates`.
        first: Both cores of the rows and the places of the rows, to begin with.
    """

    layer: keras.layers.Embedding
    rows: np.ndarray
    weights: np.ndarray
    basis: np.ndarray
    renumber: int | None
    bits: int | None
    first: tuple[np.ndarray, np.ndarray, np.ndarray]

    @property
    def ranks(self) -> tuple[int, ...]:
        rank = self.first[0].shape[1]
        return (rank, len(self.basis))[: self._num_cores - 1]

    @property
    def _num_cores(self) -> int:
        return 3 if len(self.basis) < self.layer.output_dim else 2

    @functools.cached_property
    def best(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The cores and the places, improved in turns; with `bits`, fit to be rounded."""
        a, b, places = self._improved(_ROUNDS)
        if self.bits is None:
            return a, b, places
        a, b = grouped_rows.rotated(*grouped_rows.balanced(a, b))
        # The second core makes up for the rounding of the first one.
        rounded, _ = rounded_core(a[None, :, None], self.bits, 0)
        a = rounded[0, :, 0]
        return a, grouped_rows.refit_second(a, b, self.rows, self.weights, places), places

    def _improved(self, rounds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        a, b, places = self.first
        for _ in range(rounds):
            a, b = grouped_rows.refit(a, b, self.rows, self.weights, places)
            places = grouped_rows.rearranged(
                a, b, self.rows, self.weights, places, self.renumber or 0
            )
        return *grouped_rows.refit(a, b, self.rows, self.weights, places, sweeps=2), places

    def measured_error_left(self) -> float:
        """Returns the weighted error of the rows after one round, relative to that before."""
        before, after = (
            np.sqrt((self.weights * (self.errors(*x) ** 2).sum(axis=1)).sum())
            for x in (self.first, self._improved(1))
        )
        return float(after / before) if before > 0 else 1.0

    def errors(self, a: np.ndarray, b: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Returns the differences from the rows, array `(V, K)`."""
        return grouped_rows.lookup(a, b, places) - self.rows

    def rounded(self, float_size: int) -> tuple[np.ndarray, int]:
        """Returns the table of the first cores, rounded to `bits`, and the bytes of the layer."""
        a, b, places = self.first
        if self.bits is not None:
            a, b = grouped_rows.rotated(a, b)
        rounded = [rounded_core(core, self.bits, float_size) for core in self._cores(a, b)]
        cores, sizes = zip(*rounded, strict=True)
        size = sum(sizes)
        if self.renumber is None:
            size += places.size * (2 if places.size <= 2**16 else 4)
        near = grouped_rows.lookup(cores[0][0, :, 0], cores[1].reshape(*b.shape[:2], -1), places)
        return (near @ cores[2][:, 0, :, 0] if len(cores) == 3 else near), size

    def _cores(self, a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        if self._num_cores == 2:
            return [a[None, :, None], (b @ self.basis)[..., None]]
        return [a[None, :, None], b[:, :, None], self.basis[:, None, :, None]]

    def make(self) -> TTEmbedding:
        """Returns the embedding; without `renumber` a table of positions maps the ids to places."""
        a, b, places = self.best
        cores = self._cores(a, b)
        new = TTEmbedding(
            self.layer.input_dim,
            self.layer.output_dim,
            tuple(core.shape[1] for core in cores),
            tuple(core.shape[2] for core in cores),
            self.ranks,
            reorder_rows=self.renumber is None,
            **embedding_options(self.layer),
        )
        new.build()
        new.assign_cores(cores)
        if self.renumber is None:
            new.positions.assign(places)
        return new

    def id_order(self) -> np.ndarray | None:
        return None if self.renumber is None else np.argsort(self.best[2])


def _grouped_rows(
    layer: keras.layers.Embedding,
    weights: np.ndarray,
    coordinates: np.ndarray,
    basis: np.ndarray,
    renumber: int | None,
    bits: int | None,
) -> Iterator[list[_GroupedRows]]:
    """Yields the tensor trains to try: a list for each number of columns of the coordinates."""
    num_rows, columns = len(coordinates), len(basis)
    places = grouped_rows.similar_places(coordinates, renumber or 0)
    widths = sorted({max(1, round(share * columns)) for share in _WIDTHS})
    for number, width in enumerate(widths, 1):
        _log.info("  tensor trains: group %d of %d", number, len(widths))
        rows = coordinates[:, :width]
        shape = grouped_rows.grid_shape(num_rows, width)
        largest = num_rows * width // (2 * (shape[0] + shape[1] * width))
        largest = min(largest, math.isqrt(_GRAM_NUMBERS // max(shape)))
        ranks = sorted({max(1, round(share * largest)) for share in _DEPTHS})
        a, b = grouped_rows.factors(rows, weights, places, shape, ranks[-1])
        yield [
            _GroupedRows(
                layer,
                rows,
                weights,
                basis[:width],
                renumber,
                bits,
                (a[:, :rank], b[:rank], places),
            )
            for rank in ranks
        ]


def row_weights(layer: keras.layers.Embedding, seen: Seen) -> np.ndarray:
    """Returns the counts of the ids, with a small positive weight for ids that never occurred."""
    if seen.counts is None:
        return np.ones(layer.input_dim)
    counts = seen.counts.astype("float64")
    if layer.mask_zero:
        counts[0] = 0  # the row of padding is masked
    return counts + _UNSEEN * counts.mean() + 1e-12


def _table(layer: keras.layers.Layer) -> np.ndarray:
    return ops.convert_to_numpy(layer(np.arange(layer.input_dim))).astype("float64")


def _factors(
    table: np.ndarray, weights: np.ndarray, directions: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns coordinates `(V, K)` and a basis `(K, D)`, the most important directions first."""
    if directions is None:
        return low_rank.low_rank_factors(table, np.sqrt(weights))[:2]
    coordinates, basis, _ = low_rank.low_rank_factors(table @ directions, np.sqrt(weights))
    return coordinates, np.linalg.solve(directions, basis.T).T


def low_rank_table(layer: keras.layers.Embedding, seen: Seen, share: float) -> np.ndarray:
    """Returns the table of an embedding, approximated by one of a share of its full rank."""
    table = ops.convert_to_numpy(layer.embeddings).astype("float64")
    coordinates, basis = _factors(table, row_weights(layer, seen), direction_weights(seen))
    rank = math.ceil(share * len(basis))
    return (coordinates[:, :rank] @ basis[:rank]).astype("float32")


def direction_weights(seen: Seen) -> np.ndarray | None:
    """Returns the matrix `(D, D)` that multiplies errors of rows before they are squared."""
    if seen.response is None:
        return None
    floor = _FLOOR * np.eye(len(seen.response))
    return low_rank.square_root((1 - _FLOOR) * seen.response + floor)


def table_error(
    table: np.ndarray, near: np.ndarray, weights: np.ndarray, directions: np.ndarray | None = None
) -> float:
    """Returns the relative error of a table, with weighted rows and directions."""
    error = table - near if directions is None else (table - near) @ directions
    squared = (weights[:, None] * error**2).sum()
    return float(np.sqrt(squared / ((weights[:, None] * table**2).sum() or 1.0)))
