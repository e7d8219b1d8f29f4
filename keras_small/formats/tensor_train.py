"""Kernels and tables as tensor trains.

The tensor train of a table has its rows on a grid, in groups of similar ones (`grouped_rows`):

    table (V, D)                      tensor train
    row of "monday"  -----------+     group of weekdays    (R)     core 1, one row for each group
    row of "tuesday" --------+  |       place 1            (R, K)  core 2, one matrix for each place
                             |  +--->     row = group @ place @ basis
                             +------->  place 2            (R, K)
                                        basis              (K, D)  core 3, or a part of core 2
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_small.asked.progress import tell
from keras_small.formats import grouped_rows
from keras_small.formats.candidates import Candidate, factor_bytes
from keras_small.storage.convolution_factors import OutputErrors
from keras_small.storage.quantized_embeddings import QuantizedTTEmbedding, rounded_core
from keras_small.storage.sizes import item_size
from keras_small.survey.calibration import Statistics
from keras_small.survey.errors import TableErrors
from keras_small.survey.kinds import is_plain_table, is_table, kind_of
from keras_tnattn.layers import TTDense, TTEmbedding
from keras_tnattn.layers.factored_embedding import embedding_options
from keras_tnattn.ops import tensor_train
from keras_tnattn.ops.tensor_train.contraction import contraction_plan
from keras_tnattn.ops.tensor_train.factors import balanced_factors, rank_bounds

_KERNEL_RANKS = (4, 8, 16, 32, 64)
# Tables with fewer rows get no tensor train.
MINIMUM_ROWS = 500
# The ranks of tensor trains that are tried: shares of the number of columns and, for each, of the
# rank at which the tensor train is half as large as a table of low rank.
_WIDTH_SHARES = (1.0, 0.875, 0.75, 0.625, 0.5, 0.4375, 0.375, 0.3125, 0.25, 0.1875, 0.125, 0.0625)
# The shares of the columns with which it is found out whether any tensor train may win.
_PROBED_SHARES = (1.0, 0.5, 0.125)
_TRAIN_RANK_SHARES = tuple(0.92**n for n in range(36))
# Maximum factor between the error of a tensor train before all improvement and that of any smaller
# one; others are not tried.
_PROMISING_FACTOR = 1.07
# The least part of the error that improvement, another width or another rank may leave.
_LEAST_LEFT = 0.7
# How often the rows of a chosen tensor train move to better places.
_IMPROVEMENT_ROUNDS = 6
# Numbers in the Gram matrices with which a tensor train is fitted, `R^2` for each group; the
# largest ranks of large tables are not tried.
GRAM_NUMBERS = 2**27


def candidates(
    layer: keras.layers.Layer, statistics: Statistics, bits: int | None
) -> list[Candidate]:
    """Returns the tensor trains of a dense layer of 64 units or more, or of a large table."""
    if _is_large_table(layer):
        return _table_candidates(layer, statistics, bits)
    if kind_of(layer) is keras.layers.Dense and min(layer.kernel.shape) >= 64:
        return _kernel_candidates(layer, statistics)
    return []


def may_win(
    layer: keras.layers.Layer,
    statistics: Statistics,
    bits: int | None,
    found: Sequence[Candidate],
    least_bytes: float,
) -> bool:
    """Whether a tensor train may have a smaller error than each candidate of no more bytes.

    Tables have many candidates, so that a few of them are tried first; those of fewer bytes than
    `least_bytes` do not count. Other layers have few: the answer is yes.
    """
    if not _is_large_table(layer):
        return True
    errors = TableErrors(layer, statistics)
    places = _similar_places(errors, statistics)
    number = item_size(layer.variable_dtype)
    for width in _widths(errors, _PROBED_SHARES):
        for train in _trains(layer, statistics, errors, bits, width, places):
            size = train.size(number)
            rival = min((c.likely_error for c in found if c.bytes <= size), default=np.inf)
            if size >= least_bytes and _LEAST_LEFT * train.first_error < rival:
                return True
    return False


def _is_large_table(layer: keras.layers.Layer) -> bool:
    return is_table(layer) and layer.input_dim >= MINIMUM_ROWS and is_plain_table(layer)


def _kernel_candidates(layer: keras.layers.Dense, statistics: Statistics) -> list[Candidate]:
    kernel = ops.convert_to_numpy(layer.kernel).astype("float64")
    rows, columns = kernel.shape
    shapes = balanced_factors(rows, 2), balanced_factors(columns, 2)
    bound = rank_bounds(*shapes)[0]
    ranks = [rank for rank in _KERNEL_RANKS if rank < bound]
    if not ranks:
        return []
    (first, second), _ = tensor_train.matrix_to_tt(kernel, *shapes, ranks[-1])
    errors = OutputErrors(kernel, statistics.moment)
    trains = []
    for rank in ranks:
        cores = [first[..., :rank], second[:rank]]  # those of a singular value decomposition
        approximation = ops.convert_to_numpy(tensor_train.tt_to_matrix(cores))
        error = errors.of(approximation)
        size = factor_bytes(layer, [(1, core.size) for core in cores], None)
        make = functools.partial(TTDense.from_dense, layer, *shapes, rank, name=layer.name)
        flops = int(contraction_plan(*shapes, (rank,)).flops_per_row)
        trains.append(
            Candidate(
                format="tensor_train",
                ranks=(rank,),
                bits=None,
                bytes=size,
                error=error,
                flops=flops,
                make=make,
            )
        )
    return trains


def _table_candidates(
    layer: keras.layers.Embedding, statistics: Statistics, bits: int | None
) -> list[Candidate]:
    """Decomposes a table for all widths and ranks, and estimates the errors after improvement."""
    errors = TableErrors(layer, statistics)
    number = item_size(layer.variable_dtype)
    places = _similar_places(errors, statistics)
    widths = _widths(errors, _WIDTH_SHARES)
    groups = []
    for count, width in enumerate(widths, 1):
        tell("  tensor trains: group %d of %d", count, len(widths))
        groups.append(_trains(layer, statistics, errors, bits, width, places))
    groups = _promising(groups, number)
    return [
        _candidate(train, remaining_error, errors, number)
        for trains, remaining_error in zip(groups, _remaining_errors(groups), strict=True)
        for train in trains
    ]


def _candidate(
    train: "_GroupedRows", remaining_error: float, errors: TableErrors, number: int
) -> Candidate:
    """Returns a candidate whose error an improvement will reduce to a share of it."""
    a, b, places = train.first
    exact = grouped_rows.lookup(a, b, places[errors.rows])
    approximation = exact
    size = train.size(number)
    bits = train.bits
    if bits is not None:
        approximation, size = train.rounded_rows(number, errors.rows)
    target = errors.coordinates[:, : exact.shape[1]]
    improved_error, weighted = errors.of(approximation + (remaining_error - 1) * (exact - target))
    return Candidate(
        format="tensor_train",
        ranks=train.ranks,
        bits=bits,
        bytes=size,
        error=errors.of(approximation)[0],
        flops=2 * max(train.ranks) * train.layer.output_dim,
        make=train.make,
        quantize=None
        if bits is None
        else functools.partial(QuantizedTTEmbedding.from_layer, bits=bits),
        improved_error=improved_error,
        weighted_error=weighted,
        id_order=train.id_order,
    )


def _remaining_errors(groups: list[list["_GroupedRows"]]) -> np.ndarray:
    """Returns for each group how much of the error one round of improvement leaves.

    Only the chosen tensor train will be improved. How much that helps depends mostly on the width,
    so it is measured on one of the middle ranks, for the smallest, a middle and the largest width.
    """
    measured = sorted({0, len(groups) // 2, len(groups) - 1}) if groups else []
    errors = [groups[n][len(groups[n]) // 2].measured_remaining_error() for n in measured]
    return np.interp(range(len(groups)), measured, errors) if groups else np.zeros(0)


def _promising(groups: list[list["_GroupedRows"]], number: int) -> list[list["_GroupedRows"]]:
    """Leaves out tensor trains that others of their size will surely beat."""
    sizes = {id(train): train.size(number) for group in groups for train in group}
    trains = sorted((t for group in groups for t in group), key=lambda t: sizes[id(t)])
    minimum = np.inf
    kept = set()
    for train in trains:
        minimum = min(minimum, train.first_error)
        if train.first_error <= _PROMISING_FACTOR * minimum:
            kept.add(id(train))
    chosen = [[train for train in group if id(train) in kept] for group in groups]
    return [group for group in chosen if group]


@dataclasses.dataclass(frozen=True)
class _GroupedRows:
    """A tensor train of groups of similar rows, which is improved once it is chosen.

    Attributes:
        layer: The embedding to replace.
        rows: The coordinates of its rows in `basis`, array `(V, K)`.
        weights: The weights of the rows.
        basis: Array `(K, D)`: the third core or, if `K = D`, a factor of the second.
        inverse_basis: The inverse of `basis`, if `K = D`.
        kept_ids: The number of leading ids that stay if the others may be renumbered, or `None`.
        bits: Bits of the integers, or `None` for floats.
        first: Both cores of the rows and the places of the rows, to begin with.
        first_error: The error of these, as the SVD sees it.
    """

    layer: keras.layers.Embedding
    rows: np.ndarray
    weights: np.ndarray
    basis: np.ndarray
    inverse_basis: np.ndarray
    kept_ids: int | None
    bits: int | None
    first: tuple[np.ndarray, np.ndarray, np.ndarray]
    first_error: float

    @property
    def ranks(self) -> tuple[int, ...]:
        rank = self.first[0].shape[1]
        return (rank, len(self.basis))[: self._num_cores - 1]

    @property
    def _num_cores(self) -> int:
        return 3 if len(self.basis) < self.layer.output_dim else 2

    @property
    def _bytes_of_positions(self) -> int:
        rows = len(self.rows)
        return 0 if self.kept_ids is not None else rows * (2 if rows <= 2**16 else 4)

    @functools.cached_property
    def best(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The cores and the places, improved in turns; with `bits`, fit to be rounded."""
        a, b, places = self._improve(_IMPROVEMENT_ROUNDS)
        if self.bits is None:
            return a, b, places
        a, b = grouped_rows.rotate(*grouped_rows.balance(a, b))
        # The second core makes up for the rounding of the first one.
        rounded, _ = rounded_core(a[None, :, None], self.bits, 0)
        a = rounded[0, :, 0]
        return a, grouped_rows.refit_second(a, b, self.rows, self.weights, places), places

    def _improve(self, rounds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        a, b, places = self.first
        for turn in range(rounds):
            a, b = grouped_rows.refit(a, b, self.rows, self.weights, places)
            shift = 0.5 * (turn % 2)
            places = grouped_rows.rearrange(
                (a, b), self.rows, self.weights, places, self.kept_ids or 0, shift=shift
            )
        return *grouped_rows.refit(a, b, self.rows, self.weights, places, sweeps=2), places

    def measured_remaining_error(self) -> float:
        """Returns the weighted error of the rows after one round, relative to that before."""
        before, after = (
            grouped_rows.squared_error(a, b, self.rows, self.weights, places)
            for a, b, places in (self.first, self._improve(1))
        )
        return float(np.sqrt(after / before)) if before > 0 else 1.0

    def size(self, number: int) -> int:
        """Returns how many bytes the layer takes, but for the scales of integers."""
        a, b, _ = self.first
        shared = 0 if self._num_cores == 2 else self.basis.size * number
        columns = self.layer.output_dim if self._num_cores == 2 else b.shape[2]
        per_number = number if self.bits is None else self.bits / 8
        numbers = a.size + b.shape[0] * b.shape[1] * columns
        return int(numbers * per_number) + shared + self._bytes_of_positions

    def rounded_rows(self, float_size: int, rows: np.ndarray) -> tuple[np.ndarray, int]:
        """Returns coordinates of rows in the first cores, rounded, and the bytes of the layer."""
        a, b, places = self.first
        if self.bits is not None:
            a, b = grouped_rows.rotate(a, b)
        rounded = [rounded_core(core, self.bits, float_size) for core in self._cores(a, b)]
        cores, sizes = zip(*rounded, strict=True)
        size = sum(sizes) + self._bytes_of_positions
        common = cores[1].reshape(*b.shape[:2], -1)
        if self._num_cores == 2:  # in coordinates again
            common = common @ self.inverse_basis
        approximation = grouped_rows.lookup(cores[0][0, :, 0], common, places[rows])
        return approximation.astype("float32"), size

    def _cores(self, a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        if self._num_cores == 2:
            return [a[None, :, None], (b @ self.basis)[..., None]]
        return [a[None, :, None], b[:, :, None], self.basis[:, None, :, None]]

    def make(self) -> TTEmbedding:
        """Returns the embedding; without `kept_ids` a table of positions maps the ids to places."""
        a, b, places = self.best
        cores = self._cores(a, b)
        new = TTEmbedding(
            self.layer.input_dim,
            self.layer.output_dim,
            tuple(core.shape[1] for core in cores),
            tuple(core.shape[2] for core in cores),
            self.ranks,
            reorder_rows=self.kept_ids is None,
            **embedding_options(self.layer),
        )
        new.build()
        new.assign_cores(cores)
        if self.kept_ids is None:
            new.positions.assign(places)
        return new

    def id_order(self) -> np.ndarray | None:
        return None if self.kept_ids is None else np.argsort(self.best[2])


def _trains(
    layer: keras.layers.Embedding,
    statistics: Statistics,
    errors: TableErrors,
    bits: int | None,
    width: int,
    places: np.ndarray,
) -> list[_GroupedRows]:
    """Returns the tensor trains of the first `width` columns of the coordinates, by rank."""
    factors = errors.factors
    weights = errors.weights.astype("float32")
    rows = factors.coordinates[:, :width]
    shape = grouped_rows.grid_shape(len(rows), width)
    largest = len(rows) * width // (2 * (shape[0] + shape[1] * width))
    largest = min(largest, math.isqrt(GRAM_NUMBERS // max(shape)))
    ranks = sorted({max(1, round(share * largest)) for share in _TRAIN_RANK_SHARES})
    a, b, left = grouped_rows.decomposition(rows, weights, places, shape, ranks[-1])
    inside = factors.squares[:width].sum()
    outside = factors.squares[width:].sum()
    total = factors.squares.sum() or 1.0
    return [
        _GroupedRows(
            layer=layer,
            rows=rows,
            weights=weights,
            basis=factors.basis[:width],
            inverse_basis=factors.inverse,
            kept_ids=statistics.kept_ids,
            bits=None if bits is None else max(bits, 4),
            first=(a[:, :rank], b[:rank], places),
            first_error=float(np.sqrt((left[rank] * inside + outside) / total)),
        )
        for rank in ranks
    ]


def _widths(errors: TableErrors, shares: Sequence[float]) -> list[int]:
    columns = errors.factors.coordinates.shape[1]
    return sorted({max(1, round(share * columns)) for share in shares})


def _similar_places(errors: TableErrors, statistics: Statistics) -> np.ndarray:
    return grouped_rows.similar_places(errors.factors.coordinates, statistics.kept_ids or 0)
