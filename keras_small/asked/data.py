"""Reads inputs, and labels if there are any, from arrays or from an iterable of batches.

Both can be inputs alone, or a tuple `(inputs, labels, ...)` as for `fit`; the number of the model's
inputs tells them apart.

`compress` watches layers on at most about 1,024 rows of the data, the calibration. The error in the
report is measured on all rows, or for arrays of more than 4,096 rows on 1,023 others.
"""

import dataclasses
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.checks import check_int

# Maximum rows on which layers are watched.
_CALIBRATION_ROWS = 1024
# Maximum rows of arrays that are all used to measure the error in a report.
_REPORT_ROWS = 4096
# Inputs, labels and weights of samples, as `fit` takes them.
_MAXIMUM_ENTRIES = 3
# The libraries of the kinds in `_CALLS`.
_LIBRARIES = ("tensorflow", "numpy", "h5py")
# The rows of `spread_batches`.
_ROWS_OF_SPREAD_BATCHES = 256
# Kinds of data that are neither converted nor read in batches, and the calls that convert them.
_CALLS = {
    "RaggedTensor": "data.to_tensor()",
    "SparseTensor": "tf.sparse.to_dense(data)",
    "NpzFile": "dict(numpy.load(path))",
    "File": "numpy.asarray(file[name])",
    "Group": "numpy.asarray(group[name])",
}


@dataclasses.dataclass(frozen=True)
class Data:
    """Inputs of a model with a batch size, ids that may be renumbered, or moments of more rows.

    Args:
        inputs: Arrays, or an iterable of batches, as for `data` of `compress`. Frames, sparse
            matrices and arrays of other libraries become arrays of NumPy.
        batch_size: Maximum rows of a call of the model. Default: as many as keep the outputs of all
            layers together within 32 MB (128 MB where runs are compiled), and at most 256; of an
            iterable each batch, if it does.
        kept_ids: The number of leading ids, such as padding and unknown, that do not change: fewer
            than all, and at least 1 for an embedding that masks padding (`mask_zero`). All other
            ids may be renumbered, which saves the table of positions of an embedding in groups or
            blocks, and in a coded file the order of its rows; the caller reorders the vocabulary
            by `result.renumbering`. Needs a goal without a metric or a promise, and one integer
            input that a single embedding reads; the ids of other models stay. Default: ids stay.
        moments: What `gather_moments` returned for a model of the same weights and layer names and
            for other rows, or a sum of that for several shards. It takes the place of what layers
            read in `inputs`, of which about 1,024 rows are enough then: they measure sensitivities
            and errors, and move biases. A promise needs `inputs` that are not among the rows of the
            shards. Default: moments of `inputs`.

    Raises:
        ValueError: If a number is not positive, or there are no inputs.

    Example:
        >>> import keras, numpy as np
        >>> from keras_small import Data, compress
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> inputs = np.random.default_rng(0).normal(size=(256, 64)).astype("float32")
        >>> result = compress(model, 3, data=Data(inputs, batch_size=128), verbose=0)
        >>> result.report.rows
        256
    """

    inputs: Any
    batch_size: int | None = None
    kept_ids: int | None = None
    moments: Any = None

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_int("batch_size", self.batch_size)
        if self.kept_ids is not None:
            check_int("kept_ids", self.kept_ids, at_least=0)
        if self.inputs is None:
            raise ValueError("Expected inputs. Received: inputs=None")


def as_data(data: Any) -> Data | None:
    """Returns what `compress` received as `data` as a `Data` of arrays; `None` without data.

    Raises:
        ValueError: If the inputs are of a kind that has to be converted.
    """
    if data is None:
        return None
    given = data if isinstance(data, Data) else Data(data)
    return dataclasses.replace(given, inputs=as_arrays(given.inputs))


def are_arrays(data: Any) -> bool:
    """Whether data are arrays, or a structure of arrays, and not an iterable of batches."""
    return isinstance(data, np.ndarray | dict | list | tuple) or ops.is_tensor(data)


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

    If the number of the model's inputs is not known, a tuple of two or three entries is `(inputs,
    labels, weights of samples)`.

    Raises:
        ValueError: If the number of arrays does not fit the model.
    """
    if isinstance(data, tuple) and 0 < len(data) <= _MAXIMUM_ENTRIES and _fit(data[0], num_inputs):
        return data[0], data[1] if len(data) > 1 else None
    if not _fit(data, num_inputs):
        entries = f" of {len(data)} entries" if isinstance(data, list | tuple) else ""
        raise ValueError(
            f"Expected one array for each of the {num_inputs} inputs of the model, or a tuple "
            "(inputs, labels) of such arrays. Join batches by np.concatenate, or pass them as a "
            "generator, a data set or another iterable, not as a list or a tuple. "
            f"Received: a {type(data).__name__}{entries}"
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
    if not np.ndim(first):
        raise ValueError(
            f"Expected arrays with a row for each sample. Received: {reprlib.repr(inputs)}"
        )
    return len(first)


def spread_batches(batches: Sequence[Any]) -> list[Any]:
    """Returns batches of about 256 rows together, from all parts of the data."""
    return [batches[n] for n in spread_numbers(batches)]


def spread_numbers(batches: Sequence[Any]) -> list[int]:
    """Returns the numbers of these batches."""
    if not batches:
        return []
    count = min(len(batches), -(-_ROWS_OF_SPREAD_BATCHES // number_of_rows(batches[0])))
    return [n * len(batches) // count for n in range(count)]


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


class Slices(Sequence):
    """Batches of a few rows each, which are cut from larger ones when they are read.

    Args:
        batches: Pairs of a batch, arrays of several rows or a structure of such arrays, and the
            numbers of the rows to read.
        rows: Maximum rows of a slice.
        only_full: Whether slices of fewer rows are left out. Defaults to `False`.
    """

    def __init__(
        self, batches: Iterable[tuple[Any, np.ndarray | range]], rows: int, only_full: bool = False
    ) -> None:
        self._slices = [
            (batch, numbers[start : start + rows])
            for batch, numbers in batches
            for start in range(0, len(numbers), rows)
            if not only_full or start + rows <= len(numbers)
        ]

    def __len__(self) -> int:
        return len(self._slices)

    def __getitem__(self, index: Any) -> Any:
        batch, numbers = self._slices[index]
        # A range without a copy.
        rows: Any = slice(numbers.start, numbers.stop) if isinstance(numbers, range) else numbers
        return keras.tree.map_structure(lambda array: array[rows], batch)


class CalibrationData:
    """Inputs of a model that were read.

    Args:
        data: The inputs, or tuples `(inputs, labels, ...)`, as arrays with equal first sizes or as
            an iterable of batches.
        num_inputs: The number of the model's inputs, if it is known.
        fixed_rows: The number of rows that each batch of the model must have; `None` if any will
            do.

    Attributes:
        fixed_rows: As above.
        rows_at_once: Maximum rows of a run that keeps the outputs of all layers.
        arrays: All inputs, if they are arrays; otherwise `None`.
        batches: Batches of inputs, of 1,024 rows together or a little more, of one row each until
            `cut` says how many fit. If the rows of a batch are fixed, others are left out.
        small_batches: The same rows in batches for runs that keep the outputs of all layers.
        kept_ids, moments: As in `Data`.

    Raises:
        ValueError: If there are no rows, or fewer than a batch must have, or the number of arrays
            does not fit the model.
    """

    def __init__(self, data: Data, num_inputs: int | None, fixed_rows: int | None = None) -> None:
        self._data = data
        self._num_inputs = num_inputs
        self.fixed_rows = fixed_rows
        self.kept_ids = data.kept_ids
        self.moments = data.moments
        self.arrays: Any = None
        if are_arrays(data.inputs):
            self.arrays = read_arrays(data.inputs, num_inputs)
            rows = number_of_rows(self.arrays)
            chosen = range(rows) if rows <= _CALIBRATION_ROWS else _spread(rows)
            self._read = [(self.arrays, chosen)]
        else:
            self._read = [_all_rows(batch) for batch in self._first_batches()]
        if not any(len(rows) for _, rows in self._read):
            raise ValueError("Expected data of at least one row. Received: no rows")
        for array in keras.tree.flatten([batch for batch, _ in self._read]):
            if not array.size:
                raise ValueError(
                    "Expected rows of at least one number, such as texts of one word. Received: "
                    f"an array of shape {array.shape}"
                )
        if fixed_rows is None:
            self.cut(1)
        else:
            self._cut_full(fixed_rows)

    def cut(self, rows: int, compiled_rows: int | None = None) -> None:
        """Cuts all batches into slices of a maximum of rows, or of the caller's batch size.

        Args:
            rows: Maximum rows of a run that keeps the outputs of all layers.
            compiled_rows: Maximum rows of a compiled run. Default: `rows`.
        """
        maximum = self._data.batch_size or _CALIBRATION_ROWS
        self._rows = min(compiled_rows or rows, maximum)
        self.rows_at_once = min(rows, maximum)
        self.batches = Slices(self._read, self._rows)
        self.small_batches = Slices(self._read, self.rows_at_once)

    def with_arrays(self, arrays: Any) -> "CalibrationData":
        """Returns other inputs, arrays of the same kind, cut into batches of the same size."""
        data = dataclasses.replace(self._data, inputs=(arrays,))
        other = CalibrationData(data, self._num_inputs, self.fixed_rows)
        if self.fixed_rows is None:
            other.cut(self.rows_at_once, self._rows)
        return other

    def _cut_full(self, rows: int) -> None:
        self._rows = rows
        self.rows_at_once = rows
        self.batches = self.small_batches = Slices(self._read, rows, only_full=True)
        if not self.batches:
            raise ValueError(
                f"Expected at least the {rows} rows that each batch of the model has. "
                f"Received: {self.rows} rows"
            )

    @property
    def rows(self) -> int:
        """The number of rows of all batches."""
        return sum(len(rows) for _, rows in self._read)

    @property
    def example(self) -> Any:
        """The first row, or as many as a batch must have."""
        return Slices(self._read[:1], self.fixed_rows or 1)[0]

    def _first_batches(self) -> list[Any]:
        batches = []
        rows = 0
        for batch in self._every_read():
            batches.append(batch)
            rows += number_of_rows(batch)
            if rows >= _CALIBRATION_ROWS:
                break
        return batches

    def _every_read(self) -> Iterator[Any]:
        for batch in iterate(self._data.inputs):
            inputs, _ = inputs_and_labels(as_arrays(batch), self._num_inputs)
            yield keras.tree.map_structure(ops.convert_to_numpy, inputs)

    @property
    def reports_calibration(self) -> bool:
        """Whether a report measures errors on the rows of the calibration."""
        if self.arrays is not None:
            return number_of_rows(self.arrays) == self.rows
        return isinstance(self._data.inputs, Iterator) or not number_of_batches(self._data.inputs)

    def report_batches(self) -> Iterator[Any]:
        """Yields batches of the rows on which a report measures errors.

        These are all rows; for arrays of more than 4,096 rows, 1,023 between those of the
        calibration; and for a generator the calibration, which was read already.
        """
        if self.arrays is not None:
            rows: Any = range(number_of_rows(self.arrays))
            if len(rows) > _REPORT_ROWS:
                watched = _spread(len(rows))
                rows = (watched[:-1] + watched[1:]) // 2
            yield from Slices(
                [(self.arrays, rows)], self._rows, only_full=self.fixed_rows is not None
            )
        elif self.reports_calibration:
            yield from self.batches
        else:
            for batch in self._every_read():
                yield from Slices(
                    [_all_rows(batch)], self._rows, only_full=self.fixed_rows is not None
                )


def _all_rows(batch: Any) -> tuple[Any, range]:
    return batch, range(number_of_rows(batch))


def read_arrays(data: Any, num_inputs: int | None) -> Any:
    """Returns the inputs among arrays, which have equally many rows.

    Raises:
        ValueError: If they do not, or their number does not fit the model.
    """
    inputs, _ = inputs_and_labels(data, num_inputs)
    arrays = keras.tree.map_structure(np.asarray, inputs)
    rows = number_of_rows(arrays)
    sizes = [len(array) for array in keras.tree.flatten(arrays)]
    if set(sizes) != {rows}:
        raise ValueError(f"Expected arrays of equally many rows. Received: {sizes} rows")
    return arrays


def _spread(rows: int) -> np.ndarray:
    """Returns the numbers of the rows of the calibration, evenly spread."""
    return np.linspace(0, rows - 1, min(rows, _CALIBRATION_ROWS)).astype(int)
