"""Measures how a model's outputs change with those of its layers: by gradients, and by noise.

The changes are before the activation of a layer if it has one. Outputs that are probabilities count
by their logarithms, less the mean of these.
"""

import abc
import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.survey.kinds import is_table
from keras_small.survey.on_backends import gradients
from keras_small.survey.running import Runner, numbers_of
from keras_small.survey.watching import Call, map_floats, watch_calls
from keras_tnattn.typing import Tensor

# Added to each probability before its logarithm is taken.
ADDED_PROBABILITY = 1e-7
# For embeddings with more features all directions of the rows count alike.
MAXIMUM_FEATURES = 256
# The size of noise, relative to a layer's outputs.
_NOISE_SHARE = 0.05
# Random signs, which repeat after a prime number of entries.
_SIGNS = 65521
# How many signs later the noise of a layer's next call begins.
_SIGNS_BETWEEN_CALLS = 7919


class _Changes(abc.ABC):
    """Runs a model whose layers' outputs are changed.

    Args:
        model: The model.
        layers: The layers, by path.
        in_logs: Whether the logarithms of each output count.
        runs: About how many runs there will be.
    """

    def __init__(
        self,
        model: keras.layers.Layer,
        layers: Mapping[str, keras.layers.Layer],
        in_logs: Sequence[bool],
        runs: int = 0,
    ) -> None:
        self._model = model
        self._layers = layers
        self._in_logs = in_logs
        self._run = Runner(model, self._changed, runs)

    @abc.abstractmethod
    def _changed(self, inputs: Any) -> Any:
        """Returns what a run computes, for the inputs of the runner."""

    def _outputs_with(self, change: Callable[[str, Tensor], Tensor], batch: Any) -> list[Tensor]:
        """Returns the outputs that count, with the outputs of each layer changed."""

        def watch(path: str, _call: Call, outputs: Any) -> Any:
            return map_floats(functools.partial(change, path), outputs)

        with watch_calls(self._layers, watch, before_activation=True) as failures:
            outputs = self._model(batch, training=False)
        self._run.check_failures(failures)
        pairs = zip(numbers_of(outputs), self._in_logs, strict=True)
        return [_comparable_tensor(x, in_log) for x, in_log in pairs]


class Noise(_Changes):
    """Adds noise to the outputs of some layers at once.

    Args:
        model, layers, in_logs: As for `Gradients`.
        batch: The inputs.
    """

    def __init__(
        self,
        model: keras.layers.Layer,
        layers: Mapping[str, keras.layers.Layer],
        in_logs: Sequence[bool],
        batch: Any,
    ) -> None:
        super().__init__(model, layers, in_logs)
        self._batch = batch
        random = np.random.default_rng(0)
        # Signs are as good as normal numbers, which JAX compiles for seconds. Each layer begins at
        # another one, so that the noise of one layer tells nothing of that of another.
        self._signs = random.choice((-1.0, 1.0), size=_SIGNS).astype("float32")
        self._first_signs = dict(
            zip(layers, random.integers(_SIGNS, size=len(layers)), strict=True)
        )

    @functools.cached_property
    def _before(self) -> list[np.ndarray]:
        return self._with_noise(())

    def change(self, paths: Sequence[str]) -> float:
        """Returns the relative change of the outputs for noise of the size of the layers' outputs.

        It is 0 for a model that fails with noise, because it reads rows by floats, say.
        """
        before = self._before
        try:
            after = self._with_noise(paths)
        except MemoryError:
            raise
        except Exception:  # each backend has its own
            return 0.0
        size = math.hypot(*(np.linalg.norm(x) for x in before))
        pairs = zip(after, before, strict=True)
        change = math.hypot(*(np.linalg.norm(x - y) for x, y in pairs))
        return change / (_NOISE_SHARE * (size or 1.0))

    def _with_noise(self, paths: Sequence[str]) -> list[np.ndarray]:
        shares = {path: np.float32(_NOISE_SHARE * (path in paths)) for path in self._layers}
        return self._run([self._batch, shares, self._signs])

    def _changed(self, inputs: Any) -> list[Tensor]:
        batch, shares, signs = inputs
        calls: Counter[str] = Counter()

        def noisy(path: str, tensor: Tensor) -> Tensor:
            x = ops.cast(tensor, "float32")
            size = ops.sqrt(ops.mean(ops.square(x)))
            first = self._first_signs[path] + calls[path] * _SIGNS_BETWEEN_CALLS
            calls[path] += 1
            noise = ops.reshape(_repeated(signs, ops.size(x), first % _SIGNS), ops.shape(x))
            return ops.cast(x + shares[path] * size * noise, tensor.dtype)

        return self._outputs_with(noisy, batch)


class Gradients(_Changes):
    """Estimates by gradients how much noise on each layer changes the outputs, over many batches.

    Args:
        model: The model.
        layers: The layers, by path.
        in_logs: Whether the logarithms of each output count.
        runs: About how many batches there will be.

    Attributes:
        responses: The mean of `J^T J` for a row of each embedding, not scaled.
    """

    def __init__(
        self,
        model: keras.layers.Layer,
        layers: Mapping[str, keras.layers.Layer],
        in_logs: Sequence[bool],
        runs: int,
    ) -> None:
        super().__init__(model, layers, in_logs, runs)
        self._random = np.random.default_rng(0)
        self._paths: list[str] = []
        self._squared_size = 0.0
        # For noise of the size of the layer's outputs.
        self._squared_changes = dict.fromkeys(layers, 0.0)
        self.responses: dict[str, np.ndarray] = {}

    @property
    def sensitivities(self) -> dict[str, float]:
        """The relative change of the outputs for noise of the size of each layer's outputs."""
        size = math.sqrt(self._squared_size) or 1.0
        return {path: math.sqrt(x) / size for path, x in self._squared_changes.items()}

    def add(self, batch: Any) -> None:
        """Adds the changes for a random direction of the outputs of a batch."""
        signs = self._random.choice((-1.0, 1.0), size=_SIGNS).astype("float32")
        found = self._run.nested([batch, signs])
        self._squared_size += float(found["size"])
        for path, change in zip(self._paths, found["changes"], strict=True):
            if not np.isfinite(change):
                raise ValueError("Expected finite gradients")
            self._squared_changes[path] += float(change)
        for path, response in found["responses"].items():
            self.responses[path] = self.responses.get(path, 0.0) + response

    def _changed(self, inputs: Any) -> dict[str, Any]:
        batch, signs = inputs

        def compute(note: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
            self._paths = []

            def pass_on(path: str, tensor: Tensor) -> Tensor:
                self._paths.append(path)
                return note(tensor)

            flat = self._outputs_with(pass_on, batch)
            joined = ops.concatenate([ops.reshape(x, (-1,)) for x in flat])
            number = ops.sum(joined * _repeated(signs, joined.shape[0]))
            return number, ops.sum(ops.square(joined))

        tensors, found, size = gradients(compute)
        pairs = [
            (ops.cast(x, "float32"), ops.cast(grad, "float32"))
            for x, grad in zip(tensors, found, strict=True)
        ]
        changes = [ops.mean(ops.square(x)) * ops.sum(ops.square(grad)) for x, grad in pairs]
        responses: dict[str, Any] = {}
        for path, (_, grad) in zip(self._paths, pairs, strict=True):
            layer = self._layers[path]
            if has_response(layer):
                rows = ops.reshape(grad, (-1, grad.shape[-1]))
                if rows.shape[-1] == layer.output_dim:  # those of logits are ids
                    response = ops.matmul(ops.transpose(rows), rows)
                    responses[path] = responses.get(path, 0.0) + response
        return {"changes": changes, "responses": responses, "size": size}


def _repeated(signs: Tensor, count: int, first: int = 0) -> Tensor:
    """Returns `count` signs from number `first` on; they repeat."""
    return ops.take(signs, (ops.arange(count, dtype="int32") + first) % _SIGNS)


def has_response(layer: keras.layers.Layer) -> bool:
    return is_table(layer) and layer.output_dim <= MAXIMUM_FEATURES


def _comparable_tensor(outputs: Tensor, in_log: bool) -> Tensor:
    """Returns the numbers that are compared: finite floats, or logarithms less their mean."""
    x = ops.cast(outputs, "float32")
    if in_log:
        x = ops.log(ops.maximum(x, 0.0) + ADDED_PROBABILITY)
        x = x - ops.mean(x, axis=-1, keepdims=True)
    return ops.where(ops.isfinite(x), x, 0.0)
