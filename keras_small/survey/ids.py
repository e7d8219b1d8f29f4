"""Ids that a table does not have, which each backend treats in its own way."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import keras
import numpy as np
from keras import ops

from keras_small.asked.batches import DataError, is_out_of_memory
from keras_small.survey.graph_names import flat_layers
from keras_small.survey.kinds import is_table
from keras_small.survey.watching import Call
from keras_tnattn.errors import cause_of

Result = TypeVar("Result")


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
