"""Observes a model's layers on real inputs: second moments, counts of ids, sensitivity."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.compression.batches import (
    are_arrays,
    inputs_and_labels,
    iterate,
    number_of_batches,
    number_of_rows,
    outputs_of,
)
from keras_tnattn.compression.kinds import input_rows, is_table

# The most rows of arrays on which the errors of a report are measured.
_REPORTED = 4096


@dataclasses.dataclass
class Statistics:
    """A summary of the inputs that a layer was called with.

    Attributes:
        rows: Number of input rows; only for kernels.
        moment: Mean of `x x^T` over all input rows, float64 `(I, I)`; for kernels of which `kinds`
            knows the rows, and for tables that are also called to return logits.
        counts: The number of occurrences of each id, int64 `(V,)`; only for embeddings.
        batch: The inputs of the first call, unchanged.
        sensitivity: Relative change of the model's outputs divided by the relative change of this
            layer's outputs, before its activation, that caused it.
        response: How the model's outputs respond to directions of an embedding's rows: float64
            `(D, D)`, the mean of `J^T J` for the Jacobian `J` of the outputs by a row, divided by
            its mean eigenvalue; `None` if all directions count alike.
        renumber: The number of leading ids of an embedding that stay if all others may be
            renumbered, or `None` if ids stay.
        fast: Whether to try less, and take a shorter time.
        inputs_read: Positions, among the flattened inputs of the model, of the inputs that an
            embedding was called with; `None` stands for ids that are no input of the model.
        factors: The factors of a table, once `errors.factors_of` has computed them.
    """

    rows: int = 0
    moment: np.ndarray | None = None
    counts: np.ndarray | None = None
    batch: np.ndarray | None = None
    sensitivity: float = 1.0
    response: np.ndarray | None = None
    renumber: int | None = None
    fast: bool = False
    inputs_read: set[int | None] = dataclasses.field(default_factory=set)
    factors: Any = dataclasses.field(default=None, init=False)

    @property
    def takes_model_input(self) -> bool:
        """Whether the ids are, at least in one call, an input of the model itself."""
        return any(position is not None for position in self.inputs_read)


@contextlib.contextmanager
def activated(layer: keras.layers.Layer, function: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces the activation of a dense or einsum layer, dense or of low rank, by a function."""
    # An assignment would fail on PyTorch if the activation is a layer.
    attributes = vars(getattr(layer, "outer", layer))
    before = attributes.get("activation")  # `None` if PyTorch holds it among the submodules
    attributes["activation"] = function
    try:
        yield
    finally:
        if before is None:
            del attributes["activation"]
        else:
            attributes["activation"] = before


@dataclasses.dataclass(frozen=True)
class Data:
    """Inputs of a model.

    Attributes:
        batches: Batches of at most about 1,024 rows.
        arrays: All inputs, if they are arrays; otherwise `None`.
        every: Function that returns an iterator over the batches that a report is about.
    """

    batches: list[Any]
    arrays: Any
    every: Callable[[], Iterator[Any]]


def read(data: Any, batch_size: int, num_inputs: int | None) -> Data:
    """Reads inputs; see `batches_of` and `every_batch`."""
    batches, arrays = batches_of(data, batch_size, num_inputs)
    every = functools.partial(every_batch, data, batches, arrays, batch_size, num_inputs)
    return Data(batches, arrays, every)


def batches_of(data: Any, batch_size: int, num_inputs: int | None = None) -> tuple[list[Any], Any]:
    """Cuts arrays into batches, or takes batches from an iterable, until there are 1,024 rows.

    Args:
        data: Inputs, or a tuple `(inputs, labels, ...)`, of arrays with equal first sizes; or an
            iterable of batches of either.
        batch_size: Rows per batch, if `data` are arrays.
        num_inputs: The number of the model's inputs, if it is known.

    Returns:
        A list of batches of inputs; and all inputs if they are arrays, otherwise `None`.

    Raises:
        ValueError: If there are no rows, or the number of arrays does not fit the model.
    """
    limit = 1024
    all_inputs = None
    if are_arrays(data):
        inputs, _ = inputs_and_labels(data, num_inputs)
        all_inputs = chosen = keras.tree.map_structure(np.asarray, inputs)
        rows = number_of_rows(all_inputs)
        sizes = [len(array) for array in keras.tree.flatten(all_inputs)]
        if set(sizes) != {rows}:
            raise ValueError(f"Expected arrays of equally many rows. Received: {sizes} rows")
        if rows > limit:
            some = np.linspace(0, rows - 1, limit).astype(int)
            chosen = keras.tree.map_structure(lambda a: a[some], all_inputs)
        batches = [
            keras.tree.map_structure(lambda a, s=start: a[s : s + batch_size], chosen)
            for start in range(0, min(rows, limit), batch_size)
        ]
    else:
        batches, rows = [], 0
        for batch in iterate(data):
            inputs, _ = inputs_and_labels(batch, num_inputs)
            batches.append(keras.tree.map_structure(ops.convert_to_numpy, inputs))
            rows += number_of_rows(batches[-1])
            if rows >= limit:
                break
    if not batches:
        raise ValueError("Expected data of at least one row. Received: no rows")
    return batches, all_inputs


def every_batch(
    data: Any, batches: list[Any], arrays: Any, batch_size: int, num_inputs: int | None
) -> Iterator[Any]:
    """Yields batches of the rows on which a report measures errors.

    These are all rows, of arrays at most 4,096, evenly spread, and of a generator those that were
    read already.

    Args:
        data: As for `batches_of`.
        batches: Batches that `batches_of` has returned.
        arrays: All inputs, if they are arrays.
        batch_size: Rows per batch, if they are.
        num_inputs: The number of the model's inputs, if it is known.
    """
    if arrays is not None:
        rows = number_of_rows(arrays)
        some = np.linspace(0, rows - 1, min(rows, _REPORTED)).astype(int)
        for start in range(0, len(some), batch_size):
            chosen = some[start : start + batch_size]
            yield keras.tree.map_structure(lambda a, c=chosen: a[c], arrays)
    elif isinstance(data, Iterator) or not number_of_batches(data):
        yield from batches
    else:
        for batch in iterate(data):
            inputs, _ = inputs_and_labels(batch, num_inputs)
            yield keras.tree.map_structure(ops.convert_to_numpy, inputs)


@contextlib.contextmanager
def watched(
    layers: Mapping[str, keras.layers.Layer],
    watch: Callable[[str, Any, Any, bool], Any],
) -> Iterator[None]:
    """Makes each layer return `watch(path, inputs, outputs, reverse)` instead of its outputs.

    `reverse` is whether an embedding was called to return logits.
    """
    for path, layer in layers.items():

        def call(
            inputs: Any, *args: Any, _path: str = path, _call: Any = layer.call, **kwargs: Any
        ) -> Any:
            reverse = is_table(layers[_path]) and bool(kwargs.get("reverse", args and args[0]))
            return watch(_path, inputs, _call(inputs, *args, **kwargs), reverse)

        layer.call = call
    try:
        yield
    finally:
        for layer in layers.values():
            del layer.call


def observe(
    model: keras.layers.Layer,
    layers: Mapping[str, keras.layers.Layer],
    batches: list[Any],
    all_inputs: Any = None,
) -> tuple[dict[str, Statistics], list[np.ndarray]]:
    """Runs a model on data and records the inputs of its layers.

    Args:
        model: A copy of the model to compress, because its layers are changed while it runs.
        layers: The layers to watch, by path.
        batches: Inputs of the model.
        all_inputs: All inputs of the model, to count the ids of the embeddings that read them.
            Default: the batches.

    Returns:
        The summary of each layer's inputs, and the flattened outputs of the first batch.
    """
    statistics = {path: Statistics() for path in layers}
    flat_inputs: list[Any] = []

    def watch(path: str, inputs: Any, outputs: Any, reverse: bool) -> Any:
        note = statistics[path]
        array = ops.convert_to_numpy(inputs)
        layer = layers[path]
        if note.batch is None and not reverse:
            note.batch = array
        if is_table(layer) and not reverse:
            _check_ids(array, layer.input_dim, path)
            same = (i for i, x in enumerate(flat_inputs) if np.array_equal(x, array))
            note.inputs_read.add(next(same, None))
            counts = np.bincount(array.astype("int64").ravel(), minlength=layer.input_dim)
            note.counts = counts + (0 if note.counts is None else note.counts)
        else:
            rows = array.reshape(-1, array.shape[-1]) if reverse else input_rows(layer, array)
            if rows is None:
                return outputs
            rows = rows.astype("float64")
            moment = rows.T @ rows
            note.moment = moment + (0 if note.moment is None else note.moment)
            note.rows += len(rows)
        return outputs

    first: list[np.ndarray] = []
    with watched(layers, watch):
        for number, batch in enumerate(batches):
            flat_inputs[:] = keras.tree.flatten(batch)
            outputs = outputs_of(model, batch)
            if number == 0:
                first = outputs
    for path, note in statistics.items():
        if note.moment is not None:
            note.moment /= max(note.rows, 1)
            if not np.isfinite(note.moment).all():
                raise ValueError(
                    "Expected data for which the inputs of every layer are finite. Received: "
                    f"infinite or NaN inputs of the layer {path}; look for NaN in the data"
                )
        if note.inputs_read and None not in note.inputs_read and all_inputs is not None:
            arrays = keras.tree.flatten(all_inputs)
            read = [np.ravel(arrays[i]) for i in note.inputs_read if i is not None]
            ids = np.concatenate(read)
            _check_ids(ids, layers[path].input_dim, path)
            note.counts = np.bincount(ids.astype("int64"), minlength=layers[path].input_dim)
    return statistics, first


def _check_ids(ids: np.ndarray, num_rows: int, path: str) -> None:
    if ids.size and not 0 <= ids.min() <= ids.max() < num_rows:
        raise ValueError(
            f"Expected ids from 0 to {num_rows - 1} for {path}. "
            f"Received: ids from {ids.min()} to {ids.max()}"
        )
