"""The errors of layers and tables, weighted by what the model does with them."""

import keras
import numpy as np
from keras import ops

from keras_tnattn.compression.calibration import Seen, activated
from keras_tnattn.compression.candidates import input_shape
from keras_tnattn.compression.kinds import is_table
from keras_tnattn.ops import low_rank

# The weight of an id that never occurred in the data, relative to the mean count.
_UNSEEN = 0.06
# The weight that every direction of the rows has at least, relative to the mean.
_FLOOR = 0.1
# The number of random input rows that measure the error of a layer for which there are no data.
_SAMPLE_ROWS = 512


def layer_error(
    old: keras.layers.Layer,
    new: keras.layers.Layer,
    seen: Seen,
    id_order: np.ndarray | None = None,
) -> float:
    """Returns the relative error of a replacement, on the inputs that were seen.

    Args:
        old: The layer.
        new: Its replacement.
        seen: What was observed of `old`.
        id_order: The old id of each new id, if the ids of `new` are renumbered.
    """
    if not is_table(old):
        return output_error(old, new, seen)
    ids = np.arange(old.input_dim)
    table = table_of(old)
    near = ops.convert_to_numpy(new(ids if id_order is None else np.argsort(id_order)))
    return table_error(table, near, row_weights(old, seen))


def output_error(old: keras.layers.Layer, new: keras.layers.Layer, seen: Seen) -> float:
    """Returns the relative error of the outputs of a layer on `sample`.

    These are the outputs before the activation, as in the errors of ranks.
    """
    inputs = sample(old, seen)
    linear = keras.activations.linear
    with activated(old, linear), activated(new, linear):
        expected = ops.convert_to_numpy(old(inputs)).astype("float64")
        outputs = ops.convert_to_numpy(new(inputs)).astype("float64")
    return float(np.linalg.norm(outputs - expected) / (np.linalg.norm(expected) or 1.0))


def sample(layer: keras.layers.Layer, seen: Seen) -> np.ndarray:
    """Returns inputs for a layer: those it was called with, or random ones."""
    if seen.batch is not None:
        return seen.batch
    rng = np.random.default_rng(0)
    shape = [8 if size is None else size for size in input_shape(layer)]
    shape[0] = max(1, _SAMPLE_ROWS // max(int(np.prod(shape[1:-1])), 1))
    return rng.normal(size=shape).astype("float32")


def table_of(layer: keras.layers.Layer) -> np.ndarray:
    """Returns all rows of an embedding, array `(V, D)` in float32."""
    return ops.convert_to_numpy(layer(np.arange(layer.input_dim))).astype("float32")


def row_weights(layer: keras.layers.Embedding, seen: Seen) -> np.ndarray:
    """Returns the counts of the ids, with a small positive weight for ids that never occurred.

    Half of the weights is the same for all rows if the table also returns logits.
    """
    if seen.counts is None:
        return np.ones(layer.input_dim)
    counts = seen.counts.astype("float64")
    if layer.mask_zero:
        counts[0] = 0  # the row of padding is masked
    everywhere = 1.0 if seen.moment is not None else _UNSEEN
    return counts + everywhere * counts.mean() + 1e-12


def direction_weights(seen: Seen) -> np.ndarray | None:
    """Returns the matrix `(D, D)` that multiplies errors of rows before they are squared."""
    if seen.moment is not None:  # logits are products of the rows with these inputs
        size = np.trace(seen.moment) / len(seen.moment)
        return low_rank.square_root((np.eye(len(seen.moment)) + seen.moment / (size or 1.0)) / 2)
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


def weighted_factors(
    table: np.ndarray, weights: np.ndarray, directions: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns coordinates `(V, K)` and a basis `(K, D)`, the most important directions first."""
    if directions is None:
        return low_rank.low_rank_factors(table, np.sqrt(weights))[:2]
    coordinates, basis, _ = low_rank.low_rank_factors(table @ directions, np.sqrt(weights))
    return coordinates, np.linalg.solve(directions, basis.T).T


def low_rank_table(layer: keras.layers.Embedding, seen: Seen, share: float) -> np.ndarray:
    """Returns the table of an embedding, approximated by one of a share of its full rank."""
    weights = row_weights(layer, seen)
    coordinates, basis = weighted_factors(table_of(layer), weights, direction_weights(seen))
    rank = int(np.ceil(share * len(basis)))
    return (coordinates[:, :rank] @ basis[:rank]).astype("float32")
