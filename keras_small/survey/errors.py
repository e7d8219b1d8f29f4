"""The errors of layers and tables, weighted by what the model does with them."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.survey.calibration import Statistics
from keras_small.survey.kinds import is_table, second_table
from keras_small.survey.running import Runner
from keras_small.survey.watching import Call, floats_of, with_activation
from keras_tnattn.ops import low_rank

# The weight of an id that never occurred in the data, relative to the mean count.
_UNSEEN_WEIGHT = 0.06
# The minimum weight of a direction of the rows, relative to the mean.
_MINIMUM_DIRECTION_WEIGHT = 0.1
# Rows of a table that are converted to float64 at once.
_ROWS_AT_ONCE = 2**13
# Rows that estimate the errors of a table of more than twice as many.
_ESTIMATING_ROWS = 2**11
# Maximum ids that are looked up at once.
_IDS_AT_ONCE = 2**9
# The number of random input rows that measure the error of a layer for which there are no data.
_RANDOM_ROWS = 512


def layer_error(
    old: keras.layers.Layer,
    new: keras.layers.Layer,
    statistics: Statistics,
    id_order: np.ndarray | None = None,
) -> float:
    """Returns the relative error of a replacement, on the inputs that were seen.

    `id_order` has the old id of each new id, if the ids of `new` are renumbered.
    """
    if not is_table(old):
        return output_error(old, new, statistics)
    new_ids = np.arange(old.input_dim) if id_order is None else np.argsort(id_order)
    weights = row_weights(old, statistics)
    error = 0.0
    size = 0.0
    lookup = Runner(new, new, runs=old.input_dim // _IDS_AT_ONCE)
    for part, rows in parts_of_table(old):
        # A lookup may need many times the memory of its rows.
        ids = np.split(new_ids[part], range(_IDS_AT_ONCE, len(rows), _IDS_AT_ONCE))
        difference = rows - np.concatenate([lookup(batch)[0] for batch in ids])
        error += float(weights[part] @ np.einsum("vd,vd->v", difference, difference))
        size += float(weights[part] @ np.einsum("vd,vd->v", rows, rows))
    error = float(np.sqrt(error / (size or 1.0)))
    logits = second_table(old)
    if logits is None:
        return error
    # Both tables count alike; the second one is a kernel that multiplies the inputs of logits.
    kernel, approximation = (ops.convert_to_numpy(x).T for x in (logits, second_table(new)))
    moment = statistics.moment
    if moment is not None:
        root = low_rank.square_root(moment)
        kernel = kernel @ root
        approximation = approximation @ root
    of_logits = table_error(kernel, approximation, np.ones(len(kernel)))
    return float(np.hypot(error, of_logits) / np.sqrt(2))


def output_error(old: keras.layers.Layer, new: keras.layers.Layer, statistics: Statistics) -> float:
    """Returns the relative error of all outputs of a layer in its first call.

    Without data the inputs are random numbers. The outputs are those before the activation, as in
    the errors of ranks.
    """
    call = statistics.call or _random_call(old)
    linear = keras.activations.linear
    with with_activation(old, linear), with_activation(new, linear):
        outputs, expected = (
            np.concatenate([x.astype("float64").ravel() for x in _float_outputs(layer, call)])
            for layer in (new, old)
        )
    return float(np.linalg.norm(outputs - expected) / (np.linalg.norm(expected) or 1.0))


def _float_outputs(layer: keras.layers.Layer, call: Call) -> list[np.ndarray]:
    """Returns all floating-point outputs of a layer, without a change of its states."""
    arguments = (call.args, dict(call.kwargs))
    flat = keras.tree.flatten(arguments)
    arrays = {str(i): x for i, x in enumerate(flat) if isinstance(x, np.ndarray)}

    def run(tensors: dict[str, Any]) -> list[Any]:
        given = [tensors.get(str(i), x) for i, x in enumerate(flat)]
        args, kwargs = keras.tree.pack_sequence_as(arguments, given)
        return floats_of(layer(*args, **kwargs))

    return Runner(layer, run)(arrays)


def _random_call(layer: keras.layers.Layer) -> Call:
    """Returns a call of a layer with random inputs, of the shapes with which it was built."""
    config = layer.get_build_config() or {}
    rng = np.random.default_rng(0)
    shapes = config.get("shapes_dict", {"": config.get("input_shape")})
    first = next(iter(shapes.values()))
    rows = first[0] or max(1, _RANDOM_ROWS // max(int(np.prod([x or 8 for x in first[1:-1]])), 1))

    def inputs(shape: Any) -> Any:
        if shape is None:
            return None
        if not all(size is None or isinstance(size, int) for size in shape):
            return [inputs(inner) for inner in shape]
        return rng.normal(size=(rows, *(size or 8 for size in shape[1:]))).astype("float32")

    arguments = {name.removesuffix("_shape"): inputs(shape) for name, shape in shapes.items()}
    first_name, *_ = arguments
    return Call((arguments.pop(first_name),), arguments)


def parts_of_table(layer: keras.layers.Embedding) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields the rows of an embedding in parts, float32 arrays `(n, D)`, and where they are."""
    weights = getattr(layer, "embeddings", None)
    if layer.quantization_mode is not None:
        weights = None
    for start in range(0, layer.input_dim, _ROWS_AT_ONCE):
        part = slice(start, min(start + _ROWS_AT_ONCE, layer.input_dim))
        rows = layer(np.arange(part.start, part.stop)) if weights is None else weights[part]
        yield part, np.asarray(ops.convert_to_numpy(rows), "float32")


def row_weights(layer: keras.layers.Embedding, statistics: Statistics) -> np.ndarray:
    """Returns the counts of the ids, with a small positive weight for ids that never occurred.

    Half of the weights is the same for all rows if the table also returns logits.
    """
    if statistics.counts is None:
        return np.ones(layer.input_dim)
    counts = statistics.counts.astype("float64")
    if layer.mask_zero:
        counts[0] = 0  # the row of padding is masked
    shared = statistics.second_moment is not None and second_table(layer) is None
    everywhere = 1.0 if shared else _UNSEEN_WEIGHT
    return counts + everywhere * counts.mean() + 1e-12


def direction_weights(statistics: Statistics) -> np.ndarray | None:
    """Returns the matrix `(D, D)` that multiplies errors of rows before they are squared."""
    moment = statistics.moment
    if moment is not None:  # logits are products of the rows with these inputs
        size = np.trace(moment) / len(moment)
        return low_rank.square_root((np.eye(len(moment)) + moment / (size or 1.0)) / 2)
    if statistics.response is None:
        return None
    floor = _MINIMUM_DIRECTION_WEIGHT * np.eye(len(statistics.response))
    return low_rank.square_root((1 - _MINIMUM_DIRECTION_WEIGHT) * statistics.response + floor)


def table_error(
    table: np.ndarray,
    approximation: np.ndarray,
    weights: np.ndarray,
    directions: np.ndarray | None = None,
) -> float:
    """Returns the relative error of a table, with weighted rows and directions."""
    error = table - approximation if directions is None else (table - approximation) @ directions
    squared, size = (weights @ np.einsum("vd,vd->v", x, x) for x in (error, table))
    return float(np.sqrt(squared / (size or 1.0)))


@dataclasses.dataclass(frozen=True)
class Factors:
    """A table `E` as `coordinates @ basis`, the most important directions first.

    Attributes:
        coordinates: Array `(V, K)` in float32.
        basis: Array `(K, D)`.
        inverse: Array `(D, K)` in float32 by which rows are multiplied to get their coordinates.
        squares: The squared error, with weighted rows and directions, that each direction leaves if
            it is left out, array `(K,)`.
    """

    coordinates: np.ndarray
    basis: np.ndarray
    inverse: np.ndarray
    squares: np.ndarray


def factors_of(layer: keras.layers.Embedding, statistics: Statistics) -> Factors:
    """Returns the factors of a table, which are computed only once."""
    if statistics.factors is None:
        statistics.factors = _weighted_factors(
            layer, row_weights(layer, statistics), direction_weights(statistics)
        )
    return statistics.factors


def _weighted_factors(
    layer: keras.layers.Embedding, weights: np.ndarray, directions: np.ndarray | None
) -> Factors:
    """Returns the factors of a table of which the leading ones have the smallest weighted error."""
    count = layer.input_dim
    columns = layer.output_dim
    gram = np.zeros((columns, columns))
    for part, rows in parts_of_table(layer):
        rows = rows.astype("float64")
        gram += rows.T @ (weights[part, None] * rows)
    if directions is None:
        directions = np.eye(columns)
    squares, vectors = np.linalg.eigh(directions @ gram @ directions)
    squares = np.maximum(squares[::-1], 0.0)[:count]
    vectors = vectors[:, ::-1][:, :count]
    coordinates = np.empty((count, vectors.shape[1]), "float32")
    inverse = (directions @ vectors).astype("float32")
    for part, rows in parts_of_table(layer):
        coordinates[part] = rows @ inverse
    return Factors(coordinates, np.linalg.solve(directions, vectors).T, inverse, squares)


class TableErrors:
    """Computes errors of approximations of a table in the coordinates of its factors.

    For tables of more than 4,096 rows they are estimates from 2,048, drawn by their weights.

    Args:
        layer: The embedding.
        statistics: The observations of it; if directions have weights there are two errors.

    Attributes:
        factors: The factors of the table.
        weights: The weights of its rows.
        rows: The rows by which the errors are estimated.
        coordinates: Those of these rows.
    """

    def __init__(self, layer: keras.layers.Embedding, statistics: Statistics) -> None:
        factors = self.factors = factors_of(layer, statistics)
        weights = self._weights = self.weights = row_weights(layer, statistics)
        self.rows = np.arange(len(weights))
        if len(weights) > 2 * _ESTIMATING_ROWS:
            chances = weights / weights.sum() / 2 + 0.5 / len(weights)
            self.rows = np.random.default_rng(0).choice(len(weights), _ESTIMATING_ROWS, p=chances)
            self._weights = weights[self.rows] / chances[self.rows]
        self.coordinates = factors.coordinates[self.rows]
        weighted = statistics.second_moment is not None or statistics.response is not None
        self._gram = factors.basis @ factors.basis.T if weighted else None
        self._size = self._plain(self.coordinates) or 1.0

    def of(self, approximation: np.ndarray) -> tuple[float, float | None]:
        """Returns the error, and the one with weighted directions.

        Args:
            approximation: The leading coordinates of the approximation of `rows`, array `(n, k)`.
        """
        difference = self.coordinates.copy()
        difference[:, : approximation.shape[1]] -= approximation
        plain = float(np.sqrt(self._plain(difference) / self._size))
        if self._gram is None:
            return plain, None
        squares = np.einsum("v,vk,vk->", self._weights, difference, difference, optimize=True)
        return plain, float(np.sqrt(squares / self._size))

    def _plain(self, difference: np.ndarray) -> float:
        if self._gram is None:
            squares = np.einsum("vk,vk->v", difference, difference)
        else:
            squares = np.einsum("vk,vk->v", difference @ self._gram, difference, optimize=True)
        return float(self._weights @ squares)


def low_rank_table(
    layer: keras.layers.Embedding, statistics: Statistics, share: float
) -> np.ndarray:
    """Returns the table of an embedding, approximated by one of a share of its full rank."""
    factors = factors_of(layer, statistics)
    rank = int(np.ceil(share * len(factors.basis)))
    return factors.coordinates[:, :rank] @ factors.basis[:rank].astype("float32")
