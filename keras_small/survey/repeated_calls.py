"""Runs a model many times, compiled once this pays."""

import collections
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

# Runs on inputs of the same shapes before compiling, which takes as long as a few runs, pays.
_EAGER_RUNS = 4


class Runner:
    """Returns the flattened outputs of a model at inference, without a change of its variables.

    A stateful recurrent layer, say, changes its state in each call. What cannot be compiled runs
    step by step.

    Args:
        model: The model, whose weights may be set between two runs.
        call: Function from the inputs to the outputs. Default: a call of the model.
        runs: About how many runs there will be. Many are compiled from the first one on.
    """

    def __init__(
        self, model: keras.layers.Layer, call: Callable[[Any], Any] | None = None, runs: int = 0
    ) -> None:
        self._model = model
        self._call = call or (lambda inputs: model(inputs, training=False))
        self._first = 0 if runs >= 2 * _EAGER_RUNS else _EAGER_RUNS
        self._runs: dict[tuple, int] = collections.Counter()
        self._compiled: keras.Model | None = None
        self._compiles = keras.backend.backend() == "tensorflow"

    def __call__(self, inputs: Any) -> list[np.ndarray]:
        arrays = keras.tree.flatten(inputs)
        shapes = tuple((np.shape(x), str(getattr(x, "dtype", ""))) for x in arrays)
        self._runs[shapes] += 1
        if self._compiles and self._runs[shapes] > self._first:
            self._compiled = self._compiled or _Inference(self._model, self._call)
            try:
                with keras.StatelessScope():
                    return self._compiled.predict_on_batch(inputs)
            except Exception:  # whatever a layer's own code raises
                self._compiles = False
        with keras.StatelessScope():
            outputs = keras.tree.flatten(self._call(inputs))
        return [ops.convert_to_numpy(output) for output in outputs]


class _Inference(keras.Model):
    """A model of the flattened outputs of another one."""

    def __init__(self, model: keras.layers.Layer, function: Callable[[Any], Any]) -> None:
        super().__init__(name="inference", dtype=model.dtype_policy)
        self.model = model
        self.function = function
        self.compile(jit_compile=False)  # XLA takes longer to compile than it saves

    def call(self, inputs: Any) -> list[Any]:
        from keras_small.survey.graph_names import rename_for_graphs

        with rename_for_graphs(self.model):
            return keras.tree.flatten(self.function(inputs))
