"""Tables whose rows lie on a grid of groups, as the product of two cores of a tensor train.

Row `(a, b)`, the `b`-th of group `a`, is `sum_r A[a, r] B[r, b]`: `A` of shape `(V_1, R)` has the
coordinates of each group, `B` of shape `(R, V_2, D)` the rows that the groups have in common. The
grid has `V_1 V_2 >= V` places, and which row lies where is free, so it is chosen, too.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np

from keras_tnattn.ops.tensor_train import table as tt_table

# Numbers in the largest matrix of products of rows with places, which fits a cache.
_PRODUCTS = 2**20
# Rows that choose among each other's places.
BLOCK = 2**14
# Numbers in the Gram matrices that are solved at once, which fit a cache.
_GRAMS_AT_ONCE = 2**16
# Up to this size all singular vectors of a matrix are computed.
_EXACT_SVD_SIZE = 1024
_SVD_ITERATIONS = 4
# Numbers of a table that are copied at once.
_COPIED_NUMBERS = 2**22


def grid_shape(num_rows: int, columns: int) -> tuple[int, int]:
    """Returns the numbers of groups and of their rows for which both cores are equally large."""
    size = max(1, round(math.sqrt(num_rows / columns)))
    return math.ceil(num_rows / size), size


def similar_places(rows: np.ndarray, first: int = 0) -> np.ndarray:
    """Places similar rows next to each other; the first ones stay.

    Args:
        rows: Array `(V, D)`.
        first: How many rows keep their places.

    Returns:
        Integer array `(V,)`, the place of each row, a permutation.
    """
    order = np.concatenate([np.arange(first), first + tt_table.similarity_order(rows[first:])])
    return np.argsort(order)


def factors(
    rows: np.ndarray, weights: np.ndarray, places: np.ndarray, shape: tuple[int, int], rank: int
) -> tuple[np.ndarray, np.ndarray]:
    """Approximates rows on a grid by an SVD that weights groups and places in a group.

    Args:
        rows: Array `(V, D)`.
        weights: Positive array `(V,)`, the weights of the squared errors.
        places: Integer array `(V,)`, the place of each row, below `V_1 V_2`.
        shape: `(V_1, V_2)`.
        rank: The rank `R`, at most `V_1` and `V_2 D`.

    Returns:
        `A`, array `(V_1, R)`, and `B`, array `(R, V_2, D)`.
    """
    return decomposition(rows, weights, places, shape, rank)[:2]


def decomposition(
    rows: np.ndarray, weights: np.ndarray, places: np.ndarray, shape: tuple[int, int], rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what `factors` returns, and for each `r <= R` the squared error of rank `r`.

    The errors are those in the approximate weights of the SVD, relative to the squared rows.
    """
    row_at, weight = _on_grid(weights, places, shape)
    # An SVD can only weight groups and places separately, so each weight is approximated by a
    # product of the two.
    of_group, of_place = ((np.sqrt(weight.mean(axis=n)) + 1e-6).astype(rows.dtype) for n in (1, 0))
    scales = of_group[:, None] * of_place * (weight > 0)
    matrix = _Scaled(rows, row_at, scales)
    right = _right_vectors(matrix, rank)
    scaled = matrix.times(right)
    s = np.linalg.norm(scaled, axis=0)
    total = float((np.einsum("vd,vd->v", rows, rows)[row_at] * scales**2).sum(dtype="float64"))
    errors = 1 - np.concatenate([[0.0], np.cumsum(np.square(s, dtype="float64"))]) / (total or 1.0)
    root = np.sqrt(s)
    common = (root * right).T.reshape(rank, shape[1], -1)
    scaled /= np.maximum(root, 1e-30)
    return scaled / of_group[:, None], common / of_place[:, None], np.maximum(errors, 0.0)


@dataclasses.dataclass(frozen=True)
class _Scaled:
    """Scaled rows on a grid as a matrix `(V_1, V_2 D)` that is formed in parts.

    Attributes:
        rows: Array `(V, D)`.
        row_at: The row at each place `(V_1, V_2)`.
        scales: The scale of each place `(V_1, V_2)`.
    """

    rows: np.ndarray
    row_at: np.ndarray
    scales: np.ndarray

    @property
    def columns(self) -> int:
        return self.row_at.shape[1] * self.rows.shape[1]

    def _parts(self) -> Iterator[np.ndarray]:
        step = max(1, _COPIED_NUMBERS // self.columns)
        for start in range(0, len(self.row_at), step):
            groups = slice(start, start + step)
            part = self.rows[self.row_at[groups]]
            part *= self.scales[groups, :, None]
            yield part.reshape(len(part), -1)

    def times(self, other: np.ndarray) -> np.ndarray:
        return np.concatenate([part @ other for part in self._parts()])

    def gram(self) -> np.ndarray:
        return sum(part.T @ part for part in self._parts())  # type: ignore[return-value]

    def gram_times(self, other: np.ndarray) -> np.ndarray:
        return sum(part.T @ (part @ other) for part in self._parts())  # type: ignore[return-value]


def _right_vectors(matrix: _Scaled, rank: int) -> np.ndarray:
    """Returns the leading right singular vectors; of a large matrix by subspace iteration.

    Halko, Martinsson and Tropp, 2011, https://arxiv.org/abs/0909.4061, algorithm 4.4.
    """
    size = matrix.columns
    dtype = matrix.rows.dtype
    if size <= _EXACT_SVD_SIZE or 2 * rank > size:
        return np.linalg.eigh(matrix.gram().astype("float64"))[1][:, : -rank - 1 : -1].astype(dtype)
    basis = np.random.default_rng(0).normal(size=(size, rank + 16)).astype(dtype)
    for _ in range(_SVD_ITERATIONS):
        basis = np.linalg.qr(matrix.gram_times(basis))[0]
    vt = np.linalg.svd(matrix.times(basis), full_matrices=False)[2]
    return basis @ vt[:rank].T


def refit(
    a: np.ndarray,
    b: np.ndarray,
    rows: np.ndarray,
    weights: np.ndarray,
    places: np.ndarray,
    sweeps: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Reduces `sum_v w_v ||rows[v] - rows'[v]||^2` by alternating least squares.

    Args:
        a: `A`, array `(V_1, R)`.
        b: `B`, array `(R, V_2, D)`.
        rows: As for `factors`.
        weights: As for `factors`.
        places: As for `factors`.
        sweeps: How often both cores are fitted. Each time costs about
            `4 V R (R + D) + (V_1 + V_2) R^3` FLOPs.

    Returns:
        New `A` and `B`.
    """
    grid = _on_grid(weights, places, (len(a), b.shape[1]))
    for _ in range(sweeps):
        a = _refit_first(a, b, rows, *grid)
        b = _refit_second(a, b, rows, *grid)
    return a, b


def _refit_first(
    a: np.ndarray, b: np.ndarray, rows: np.ndarray, row_at: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """Solves for each group; the sums over places are the same products for all groups."""
    squares = np.stack([common @ common.T for common in b.transpose(1, 0, 2)])  # (V_2, R, R)
    squares = squares.reshape(len(squares), -1)
    targets = np.zeros_like(a)
    for place in range(b.shape[1]):
        here = weight[:, place, None] * rows[row_at[:, place]]
        targets += here @ b[:, place].T
    new = np.empty_like(a)
    step = max(1, _GRAMS_AT_ONCE // squares.shape[1])
    for start in range(0, len(a), step):
        groups = slice(start, start + step)
        grams = weight[groups] @ squares
        new[groups] = _solve(grams, targets[groups, :, None], a[groups, :, None])[..., 0]
    return new


def refit_second(
    a: np.ndarray, b: np.ndarray, rows: np.ndarray, weights: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """Returns the `B` that fits best to a given `A`, by weighted least squares; see `refit`."""
    return _refit_second(a, b, rows, *_on_grid(weights, places, (len(a), b.shape[1])))


def _refit_second(
    a: np.ndarray, b: np.ndarray, rows: np.ndarray, row_at: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    new = np.empty_like(b)
    for place in range(b.shape[1]):
        weighted = weight[:, place, None] * a
        target = weighted.T @ rows[row_at[:, place]]
        new[:, place] = _solve((weighted.T @ a)[None], target[None], b[None, :, place])[0]
    return new


def balance(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns cores of the same product in which each of the `R` terms is equally large in both."""
    q, r = np.linalg.qr(a)
    u, s, vt = np.linalg.svd(r @ b.reshape(len(b), -1), full_matrices=False)
    root = np.sqrt(s)
    return q @ u * root, (root[:, None] * vt).reshape(b.shape)


def rotate(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns cores of the same product, rotated at random; see `random_rotation`."""
    rotation = random_rotation(a.shape[1])
    return a @ rotation, np.tensordot(rotation, b, axes=(0, 0))


@functools.lru_cache(maxsize=8)
def random_rotation(size: int) -> np.ndarray:
    """Returns an orthogonal matrix `(size, size)`, always the same one.

    It makes all coordinates of a vector about equally large. Numbers that share a scale then lose
    least if they are rounded.
    """
    return np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))[0]


def _on_grid(
    weights: np.ndarray, places: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each place `(V_1, V_2)` its row and its weight; 0 at places without a row."""
    row_at = np.zeros(math.prod(shape), "int64")
    row_at[places] = np.arange(len(places))
    weight = np.zeros(math.prod(shape), weights.dtype)
    weight[places] = weights / weights.mean()
    return row_at.reshape(shape), weight.reshape(shape)


def _solve(grams: np.ndarray, targets: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Solves `gram x = target` for each pair; unknowns without weight keep their old values."""
    rank = targets.shape[1]
    grams = grams.reshape(-1, rank, rank).astype("float64")
    ridge = (1e-6 * np.trace(grams, axis1=1, axis2=2) / rank + 1e-12)[:, None, None]
    return np.linalg.solve(grams + ridge * np.eye(rank), targets + ridge * old)


def lookup(a: np.ndarray, b: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns the rows at the given places, array `(V, D)`."""
    rows = np.empty((len(places), b.shape[2]), np.result_type(a, b))
    groups, within = np.divmod(places, b.shape[1])
    order = np.argsort(within, kind="stable")
    ends = np.cumsum(np.bincount(within, minlength=b.shape[1]))
    for place, here in enumerate(np.split(order, ends[:-1])):
        rows[here] = a[groups[here]] @ b[:, place]
    return rows


def squared_error(
    a: np.ndarray, b: np.ndarray, rows: np.ndarray, weights: np.ndarray, places: np.ndarray
) -> float:
    """Returns `sum_v w_v ||rows[v] - rows'[v]||^2`."""
    total = 0.0
    step = max(1, _COPIED_NUMBERS // rows.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        difference = lookup(a, b, places[part]) - rows[part]
        total += float(weights[part] @ np.einsum("vd,vd->v", difference, difference))
    return total


def rearrange(
    cores: tuple[np.ndarray, np.ndarray],
    rows: np.ndarray,
    weights: np.ndarray,
    places: np.ndarray,
    first: int = 0,
    share: float = 0.98,
    shift: float = 0.0,
) -> np.ndarray:
    """Moves each row to the free place whose row in the tensor train is nearest.

    Heavier rows choose first, many at a time: of those that want the same place the heaviest gets
    it, and the others choose again among the free places. In turns with `refit`, this is Lloyd's
    algorithm for vector quantization; the code is a tensor train, and each entry is used once.

    Args:
        cores: `A`, array `(V_1, R)`, and `B`, array `(R, V_2, D)`.
        rows: As for `factors`.
        weights: As for `factors`.
        places: As for `factors`.
        first: How many of the rows, and of the places, are not changed.
        share: The heaviest rows that have this share of all weights choose; the others fill the
            places that are left, in the order in which they were. Defaults to 0.98.
        shift: Where blocks begin, relative to their length, if there are more than 16,384 rows:
            each row then looks only at the places of its block, of neighboring groups. Other shifts
            in turns let rows move on. Defaults to 0.

    Returns:
        Integer array `(V,)`: a permutation of `places`.
    """
    new = places.copy()
    order = first + np.argsort(places[first:])
    begin = int(shift * BLOCK) if len(order) > BLOCK else 0
    for block in np.split(order, range(begin or BLOCK, len(order), BLOCK)):
        new[block] = _rearrange_block(cores, rows[block], weights[block], places[block], share)
    return new


def _rearrange_block(
    cores: tuple[np.ndarray, np.ndarray],
    rows: np.ndarray,
    weights: np.ndarray,
    places: np.ndarray,
    share: float,
) -> np.ndarray:
    # Similar rows lie next to each other, and would want the same places at once.
    random = np.random.default_rng(0).random(len(weights))
    by_weight = np.lexsort((random, -weights))
    covered = np.cumsum(weights[by_weight]) <= share * weights.sum()
    choosing = by_weight[covered]
    not_choosing = by_weight[~covered]
    new = places.copy()
    free = np.sort(places)
    approximation = lookup(*cores, free)
    scale = 1 / (max(np.abs(approximation).max(), np.abs(rows).max()) or 1.0)  # squares are finite
    approximation *= scale
    # The largest product of `(row, 1)` with `(place, -|place|^2 / 2)` has the smallest distance.
    code = np.concatenate(
        [approximation.T, -0.5 * np.square(approximation).sum(axis=1)[None]]
    ).astype("float32")
    queries = np.concatenate([rows * scale, np.ones((len(rows), 1))], axis=1, dtype="float32")
    products = np.empty(_PRODUCTS + len(free), "float32")
    taken = 0
    while len(choosing):
        first = choosing[: max(1, _PRODUCTS // len(free))]
        out = products[: len(first) * len(free)].reshape(len(first), -1)
        # NumPy has warned here of an invalid value in a product of finite matrices.
        with np.errstate(invalid="ignore"):
            wanted = np.matmul(queries[first], code, out=out).argmax(axis=1)
        best, winners = np.unique(wanted, return_index=True)
        new[first[winners]] = free[best]
        choosing = np.delete(choosing, winners)
        code[-1, best] = -np.inf
        taken += len(best)
        if 8 * taken > len(free) or not len(choosing):
            remaining = np.isfinite(code[-1])
            free = free[remaining]
            code = np.ascontiguousarray(code[:, remaining])
            taken = 0
    new[not_choosing[np.argsort(places[not_choosing])]] = free
    return new
