"""Runs a model many times, compiled once this pays."""

import collections
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.asked.batches import numbers_of
from keras_small.survey.graph_names import rename_for_graphs
from keras_small.survey.ids import naming_wrong_ids
from keras_small.survey.on_backends import compiled

# Runs on inputs of the same shapes before compiling, which takes as long as a few runs, pays.
_EAGER_RUNS = 4
# So many runs are compiled from the first one on.
COMPILED_RUNS = 2 * _EAGER_RUNS
# Of many shapes, such as those of texts of many lengths, only the first ones are compiled at once.
_SHAPES_AT_ONCE = 2


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
        self._at_once = runs >= COMPILED_RUNS or keras.backend.backend() == "jax"
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
        if self._compiled is not None and (at_once or self._runs[shapes] > _EAGER_RUNS):
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

    def _named_for_graphs(self, inputs: Any) -> Any:
        with rename_for_graphs(self._model):
            return self._call(inputs)
