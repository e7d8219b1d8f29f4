"""Runs a model on data.

A run is a call of the model, or a compiled one where this pays; it has no more rows than the memory
of its layers' outputs allows, and what fails names ids that a table does not have.
"""

import collections
import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import keras
import numpy as np
from keras import ops

from keras_small.asked.data import CalibrationData
from keras_small.asked.errors import DataError, data_errors, is_out_of_memory
from keras_small.survey.graph_names import flat_layers, rename_for_graphs
from keras_small.survey.inventory import Inventory
from keras_small.survey.kinds import is_table
from keras_small.survey.on_backends import compiled, run_through
from keras_small.survey.watching import Call, watch_calls
from keras_tnattn.errors import cause_of

# Compiling takes as long as a few runs: it pays for this number of runs on inputs of the same
# shapes. Where fewer are expected they run step by step before the model is compiled.
_COMPILED_RUNS = 8
# Texts of many lengths have many shapes: only the first ones are compiled at once.
_SHAPES_AT_ONCE = 2
# A functional model that is called step by step keeps the outputs of every layer until the call
# ends: 528 MB for MobileNetV2 and 32 pictures of 96 pixels. This is the maximum.
_MAXIMUM_BYTES = 2**25
# A compiled run frees outputs once they are read: MobileNetV2 takes a sixth of the memory.
_COMPILED_FACTOR = 4
# More rows do not make a run faster.
_MAXIMUM_ROWS = 256

Result = TypeVar("Result")


def outputs_of(model: keras.layers.Layer, inputs: Any) -> list[np.ndarray]:
    """Returns the flattened outputs at inference that are numbers.

    The model's variables stay as they are: a stateful recurrent layer, say, changes its state in
    each call.
    """
    with keras.StatelessScope():
        outputs = model(inputs, training=False)
    return [ops.convert_to_numpy(output) for output in numbers_of(outputs)]


def numbers_of(outputs: Any) -> list[Any]:
    """Returns the flattened outputs of a model that are numbers: texts cannot be compared."""
    return [output for output in keras.tree.flatten(outputs) if _is_of_numbers(output)]


def _is_of_numbers(output: Any) -> bool:
    if isinstance(output, np.ndarray):
        return output.dtype.kind not in "OSU"
    return keras.backend.standardize_dtype(output.dtype) != "string"


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


def outputs_on_data(model: keras.layers.Layer, inputs: Any) -> list[np.ndarray]:
    """Returns the same outputs for data that may not fit the model.

    Raises:
        ValueError: If they do not; it names the table whose ids are wrong.
    """
    with data_errors():
        return naming_wrong_ids(model, lambda: outputs_of(model, inputs))


class Runner:
    """Returns the outputs of a model at inference, without a change of its variables.

    A stateful recurrent layer, say, changes its state in each call. What cannot be compiled runs
    step by step.

    Args:
        model: The model, whose weights may be set between two runs.
        call: Function from the inputs to a structure of tensors. Default: a call of the model.
        runs: About how many runs there will be. Many are compiled from the first one on.

    Attributes:
        is_compiling: Whether the present run may be compiled; what fails then is tried once more
            step by step.
    """

    def __init__(
        self, model: keras.layers.Layer, call: Callable[[Any], Any] | None = None, runs: int = 0
    ) -> None:
        self._model = model
        self._call = call or (lambda inputs: model(inputs, training=False))
        self._runs: dict[tuple, int] = collections.Counter()
        self._compiled = compiled(self._named_for_graphs, model.variables)
        # JAX compiles a loop, of a recurrent layer say, in each run step by step.
        self._at_once = runs >= _COMPILED_RUNS or keras.backend.backend() == "jax"
        self.is_compiling = False

    def __call__(self, inputs: Any) -> list[np.ndarray]:
        """Returns the flattened outputs for some inputs, as far as they are numbers."""
        return numbers_of(self.nested(inputs))

    def nested(self, inputs: Any) -> Any:
        """Returns the outputs for some inputs in the structure in which they were returned."""
        arrays = keras.tree.flatten(inputs)
        shapes = tuple((np.shape(x), str(getattr(x, "dtype", ""))) for x in arrays)
        self._runs[shapes] += 1
        at_once = self._at_once and shapes in itertools.islice(self._runs, _SHAPES_AT_ONCE)
        if self._compiled is not None and (at_once or self._runs[shapes] > _COMPILED_RUNS):
            self.is_compiling = True
            try:
                with keras.StatelessScope():
                    return keras.tree.map_structure(ops.convert_to_numpy, self._compiled(inputs))
            except Exception:  # whatever a layer's own code raises
                self._compiled = None
            finally:
                self.is_compiling = False
        with keras.StatelessScope():
            outputs = naming_wrong_ids(self._model, lambda: self._call(inputs))
        return keras.tree.map_structure(ops.convert_to_numpy, outputs)

    def check_failures(self, failures: Mapping[str, str]) -> None:
        """Refuses layers that could not be watched in a compiled run, which then is none.

        Raises:
            ValueError: If there are some.
        """
        if failures and self.is_compiling:
            raise ValueError(f"Expected layers that can be watched. Received: {failures}")

    def _named_for_graphs(self, inputs: Any) -> Any:
        with rename_for_graphs(self._model):
            return self._call(inputs)


def check_ids(ids: np.ndarray, num_rows: int, name: str) -> None:
    """Checks that ids are those of rows of a table.

    Raises:
        DataError: If they are not.
    """
    if ids.size and not 0 <= ids.min() <= ids.max() < num_rows:
        raise DataError(
            f"Expected ids from 0 to {num_rows - 1} for {name}. "
            f"Received: ids from {ids.min()} to {ids.max()}"
        )


def returns_logits(layer: keras.layers.Layer, call: Call) -> bool:
    """Whether a call of a table returns logits and looks no rows up."""
    return is_table(layer) and bool(call.kwargs.get("reverse", (*call.args, False)[1]))


def naming_wrong_ids(model: keras.layers.Layer, run: Callable[[], Result]) -> Result:
    """Returns the result of a run of a model.

    A run that fails is repeated step by step with the ids checked, because errors of TensorFlow
    name neither the table nor its size.

    Raises:
        DataError: If there are ids that a table does not have.
    """
    try:
        return run()
    except Exception as error:
        if not isinstance(error, MemoryError) and not is_out_of_memory(error):
            with _checking_ids(model):
                run()
        raise


@contextlib.contextmanager
def _checking_ids(model: keras.layers.Layer) -> Iterator[None]:
    """Makes the tables of a model check the ids that they look up."""
    tables = [layer for layer in flat_layers(model) if is_table(layer)]
    before = [vars(table).get("call") for table in tables]
    for table in tables:

        def call(*args: Any, _table: Any = table, _call: Any = table.call, **kwargs: Any) -> Any:
            arguments = Call(args, kwargs)
            if not returns_logits(_table, arguments):
                ids = ops.convert_to_numpy(arguments.first_tensor)
                check_ids(ids, _table.input_dim, _table.name)
            return _call(*args, **kwargs)

        table.call = call
    try:
        yield
    except DataError as error:  # to which Keras has added the arguments of the call
        raise DataError(cause_of(error)) from error
    finally:
        for table, call in zip(tables, before, strict=True):
            vars(table).pop("call", None)  # a run that watches it has taken it away
            if call is not None:
                table.call = call


def cut_to_memory(data: CalibrationData, inventory: Inventory, shards: int = 1) -> None:
    """Cuts data, one of some shards of equal size, into batches that a model takes at once."""
    if data.fixed_rows is not None:
        return
    size = _bytes_of_outputs(inventory, data.example)
    rows = _rows_within(_MAXIMUM_BYTES, size)
    compiled = rows
    if keras.backend.backend() != "torch":
        compiled = _rows_within(_COMPILED_FACTOR * _MAXIMUM_BYTES, size)
        # Fewer runs are not compiled. Shards together have as many as one process.
        compiled = min(compiled, shards * data.rows // _COMPILED_RUNS)
    data.cut(rows, max(rows, compiled))


def _rows_within(maximum_bytes: int, bytes_of_row: int) -> int:
    return max(1, min(_MAXIMUM_ROWS, maximum_bytes // max(bytes_of_row, 1)))


def _bytes_of_outputs(inventory: Inventory, row: Any) -> int:
    """Returns the bytes of the outputs of all layers in a run of one row."""
    total = 0

    def run(tensors: Any) -> None:
        nonlocal total
        total = 0
        with keras.StatelessScope():
            inventory.model(tensors, training=False)

    def watch(_path: str, _call: Call, outputs: Any) -> Any:
        nonlocal total
        for x in keras.tree.flatten(outputs):
            if hasattr(x, "shape") and None not in x.shape:
                itemsize = 8 if "64" in str(x.dtype) else 4
                total += itemsize * math.prod(x.shape)
        return outputs

    layers = {path: place.layer for path, place in inventory.places.items()}
    with watch_calls(layers, watch), data_errors():
        naming_wrong_ids(inventory.model, lambda: run_through(run, row))
    return total
