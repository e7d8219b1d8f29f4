"""Reads inputs, and labels if there are any, from arrays or from an iterable of batches.

Both can be inputs alone, or a tuple `(inputs, labels, ...)` as for `fit`; the number of the model's
inputs tells them apart.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.errors import cause_of

# The libraries of the kinds in `_CALLS`.
_LIBRARIES = ("tensorflow", "numpy", "h5py")
# The rows of `some_batches`.
_ROWS_OF_SOME_BATCHES = 256


class DataError(ValueError):
    """Data that a model cannot take."""


def number_of_inputs(model: keras.Model) -> int | None:
    """Returns the number of arrays that a built model takes, or `None` if that is not known."""
    inputs = getattr(model, "inputs", None)
    if inputs is not None:
        return len(inputs)
    return _number_of_shapes((model.get_build_config() or {}).get("input_shape"))


def _number_of_shapes(shapes: Any) -> int | None:
    if not shapes:
        return None
    if isinstance(shapes, dict):
        return len(shapes)
    return 1 if all(size is None or isinstance(size, int) for size in shapes) else len(shapes)


def fixed_rows(model: keras.Model) -> int | None:
    """Returns the number of rows that each batch of a model must have, or `None` if any will do."""
    inputs = getattr(model, "inputs", None) or []
    return next((x.shape[0] for x in inputs if x.shape and x.shape[0] is not None), None)


def are_arrays(data: Any) -> bool:
    """Whether data are arrays, or a structure of arrays, and not an iterable of batches."""
    return isinstance(data, np.ndarray | dict | list | tuple) or ops.is_tensor(data)


# Kinds of data that are neither converted nor read in batches, and the calls that convert them.
_CALLS = {
    "RaggedTensor": "data.to_tensor()",
    "SparseTensor": "tf.sparse.to_dense(data)",
    "NpzFile": "dict(numpy.load(path))",
    "File": "numpy.asarray(file[name])",
    "Group": "numpy.asarray(group[name])",
}


def as_arrays(data: Any) -> Any:
    """Returns data whose frames, sparse matrices and arrays of other libraries are NumPy's.

    What has `__array__`, `to_numpy` or `toarray` is converted, also in lists, tuples and dicts;
    tensors of the backend and iterables of batches stay.

    Raises:
        ValueError: If data are of a kind that is not, with the call that converts them.
    """
    return keras.tree.map_structure(_as_array, data)


def _as_array(entry: Any) -> Any:
    name = type(entry).__name__
    if name in _CALLS and type(entry).__module__.partition(".")[0] in _LIBRARIES:
        raise ValueError(f"Expected arrays: pass {_CALLS[name]}. Received: a {name}")
    if isinstance(entry, np.ndarray) or ops.is_tensor(entry) or np.isscalar(entry):
        return entry
    for convert in ("toarray", "to_numpy", "__array__"):
        if hasattr(entry, convert):
            return np.asarray(getattr(entry, convert)())
    return entry


def inputs_and_labels(data: Any, num_inputs: int | None) -> tuple[Any, Any]:
    """Splits arrays, or a batch, into inputs and labels; labels are `None` if there are none.

    If the number of the model's inputs is not known, a tuple is `(inputs, labels, ...)`.

    Raises:
        ValueError: If the number of arrays does not fit the model.
    """
    if isinstance(data, tuple) and data and _fit(data[0], num_inputs):
        return data[0], data[1] if len(data) > 1 else None
    if not _fit(data, num_inputs):
        entries = f" of {len(data)} entries" if isinstance(data, list | tuple) else ""
        raise ValueError(
            f"Expected one array for each of the {num_inputs} inputs of the model, or a tuple "
            "(inputs, labels) of such arrays. Pass batches as a generator, a data set or another "
            f"iterable, not as a list. Received: a {type(data).__name__}{entries}"
        )
    return data, None


def _fit(inputs: Any, num_inputs: int | None) -> bool:
    # A dict may have entries that the model does not use.
    several = isinstance(inputs, list | tuple)
    number = len(keras.tree.flatten(inputs)) if several else 1
    return num_inputs is None or isinstance(inputs, dict) or number == num_inputs


def number_of_rows(inputs: Any) -> int:
    """Returns the number of samples in a batch."""
    first = keras.tree.flatten(inputs)[0]
    if not first.ndim:
        raise ValueError(f"Expected arrays with a row for each sample. Received: {inputs!r}")
    return len(first)


def some_batches(batches: Sequence[Any]) -> list[Any]:
    """Returns batches of about 256 rows together, from all parts of the data."""
    if not batches:
        return []
    count = min(len(batches), -(-_ROWS_OF_SOME_BATCHES // number_of_rows(batches[0])))
    return [batches[n * len(batches) // count] for n in range(count)]


def iterate(data: Any) -> Iterator[Any]:
    """Yields the batches of an iterable or of a `keras.utils.PyDataset`, once.

    Lists, which PyTorch's `DataLoader` yields for pairs, become tuples.
    """
    if isinstance(data, keras.utils.PyDataset):
        batches: Iterable = (data[i] for i in range(len(data)))
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        batches = data
    else:
        raise ValueError(f"Expected arrays or an iterable of batches. Received: {data!r}")
    return (tuple(batch) if isinstance(batch, list) else batch for batch in batches)


def number_of_batches(dataset: Any) -> int:
    """Returns the number of batches of an iterable, or 0 if it is not known."""
    try:
        return len(dataset)
    except TypeError:  # of a generator, or a data set of unknown size
        return 0


def are_equal(old: Any, new: Any) -> bool:
    """Whether all entries of two outputs are equal but for rounding."""
    old, new = (ops.convert_to_numpy(x).astype("float64") for x in (old, new))
    # Column by column: masked classes, -1e9 say, must not set the measure for others.
    columns = as_rows(old)
    sizes = np.ma.masked_where(~np.isfinite(columns) | (columns == 0), np.abs(columns))
    typical = np.ma.filled(np.ma.median(sizes, axis=0), 0.0)
    return np.allclose(new, old, rtol=1e-3, atol=1e-3 * typical, equal_nan=True)


def as_rows(outputs: np.ndarray) -> np.ndarray:
    """Returns an output as a matrix whose columns are its last axis, or of one column."""
    if outputs.ndim < 2:
        return outputs.reshape(-1, 1)
    return outputs.reshape(math.prod(outputs.shape[:-1]), outputs.shape[-1])


def are_probabilities(outputs: Any) -> bool:
    """Whether outputs are an array of distributions: none negative, rows of sum 1."""
    if isinstance(outputs, dict | list | tuple) or outputs.ndim < 2 or outputs.shape[-1] < 2:
        return False
    half_precision = outputs.dtype.itemsize < 4
    sums = outputs.astype("float32").sum(axis=-1)
    return bool(outputs.min() >= 0 and np.allclose(sums, 1, atol=2e-2 if half_precision else 1e-3))


@contextlib.contextmanager
def data_errors() -> Iterator[None]:
    """Reports errors of a model that is called on the data."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # each backend has its own
        if is_out_of_memory(error):
            raise
        raise ValueError(f"The data do not fit the model: {cause_of(error)}") from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether TensorFlow, JAX or PyTorch ran out of memory."""
    names = ("ResourceExhaustedError", "OutOfMemoryError")
    signs = ("RESOURCE_EXHAUSTED", "can't allocate memory")
    return type(error).__name__ in names or any(sign in str(error) for sign in signs)
