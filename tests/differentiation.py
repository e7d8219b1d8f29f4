"""Gradients on the backend that runs."""

import keras
import numpy as np
from keras import ops


def gradients(function, arrays):
    """Returns the gradients of a scalar function by each of its array arguments."""
    tensors = [ops.convert_to_tensor(a) for a in arrays]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        grads = tape.gradient(value, tensors)
    else:
        import jax

        grads = jax.grad(function, argnums=tuple(range(len(tensors))))(*tensors)
    return [np.asarray(g) for g in grads]


def weight_gradients(model, value):
    """Returns the value of `value(call)` and its gradients by the trainable weights of a model.

    Args:
        model: A built model.
        value: Function of a callable in place of the model, returns a scalar.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        variables = [v.value for v in model.trainable_variables]
        with tf.GradientTape() as tape:
            result = value(model)
        grads = tape.gradient(result, variables, unconnected_gradients="zero")
        # The gradient of an embedding is a list of rows.
        return np.asarray(result), [np.asarray(tf.convert_to_tensor(g)) for g in grads]
    import jax

    rest = model.non_trainable_variables

    def function(variables):
        return value(lambda x: model.stateless_call(variables, [v.value for v in rest], x)[0])

    result, grads = jax.value_and_grad(function)([v.value for v in model.trainable_variables])
    return np.asarray(result), [np.asarray(g) for g in grads]
