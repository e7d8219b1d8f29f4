"""Observes a model's layers on real inputs: second moments, and counts of ids."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.asked.batches import (
    DataError,
    is_out_of_memory,
    number_of_rows,
    outputs_of,
)
from keras_small.survey.kinds import input_rows, is_table
from keras_tnattn.errors import cause_of

# Maximum entries of all outputs that are kept.
_KEPT_ENTRIES = 2**25


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a layer, which may have several inputs and outputs, nested in any way.

    Attributes:
        args, kwargs: The arguments; arrays are NumPy's.
    """

    args: tuple
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_tensors(cls, args: tuple, kwargs: Mapping[str, Any]) -> "Call":
        """Returns a call whose tensors became arrays, and whose inputs are its first argument."""
        named = dict(kwargs)
        if not args:
            args = (named.pop(next(iter(named))),)
        return cls(*keras.tree.map_structure(_as_array, (args, named)))

    @property
    def inputs(self) -> np.ndarray:
        """The first array, which the kernel of a layer multiplies."""
        return self._arrays[0]

    @property
    def _arrays(self) -> list[np.ndarray]:
        arguments = keras.tree.flatten((self.args, dict(self.kwargs)))
        return [x for x in arguments if isinstance(x, np.ndarray)]

    def first_rows(self, count: int) -> "Call":
        """Returns the call of the first rows alone."""
        arguments = self.args, dict(self.kwargs)
        rows = number_of_rows(self.inputs)
        return Call(
            *keras.tree.map_structure(
                lambda x: x[:count] if isinstance(x, np.ndarray) and len(x) == rows else x,
                arguments,
            )
        )

    def outputs_of(self, layer: keras.layers.Layer) -> list[np.ndarray]:
        """Returns all floating-point outputs of a layer, without a change of its states."""
        with keras.StatelessScope():
            outputs = keras.tree.flatten(layer(*self.args, **self.kwargs))
        return [ops.convert_to_numpy(x).astype("float64") for x in outputs if _is_float(x)]


def _as_array(value: Any) -> Any:
    return ops.convert_to_numpy(value) if ops.is_tensor(value) else value


def _is_float(value: Any) -> bool:
    return ops.is_tensor(value) and keras.backend.is_float_dtype(
        keras.backend.standardize_dtype(value.dtype)
    )


def map_floats(function: Callable[[Any], Any], outputs: Any) -> Any:
    """Applies a function to each floating-point tensor of nested outputs."""
    return keras.tree.map_structure(lambda x: function(x) if _is_float(x) else x, outputs)


@dataclasses.dataclass
class Statistics:
    """A summary of the inputs that a layer was called with.

    Attributes:
        rows: Number of input rows; only for kernels.
        fourth_powers: Sum of the fourth powers of the norms of these rows.
        distinct: Number of different rows among them, counted in each call.
        moment: Mean of `x x^T` over all input rows, float64 `(I, I)`; for kernels of which `kinds`
            knows the rows, and for tables that are also called to return logits.
        counts: The number of occurrences of each id, int64 `(V,)`; only for embeddings.
        call: The first call, unchanged.
        sensitivity: Relative change of the model's outputs divided by the relative change of this
            layer's outputs, before its activation, that caused it.
        response: How the model's outputs respond to directions of an embedding's rows: float64
            `(D, D)`, the mean of `J^T J` for the Jacobian `J` of the outputs by a row, divided by
            its mean eigenvalue; `None` if all directions count alike.
        kept_ids: The number of leading ids of an embedding that stay if all others may be
            renumbered, or `None` if ids stay.
        inputs_read: Positions, among the flattened inputs of the model, of the inputs that an
            embedding was called with; `None` stands for ids that are no input of the model.
        failure: Why the layer cannot be watched, or nothing.
        factors: The factors of a table, once `errors.factors_of` has computed them.
    """

    rows: int = 0
    fourth_powers: float = 0.0
    distinct: int = 0
    moment: np.ndarray | None = None
    counts: np.ndarray | None = None
    call: Call | None = None
    sensitivity: float = 1.0
    response: np.ndarray | None = None
    kept_ids: int | None = None
    inputs_read: set[int | None] = dataclasses.field(default_factory=set)
    failure: str = ""
    factors: Any = dataclasses.field(default=None, init=False)

    @property
    def inputs(self) -> np.ndarray | None:
        """The first inputs of the first call."""
        return None if self.call is None else self.call.inputs

    @property
    def shrunk_moment(self) -> np.ndarray | None:
        """The moment, shrunk towards a multiple of the identity, the more the fewer its rows are.

        This is the estimator of Ledoit and Wolf, "A well-conditioned estimator for
        large-dimensional covariance matrices". Integers rounded for the moment itself of few rows
        are worse for other rows than the nearest integers.
        """
        if self.moment is None or not self.rows:
            return self.moment
        target = np.trace(self.moment) / len(self.moment) * np.eye(len(self.moment))
        distance = np.square(self.moment - target).sum()
        spread = self.fourth_powers / self.rows - np.square(self.moment).sum()
        variance = spread / max(self.distinct - 1, 1)
        share = np.clip(variance / distance, 0, 1) if distance > 0 and self.distinct > 1 else 1.0
        return share * target + (1 - share) * self.moment

    @property
    def takes_model_input(self) -> bool:
        """Whether the ids are, at least in one call, an input of the model itself."""
        return any(position is not None for position in self.inputs_read)


@contextlib.contextmanager
def with_activation(layer: keras.layers.Layer, function: Callable[[Any], Any]) -> Iterator[None]:
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


@contextlib.contextmanager
def watch_calls(
    layers: Mapping[str, keras.layers.Layer], watch: Callable[[str, Call, Any], Any]
) -> Iterator[dict[str, str]]:
    """Makes each layer return `watch(path, call, outputs)` instead of its outputs.

    Yields the layers for which this failed, such as those called in a compiled loop, by path, and
    why; they return their own outputs.
    """
    failures: dict[str, str] = {}
    for path, layer in layers.items():

        def call(*args: Any, _path: str = path, _call: Any = layer.call, **kwargs: Any) -> Any:
            outputs = _call(*args, **kwargs)
            if _path in failures:
                return outputs
            try:
                return watch(_path, Call(args, kwargs), outputs)
            except Exception as error:
                failures[_path] = reason_to_keep(error)
                return outputs

        layer.call = call
    try:
        yield failures
    except DataError as error:  # to which Keras has added the arguments of the call
        raise DataError(cause_of(error)) from error
    finally:
        for layer in layers.values():
            del layer.call


def reason_to_keep(error: Exception) -> str:
    """Returns why a layer stays for which something failed, other than memory or the data."""
    if isinstance(error, MemoryError | DataError) or is_out_of_memory(error):
        raise error
    return f"cannot be watched or replaced ({type(error).__name__}: {cause_of(error)})"


def returns_logits(layer: keras.layers.Layer, call: Call) -> bool:
    """Whether a call of a table returns logits and looks no rows up."""
    return is_table(layer) and bool(call.kwargs.get("reverse", (*call.args, False)[1]))


def observe(
    model: keras.layers.Layer,
    layers: Mapping[str, keras.layers.Layer],
    batches: list[Any],
    all_inputs: Any = None,
) -> tuple[dict[str, Statistics], list[list[np.ndarray]]]:
    """Runs a copy of a model on data, and records the inputs of the layers at some paths.

    The layers are changed while it runs. The ids of embeddings that read inputs of the model are
    counted in `all_inputs`. Default: in the batches.

    Returns:
        The summary of each layer's inputs, and the flattened outputs of the first batches.
    """
    statistics = {path: Statistics() for path in layers}
    flat_inputs: list[Any] = []

    def watch(path: str, tensors: Call, outputs: Any) -> Any:
        note = statistics[path]
        layer = layers[path]
        call = Call.of_tensors(tensors.args, tensors.kwargs)
        array = call.inputs
        reverse = returns_logits(layer, call)
        if note.call is None and not reverse:
            note.call = call
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
            note.fourth_powers += float(np.square(np.square(rows).sum(axis=1)).sum())
            sums = rows @ np.sqrt(np.arange(2, 2 + rows.shape[1]))
            note.distinct += len(np.unique(sums.astype("float32")))
        return outputs

    first: list[list[np.ndarray]] = []
    numbers = 0
    with watch_calls(layers, watch) as failures:
        for number, batch in enumerate(batches):
            flat_inputs[:] = keras.tree.flatten(batch)
            outputs = outputs_of(model, batch)
            numbers += sum(array.size for array in outputs)
            if number == 0 or numbers <= _KEPT_ENTRIES:
                first.append(outputs)
    for path, note in statistics.items():
        note.failure = failures.get(path, "" if note.call else "never called on the data")
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
        raise DataError(
            f"Expected ids from 0 to {num_rows - 1} for {path}. "
            f"Received: ids from {ids.min()} to {ids.max()}"
        )
