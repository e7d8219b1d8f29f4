"""Observes a model's layers on real inputs: second moments, counts of ids, sensitivity."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.compression.batches import are_arrays, inputs_and_labels, iterate
from keras_tnattn.layers.low_rank_einsum_dense import kernel_axes, labels_of

# The number of random input rows that measure the error of a layer for which there are no data.
SAMPLE_ROWS = 512


@dataclasses.dataclass
class Seen:
    """A summary of the inputs that a layer was called with.

    Attributes:
        rows: Number of input rows; only for kernels.
        moment: Mean of `x x^T` over all input rows, float64 `(I, I)`; only for kernels.
        counts: The number of occurrences of each id, int64 `(V,)`; only for embeddings.
        batch: The inputs of the first call, unchanged.
        sensitivity: Relative change of the model's outputs divided by the relative change of this
            layer's outputs, before its activation, that caused it.
        response: How the model's outputs respond to directions of an embedding's rows: float64
            `(D, D)`, the mean of `J^T J` for the Jacobian `J` of the outputs by a row, divided by
            its mean eigenvalue; `None` if all directions count alike.
        inputs_read: Positions, among the flattened inputs of the model, of the inputs that an
            embedding was called with; `None` stands for ids that are no input of the model.
    """

    rows: int = 0
    moment: np.ndarray | None = None
    counts: np.ndarray | None = None
    batch: np.ndarray | None = None
    sensitivity: float = 1.0
    response: np.ndarray | None = None
    inputs_read: set[int | None] = dataclasses.field(default_factory=set)

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
        rows = _rows(all_inputs)
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
            rows += _rows(batches[-1])
            if rows >= limit:
                break
    if not batches:
        raise ValueError("Expected data of at least one row. Received: no rows")
    return batches, all_inputs


def _rows(inputs: Any) -> int:
    first = keras.tree.flatten(inputs)[0]
    if not first.ndim:
        raise ValueError(f"Expected arrays with a row for each sample. Received: {inputs!r}")
    return len(first)


@contextlib.contextmanager
def watched(
    layers: Mapping[str, keras.layers.Layer],
    watch: Callable[[str, Any, Any], Any],
) -> Iterator[None]:
    """Makes each layer return `watch(path, inputs, outputs)` instead of its outputs."""
    for path, layer in layers.items():

        def call(
            inputs: Any, *args: Any, _path: str = path, _call: Any = layer.call, **kwargs: Any
        ) -> Any:
            return watch(_path, inputs, _call(inputs, *args, **kwargs))

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
) -> tuple[dict[str, Seen], list[np.ndarray]]:
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
    seen = {path: Seen() for path in layers}
    flat_inputs: list[Any] = []

    def watch(path: str, inputs: Any, outputs: Any) -> Any:
        note = seen[path]
        array = ops.convert_to_numpy(inputs)
        layer = layers[path]
        if note.batch is None:
            note.batch = array
        if isinstance(layer, keras.layers.Embedding):
            _check_ids(array, layer.input_dim, path)
            same = (i for i, x in enumerate(flat_inputs) if np.array_equal(x, array))
            note.inputs_read.add(next(same, None))
            counts = np.bincount(array.astype("int64").ravel(), minlength=layer.input_dim)
            note.counts = counts + (0 if note.counts is None else note.counts)
        else:
            rows = input_rows(layer, array).astype("float64")
            moment = rows.T @ rows
            note.moment = moment + (0 if note.moment is None else note.moment)
            note.rows += len(rows)
        return outputs

    first: list[np.ndarray] = []
    with watched(layers, watch):
        for number, batch in enumerate(batches):
            flat_inputs[:] = keras.tree.flatten(batch)
            outputs = model(batch, training=False)
            if number == 0:
                first = [ops.convert_to_numpy(x) for x in keras.tree.flatten(outputs)]
    for path, note in seen.items():
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
    return seen, first


def _check_ids(ids: np.ndarray, num_rows: int, path: str) -> None:
    if ids.size and not 0 <= ids.min() <= ids.max() < num_rows:
        raise ValueError(
            f"Expected ids from 0 to {num_rows - 1} for {path}. "
            f"Received: ids from {ids.min()} to {ids.max()}"
        )


def input_rows(layer: keras.layers.Layer, inputs: np.ndarray) -> np.ndarray:
    """Returns the rows `(n, I)` that the kernel of a dense or einsum layer multiplies."""
    if not isinstance(layer, keras.layers.EinsumDense):
        return inputs.reshape(-1, inputs.shape[-1])
    labels, kernel, _ = labels_of(layer.equation)
    summed = [kernel[i] for i in kernel_axes(layer.equation)[0]]
    before, _, after = labels.partition("...")
    axis = {c: i for i, c in enumerate(before)}
    axis |= {c: i - len(after) for i, c in enumerate(after)}
    moved = np.moveaxis(inputs, [axis[c] for c in summed], range(-len(summed), 0))
    size = int(np.prod(moved.shape[-len(summed) :]))
    return moved.reshape(-1, size)
