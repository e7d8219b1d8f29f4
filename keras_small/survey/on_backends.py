"""Compiled runs, and gradients by what the layers of a model return, on each backend.

`keras.ops` has neither, so this is the one module of the package with a part for each backend.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_tnattn.typing import Tensor


def compiled(
    function: Callable[[Any], Any], variables: Sequence[keras.Variable]
) -> Callable[[Any], Any] | None:
    """Returns a function from inputs to a structure of tensors, compiled for each of their shapes.

    Args:
        function: The function. It must not change the variables.
        variables: The variables that it reads.

    Returns:
        The compiled function, or `None` on PyTorch, where compiling does not pay.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        # XLA would take longer to compile than it saves.
        traced = tf.function(function, autograph=False)
        return lambda inputs: traced(keras.tree.map_structure(tf.convert_to_tensor, inputs))
    if backend == "jax":
        import jax

        @jax.jit
        def stateless(values: Sequence[Tensor], inputs: Any) -> Any:
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                return function(inputs)

        return lambda inputs: stateless([v.value for v in variables], inputs)
    return None


def run_through(function: Callable[[Any], Any], inputs: Any) -> None:
    """Calls a function of tensors for what it notes on the way.

    JAX computes nothing where it need not: it would compile each operation for these shapes. The
    function may then be called twice.
    """
    if keras.backend.backend() == "jax":
        import jax

        with contextlib.suppress(Exception):  # of code that needs numbers, or of a fault of its own
            jax.eval_shape(lambda tensors: (function(tensors), None)[1], inputs)
            return
    function(inputs)


# Calls its argument with each tensor that counts, and goes on with what it returns.
Compute = Callable[[Callable[[Tensor], Tensor]], tuple[Tensor, Any]]


def gradients(compute: Compute) -> tuple[list[Tensor], list[Tensor], Any]:
    """Returns the tensors that a computation goes through, and its gradients by them.

    Args:
        compute: Function that passes tensors to its argument, goes on with the results, and returns
            a number, and anything else. It may be called twice.

    Returns:
        The tensors in the order in which they were passed; the gradients, which are zeros by
        tensors on which the number does not depend; and what else was returned.

    Example:
        >>> import keras
        >>> from keras_small.survey.on_backends import gradients
        >>> x = keras.ops.convert_to_tensor([2.0, 3.0])
        >>> _, found, _ = gradients(lambda note: (keras.ops.sum(note(x) ** 2), None))
        >>> [float(value) for value in found[0]]
        [4.0, 6.0]
    """
    return _BACKENDS[keras.backend.backend()](compute)


def _with_tensorflow(compute: Compute) -> tuple[list[Tensor], list[Tensor], Any]:
    import tensorflow as tf

    tensors: list[Tensor] = []
    with tf.GradientTape(watch_accessed_variables=False) as tape:

        def note(tensor: Tensor) -> Tensor:
            tensor = tf.identity(tensor)
            tape.watch(tensor)
            tensors.append(tensor)
            return tensor

        number, others = compute(note)
    return tensors, tape.gradient(number, tensors, unconnected_gradients="zero"), others


def _with_torch(compute: Compute) -> tuple[list[Tensor], list[Tensor], Any]:
    import torch

    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            tensor = tensor.detach().requires_grad_()
        tensors.append(tensor)
        return tensor

    with torch.enable_grad():
        number, others = compute(note)
        found = torch.autograd.grad(number, tensors, allow_unused=True)
    pairs = zip(tensors, found, strict=True)
    return tensors, [torch.zeros_like(x) if grad is None else grad for x, grad in pairs], others


def _with_jax(compute: Compute) -> tuple[list[Tensor], list[Tensor], Any]:
    import jax

    specs: list[Any] = []

    def note_spec(tensor: Tensor) -> Tensor:
        specs.append((tensor.shape, tensor.dtype))
        return tensor

    jax.eval_shape(lambda: compute(note_spec))

    def shifted(shifts: Sequence[Tensor]) -> tuple[Tensor, Any]:
        tensors: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            shift = shifts[len(tensors)]
            tensors.append(tensor)
            return tensor + shift

        number, others = compute(note)
        return number, (tensors, others)

    zeros = [ops.zeros(shape, dtype) for shape, dtype in specs]
    found, (tensors, others) = jax.grad(shifted, has_aux=True)(zeros)
    return tensors, found, others


_BACKENDS = {"tensorflow": _with_tensorflow, "torch": _with_torch, "jax": _with_jax}
