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
