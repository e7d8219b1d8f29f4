"""Measures calls of layers, and models, where they will run: in Keras, or in a runtime."""

import contextlib
import functools
import tempfile
import timeit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from keras_small.formats.runtime_tables import RUNTIMES


def best_milliseconds(model: keras.Model, batch: Any, runtime: str | None) -> float:
    """Returns the shortest time of some calls; in a runtime it is that of one thread."""
    if runtime is None:
        from keras_small.runtimes.tracing import rename_for_graphs

        with rename_for_graphs(model):
            return _best_time(functools.partial(model.predict_on_batch, batch))
    from keras_small.runtimes import file_outputs

    with _file(model, batch, runtime) as path:
        return _best_time(functools.partial(file_outputs(path), batch))


def costs_in(model: keras.Model, example: Any, runtime: str) -> Any:
    """Returns what a model's file costs in a runtime, a `keras_small.runtimes.FileCosts`."""
    from keras_small.runtimes import file_costs

    with _file(model, example, runtime) as path:
        return file_costs(path, model, example)


@contextlib.contextmanager
def _file(model: keras.Model, example: Any, runtime: str) -> Iterator[Path]:
    from keras_small.runtimes.exporting import write_file

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"measured{RUNTIMES[runtime].suffix}")
        try:
            write_file(model, path, example, data=[example])
        except RuntimeError as error:
            raise RuntimeError(f"Could not measure in {runtime}: {error}") from error
        yield path


def _best_time(call: functools.partial) -> float:
    call()
    return 1000 * min(timeit.repeat(call, number=1, repeat=7))
