"""The candidates to replace an embedding."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import keras
import numpy as np
from keras import ops

from keras_tnattn.compression.calibration import Seen
from keras_tnattn.compression.candidates import Candidate, byte_count, quantized, ranks_to_try
from keras_tnattn.layers import LowRankEmbedding, TTEmbedding
from keras_tnattn.layers.base_embedding import options_of
from keras_tnattn.ops import grouped_rows, low_rank

# The weight of an id that never occurred in the data, relative to the mean count.
_UNSEEN = 0.02
# Tables with fewer rows get no tensor train.
_FEWEST_ROWS = 500
# The ranks of tensor trains that are tried: shares of the number of columns and, for each, of the
# rank at which the tensor train is half as large as a table of low rank.
_WIDTHS = (1.0, 0.75, 0.5, 0.375, 0.25, 0.1875, 0.125, 0.0625)
_DEPTHS = tuple(0.75**n for n in range(10))
# How often the rows of a chosen tensor train move to better places.
_ROUNDS = 3


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
    weights = row_weights(layer, seen)
    found = []
    if bits is not None:
        small = quantized(layer, bits)
        error = table_error(table, _table(small), weights)
        found.append(
            Candidate("dense", (), bits, byte_count(small), error, 0, lambda: layer, error)
        )
    coordinates, basis, _ = low_rank.low_rank_factors(table, np.sqrt(weights))
    options: list[_LowRank | _GroupedRows] = []
    if "low_rank" in formats:
        ranks = ranks_to_try(len(basis))
        options += [_LowRank(layer, coordinates[:, :rank], basis[:rank]) for rank in ranks]
    if "tensor_train" in formats and len(table) >= _FEWEST_ROWS:
        trains = list(_grouped_rows(layer, weights, coordinates, basis, renumber))
        # Only the chosen one will be improved; how much that helps is measured on a middle one.
        trains.sort(key=lambda train: train.first[0].size + train.first[1].size)
        error_left = trains[len(trains) // 2].measured_error_left()
        options += [dataclasses.replace(train, error_left=error_left) for train in trains]
    for option in options:
        new = option.first_layer()
        small = new if bits is None else new.quantized(bits)
        near = _table(small)[option.ids]
        found.append(
            Candidate(
                option.format,
                option.ranks,
                bits,
                byte_count(small),
                table_error(table, near, weights),
                2 * max(option.ranks) * table.shape[1],
                option.make,
                table_error(table, near + option.expected_change(), weights),
                option.id_order,
            )
        )
    return found


@dataclasses.dataclass(frozen=True)
class _LowRank:
    """A table as the product of coordinates `(V, R)` and a basis `(R, D)`."""

    layer: keras.layers.Embedding
    coordinates: np.ndarray
    basis: np.ndarray
    format: str = "low_rank"

    @property
    def ranks(self) -> tuple[int, ...]:
        return (len(self.basis),)

    @property
    def ids(self) -> np.ndarray:
        """The new id of each id."""
        return np.arange(len(self.coordinates))

    def make(self) -> LowRankEmbedding:
        rows, columns = self.layer.input_dim, self.layer.output_dim
        new = LowRankEmbedding(rows, columns, len(self.basis), **options_of(self.layer))
        new.build()
        new.assign_factors(self.coordinates, self.basis)
        return new

    first_layer = make

    def expected_change(self) -> float:
        return 0.0

    def id_order(self) -> None:
        return None


@dataclasses.dataclass(frozen=True)
class _GroupedRows:
    """A tensor train of groups of similar rows, which is improved once it is chosen.

    Attributes:
        layer: The embedding to replace.
        rows: The coordinates of its rows in `basis`, array `(V, K)`.
        weights: The weights of the rows.
        basis: Array `(K, D)`: the third core or, if `K = D`, a factor of the second.
        renumber: As in `embedding_candidates`.
        first: Both cores of the rows and the places of the rows, to begin with.
        error_left: The share of the error that is expected to be left once these are improved.
    """

    layer: keras.layers.Embedding
    rows: np.ndarray
    weights: np.ndarray
    basis: np.ndarray
    renumber: int | None
    first: tuple[np.ndarray, np.ndarray, np.ndarray]
    error_left: float = 1.0
    format: str = "tensor_train"

    @property
    def ranks(self) -> tuple[int, ...]:
        rank = self.first[0].shape[1]
        return (rank, len(self.basis))[: self._num_cores - 1]

    @property
    def _num_cores(self) -> int:
        return 3 if len(self.basis) < self.layer.output_dim else 2

    @property
    def ids(self) -> np.ndarray:
        """The new id of each id in the first layer."""
        return np.arange(len(self.rows)) if self.renumber is None else self.first[2]

    @functools.cached_property
    def best(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The cores and the places, improved in turns."""
        a, b, places = self.first
        for _ in range(_ROUNDS):
            a, b = grouped_rows.refit(a, b, self.rows, self.weights, places)
            places = grouped_rows.rearranged(
                a, b, self.rows, self.weights, places, self.renumber or 0
            )
        return *grouped_rows.refit(a, b, self.rows, self.weights, places, sweeps=2), places

    def measured_error_left(self) -> float:
        """Returns the weighted error of the improved rows, relative to that of the first ones."""
        before, after = (
            np.sqrt((self.weights * (self._errors(*x) ** 2).sum(axis=1)).sum())
            for x in (self.first, self.best)
        )
        return float(after / before) if before > 0 else 1.0

    def _errors(self, a: np.ndarray, b: np.ndarray, places: np.ndarray) -> np.ndarray:
        return grouped_rows.lookup(a, b, places) - self.rows

    def expected_change(self) -> np.ndarray:
        """Returns by how much the rows will move towards the table, array `(V, D)`."""
        return (self.error_left - 1) * self._errors(*self.first) @ self.basis

    def first_layer(self) -> TTEmbedding:
        return self._layer_of(*self.first)

    def make(self) -> TTEmbedding:
        return self._layer_of(*self.best)

    def id_order(self) -> np.ndarray | None:
        return None if self.renumber is None else np.argsort(self.best[2])

    def _layer_of(self, a: np.ndarray, b: np.ndarray, places: np.ndarray) -> TTEmbedding:
        """Returns the embedding; without `renumber` a table of positions maps the ids to places."""
        if self._num_cores == 2:
            cores = [a[None, :, None], (b @ self.basis)[..., None]]
        else:
            cores = [a[None, :, None], b[:, :, None], self.basis[:, None, :, None]]
        new = TTEmbedding(
            self.layer.input_dim,
            self.layer.output_dim,
            tuple(core.shape[1] for core in cores),
            tuple(core.shape[2] for core in cores),
            self.ranks,
            reorder_rows=self.renumber is None,
            **options_of(self.layer),
        )
        new.build()
        new.assign_cores(cores)
        if self.renumber is None:
            new.positions.assign(places)
        return new


def _grouped_rows(
    layer: keras.layers.Embedding,
    weights: np.ndarray,
    coordinates: np.ndarray,
    basis: np.ndarray,
    renumber: int | None,
) -> Iterator[_GroupedRows]:
    num_rows, columns = len(coordinates), len(basis)
    places = grouped_rows.similar_places(coordinates, renumber or 0)
    for width in sorted({max(1, round(share * columns)) for share in _WIDTHS}):
        rows = coordinates[:, :width]
        shape = grouped_rows.grid_shape(num_rows, width)
        largest = num_rows * width // (2 * (shape[0] + shape[1] * width))
        ranks = sorted({max(1, round(share * largest)) for share in _DEPTHS})
        a, b = grouped_rows.factors(rows, weights, places, shape, ranks[-1])
        for rank in ranks:
            first = (a[:, :rank], b[:rank], places)
            yield _GroupedRows(layer, rows, weights, basis[:width], renumber, first)


def row_weights(layer: keras.layers.Embedding, seen: Seen) -> np.ndarray:
    """Returns the counts of the ids, with a small positive weight for ids that never occurred."""
    if seen.counts is None:
        return np.ones(layer.input_dim)
    counts = seen.counts.astype("float64")[: layer.input_dim]
    if layer.mask_zero:
        counts[0] = 0  # the row of padding is masked
    return counts + _UNSEEN * counts.mean() + 1e-12


def _table(layer: keras.layers.Layer) -> np.ndarray:
    return ops.convert_to_numpy(layer(np.arange(layer.input_dim))).astype("float64")


def table_error(table: np.ndarray, near: np.ndarray, weights: np.ndarray) -> float:
    """Returns the relative error of a table, with weighted rows."""
    squared = (weights[:, None] * (table - near) ** 2).sum()
    return float(np.sqrt(squared / ((weights[:, None] * table**2).sum() or 1.0)))
