"""Watches the calls of a model's layers, and changes what they return."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.asked.data import number_of_rows
from keras_small.asked.errors import DataError, is_out_of_memory
from keras_tnattn.errors import cause_of


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
        return next(x for x in self._flat if isinstance(x, np.ndarray))

    @property
    def first_tensor(self) -> Any:
        """The first tensor of a call that was not converted."""
        return next(x for x in self._flat if ops.is_tensor(x) or isinstance(x, np.ndarray))

    @property
    def _flat(self) -> list[Any]:
        return keras.tree.flatten((self.args, dict(self.kwargs)))

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


def _as_array(value: Any) -> Any:
    return ops.convert_to_numpy(value) if ops.is_tensor(value) else value


def _is_float(value: Any) -> bool:
    return ops.is_tensor(value) and keras.backend.is_float_dtype(
        keras.backend.standardize_dtype(value.dtype)
    )


def floats_of(outputs: Any) -> list[Any]:
    """Returns the flattened outputs that are floating-point tensors."""
    return [x for x in keras.tree.flatten(outputs) if _is_float(x)]


def map_floats(function: Callable[[Any], Any], outputs: Any) -> Any:
    """Applies a function to each floating-point tensor of nested outputs."""
    return keras.tree.map_structure(lambda x: function(x) if _is_float(x) else x, outputs)


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
    layers: Mapping[str, keras.layers.Layer],
    watch: Callable[[str, Call, Any], Any],
    before_activation: bool = False,
) -> Iterator[dict[str, str]]:
    """Makes each layer return `watch(path, call, outputs)` instead of its outputs.

    Yields the layers for which this failed, such as those called in a compiled loop, by path, and
    why; they return their own outputs.

    Args:
        layers: The layers, by path.
        watch: The function.
        before_activation: Whether the outputs are those before the activation with which a layer
            ends; the activation follows. Defaults to `False`.
    """
    failures: dict[str, str] = {}
    activations = {path: _last_activation(x) for path, x in layers.items() if before_activation}

    def watched(path: str, call: Callable[..., Any]) -> Callable[..., Any]:
        activation = activations.get(path)

        def watched_call(*args: Any, **kwargs: Any) -> Any:
            outputs = call(*args, **kwargs)
            if path not in failures:
                try:
                    outputs = watch(path, Call(args, kwargs), outputs)
                except Exception as error:
                    failures[path] = reason_to_keep(error)
            return outputs if activation is None else activation(outputs)

        return watched_call

    with contextlib.ExitStack() as stack:
        for path, layer in layers.items():
            if activations.get(path) is not None:
                stack.enter_context(with_activation(layer, keras.activations.linear))
            layer.call = watched(path, layer.call)
        try:
            yield failures
        except DataError as error:  # to which Keras has added the arguments of the call
            raise DataError(cause_of(error)) from error
        finally:
            for layer in layers.values():
                del layer.call


def _last_activation(layer: keras.layers.Layer) -> Callable[[Any], Any] | None:
    """Returns the activation with which a layer of a known kind ends; recurrent ones have none."""
    last = getattr(layer, "outer", layer)
    return None if isinstance(last, keras.layers.RNN) else getattr(last, "activation", None)


def reason_to_keep(error: Exception) -> str:
    """Returns why a layer stays for which something failed, other than memory or the data."""
    if isinstance(error, MemoryError | DataError) or is_out_of_memory(error):
        raise error
    return f"cannot be watched or replaced ({type(error).__name__}: {cause_of(error)})"
