"""Second moments of the rows that kernels multiply, in half the memory of a matrix."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from keras_small.storage.latest import remember_latest

# Squares of larger numbers are summed in float64.
_LARGE = 1e15
# Columns of the triangle that are summed at once.
_COLUMNS_AT_ONCE = 256
# Rows wait for others until there is one for every eight columns: adding a matrix of products takes
# longer than the products of a few rows.
_COLUMNS_OF_ROW = 8


class SecondMoment:
    """The mean of `x x^T` over rows `x` of `I` numbers, of which the lower triangle is kept.

    Attributes:
        rows: Number of rows.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._blocks: list[np.ndarray] = []
        self._waiting: list[np.ndarray] = []
        # The sum of the squares of the rows' squared norms.
        self._fourth_powers = 0.0
        # Different rows, counted in each call.
        self._distinct = 0

    def add(self, rows: np.ndarray) -> None:
        """Adds rows, float array `(n, I)`."""
        squares = np.einsum("ni,ni->n", rows, rows, dtype="float64")
        large = not squares.size or not squares.max() < _LARGE**2
        rows = rows.astype("float64" if large else "float32", copy=False)
        columns = rows.shape[1]
        self._waiting.append(rows)
        self.rows += len(rows)
        self._fourth_powers += float(np.square(squares).sum())
        sums = rows @ np.sqrt(np.arange(2, 2 + columns))
        self._distinct += len(np.unique(sums.astype("float32")))
        if _COLUMNS_OF_ROW * sum(map(len, self._waiting)) >= columns:
            self._add_products()

    def _add_products(self) -> None:
        """Adds the products of the rows that wait."""
        if not self._waiting:
            return
        rows = np.concatenate(self._waiting)
        self._waiting = []
        columns = rows.shape[1]
        stops = range(_COLUMNS_AT_ONCE, columns + _COLUMNS_AT_ONCE, _COLUMNS_AT_ONCE)
        parts = [rows[:, stop - _COLUMNS_AT_ONCE : stop].T @ rows[:, :stop] for stop in stops]
        if not self._blocks:
            self._blocks = parts
        elif rows.dtype == "float64":
            self._blocks = [block + part for block, part in zip(self._blocks, parts, strict=True)]
        else:
            for block, part in zip(self._blocks, parts, strict=True):
                block += part

    def __add__(self, other: "SecondMoment") -> "SecondMoment":
        """Returns the moment of the rows of both."""
        total = SecondMoment()
        total.rows = self.rows + other.rows
        total._fourth_powers = self._fourth_powers + other._fourth_powers
        total._distinct = self._distinct + other._distinct
        for moment in (self, other):
            moment._add_products()
        pairs = zip(self._blocks, other._blocks, strict=True)
        total._blocks = [block + part for block, part in pairs]
        return total

    @property
    def columns(self) -> int:
        self._add_products()
        return sum(map(len, self._blocks))

    def is_finite(self) -> bool:
        self._add_products()
        return all(np.isfinite(block).all() for block in self._blocks)

    @remember_latest
    def matrix(self) -> np.ndarray:
        """Returns the moment, `(I, I)`, in float64 where float32 would overflow."""
        return self._new_matrix()

    def _new_matrix(self) -> np.ndarray:
        columns = self.columns
        matrix = np.empty((columns, columns), self._blocks[0].dtype)
        for number, block in enumerate(self._blocks):
            start = number * _COLUMNS_AT_ONCE
            stop = start + len(block)
            matrix[start:stop, :stop] = block
            matrix[:stop, start:stop] = block.T
        matrix /= max(self.rows, 1)
        return matrix

    @remember_latest
    def shrunk(self) -> np.ndarray:
        """Returns the moment, shrunk towards a multiple of the identity.

        It is the more, the fewer its rows are: by the estimator of Ledoit and Wolf, "A
        well-conditioned estimator for large-dimensional covariance matrices". Integers rounded for
        the moment itself of few rows are worse for other rows than the nearest integers.
        """
        matrix = self._new_matrix()  # which is changed below
        if not self.rows:
            return matrix
        size = float(np.trace(matrix, dtype="float64")) / len(matrix)
        share = self._share_of_identity(matrix, size)
        matrix *= matrix.dtype.type(1 - share)
        matrix[np.diag_indices(len(matrix))] += share * size
        return matrix

    def _share_of_identity(self, matrix: np.ndarray, size: float) -> float:
        squares = float(np.einsum("ij,ij->i", matrix, matrix, dtype="float64").sum())
        distance = squares - len(matrix) * size**2
        variance = (self._fourth_powers / self.rows - squares) / max(self._distinct - 1, 1)
        if distance <= 0 or self._distinct < 2:
            return 1.0
        return min(max(variance / distance, 0.0), 1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
    """What the layers of a model read in some rows; `a + b` is that of the rows of both.

    Attributes:
        second_moments: The second moments, by the paths of the layers that read the same rows.
        counts: The number of occurrences of each id, by the paths of tables.
    """

    second_moments: Mapping[tuple[str, ...], SecondMoment]
    counts: Mapping[str, np.ndarray]

    def __add__(self, other: "Moments") -> "Moments":
        mine, others = self._sizes(), other._sizes()
        if mine != others:
            names = sorted(x for x in mine | others if mine.get(x) != others.get(x))
            raise ValueError(
                "Expected moments of one model, which each process loads from the same file. "
                f"Received: other sizes, or only in one of both: {', '.join(names)}"
            )
        return Moments(
            {paths: x + other.second_moments[paths] for paths, x in self.second_moments.items()},
            {path: x + other.counts[path] for path, x in self.counts.items()},
        )

    def _sizes(self) -> dict[str, int]:
        """Returns the columns of each second moment, and the ids of each table, by name."""
        moments = {", ".join(paths): x.columns for paths, x in self.second_moments.items()}
        return moments | {f"ids of {path}": len(x) for path, x in self.counts.items()}
