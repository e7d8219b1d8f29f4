"""Gradients on the backend that runs."""

import keras
import numpy as np
import pytest
from keras import ops


def gradients(function, arrays):
    """Returns the gradients of a scalar function by each of its array arguments."""
    tensors = [ops.convert_to_tensor(a) for a in arrays]
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        grads = tape.gradient(value, tensors)
    elif backend == "torch":
        import torch

        tensors = [x.requires_grad_() for x in tensors]
        grads = torch.autograd.grad(function(*tensors), tensors)
    else:
        import jax

        grads = jax.jit(jax.grad(function, argnums=tuple(range(len(tensors)))))(*tensors)
    return [ops.convert_to_numpy(g) for g in grads]


def central_difference(function, arguments, n, index, step=1e-6):
    """Returns the derivative of a scalar function by the entry `index` of its argument `n`.

    Args:
        function: Function of float64 arrays, returns a float.
        arguments: The arrays.
        n: Which argument.
        index: Which entry of it.
        step: By how much the entry is moved either way.
    """
    around = []
    for change in (step, -step):
        moved = [np.array(a, "float64") for a in arguments]
        moved[n][index] += change
        around.append(function(*moved))
    return (around[0] - around[1]) / (2 * step)


def check_gradients(function, oracle, arguments, most=None, abs=1e-3, step=1e-6):
    """Checks the gradients of a function by the finite differences of its oracle in NumPy.

    Of each argument at most `most` entries are looked at, by default all.
    """
    grads = gradients(function, [np.asarray(x, "float32") for x in arguments])
    for n, grad in enumerate(grads):
        for index in list(np.ndindex(grad.shape))[:: -(-grad.size // (most or grad.size))]:
            expected = central_difference(oracle, arguments, n, index, step)
            assert grad[index] == pytest.approx(expected, rel=1e-3, abs=abs)


def weight_gradients(model, value):
    """Returns the value of `value(call)` and its gradients by the trainable weights of a model.

    Args:
        model: A built model.
        value: Function of a callable in place of the model, returns a scalar.
    """
    backend = keras.backend.backend()
    variables = [v.value for v in model.trainable_variables]
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            result = value(model)
        grads = tape.gradient(result, variables, unconnected_gradients="zero")
        # The gradient of an embedding is a list of rows.
        grads = [tf.convert_to_tensor(g) for g in grads]
    elif backend == "torch":
        import torch

        result = value(model)
        grads = torch.autograd.grad(result, variables, materialize_grads=True)
    else:
        import jax

        rest = [v.value for v in model.non_trainable_variables]

        def function(variables):
            return value(lambda x: model.stateless_call(variables, rest, x)[0])

        result, grads = jax.jit(jax.value_and_grad(function))(variables)
    return ops.convert_to_numpy(result), [ops.convert_to_numpy(g) for g in grads]
