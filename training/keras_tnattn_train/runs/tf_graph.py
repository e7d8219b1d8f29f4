"""Reads the graph of a SavedModel as a Keras model: dense layers, convolutions and embeddings.

A SavedModel has operations and no layers. Products with constant matrices, convolutions with
constant kernels and rows of constant tables become layers, which `compress` can replace; all
other operations become those of `keras.ops`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn_runtime.extras import installation
from keras_tnattn_train.options.errors import InputError

_WAY_OUT = "Save the model with model.save('model.keras') where it was made"


def _pool(pooling: type[keras.layers.Layer]) -> Callable[..., Any]:
    def pool(op: Any, x: Any) -> Any:
        size, strides = (tuple(op.get_attr(name)[1:3]) for name in ("ksize", "strides"))
        return pooling(size, strides, op.get_attr("padding").decode().lower())(x)

    return pool


def _axes(reduce: Callable[..., Any]) -> Callable[..., Any]:
    return lambda op, x, axes: reduce(
        x, tuple(np.ravel(axes).tolist()), keepdims=op.get_attr("keep_dims")
    )


def _strided_slice(op: Any, x: Any, begin: Any, end: Any, strides: Any) -> Any:
    masks = {name: op.get_attr(f"{name}_mask") for name in ("begin", "end", "shrink_axis")}
    if op.get_attr("ellipsis_mask") or op.get_attr("new_axis_mask"):
        raise NotImplementedError
    key: list[Any] = []
    for n, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        low, high = (
            None if masks[side] >> n & 1 else int(value)
            for side, value in (("begin", first), ("end", last))
        )
        key.append(int(first) if masks["shrink_axis"] >> n & 1 else slice(low, high, int(step)))
    return x[tuple(key)]


def _same(op: Any, x: Any, *others: Any) -> Any:
    return x


# By the name of TensorFlow's operation, a function of the operation and its inputs.
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "AddV2": lambda op, x, y: ops.add(x, y),
    "AvgPool": _pool(keras.layers.AveragePooling2D),
    "BiasAdd": lambda op, x, y: ops.add(x, y),
    "Cast": lambda op, x: ops.cast(x, op.outputs[0].dtype.name),
    "ConcatV2": lambda op, *xs: ops.concatenate(xs[:-1], axis=int(xs[-1])),
    "Elu": lambda op, x: ops.elu(x),
    "Erfc": lambda op, x: ops.subtract(1.0, ops.erf(x)),
    "Exp": lambda op, x: ops.exp(x),
    "ExpandDims": lambda op, x, axis: ops.expand_dims(x, int(axis)),
    "GatherV2": lambda op, x, places, axis: np.take(x, places, int(axis)),
    "Identity": _same,
    "LeakyRelu": lambda op, x: ops.leaky_relu(x, op.get_attr("alpha")),
    "Max": _axes(ops.max),
    "MaxPool": _pool(keras.layers.MaxPooling2D),
    "Maximum": lambda op, x, y: ops.maximum(x, y),
    "Mean": _axes(ops.mean),
    "Minimum": lambda op, x, y: ops.minimum(x, y),
    "Mul": lambda op, x, y: ops.multiply(x, y),
    "Neg": lambda op, x: ops.negative(x),
    "Pack": lambda op, *xs: np.stack(xs, op.get_attr("axis")),
    "Prod": lambda op, x, axes: -1 if np.min(x, initial=0) < 0 else np.prod(x),  # of sizes
    "RealDiv": lambda op, x, y: ops.divide(x, y),
    "Relu": lambda op, x: ops.relu(x),
    "Relu6": lambda op, x: ops.relu6(x),
    "Reshape": lambda op, x, shape: ops.reshape(x, tuple(np.asarray(shape).tolist())),
    "Rsqrt": lambda op, x: ops.rsqrt(x),
    "Selu": lambda op, x: ops.selu(x),
    "Shape": lambda op, x: np.array([-1 if n is None else n for n in x.shape]),
    "Sigmoid": lambda op, x: ops.sigmoid(x),
    "Softmax": lambda op, x: ops.softmax(x),
    "Softplus": lambda op, x: ops.softplus(x),
    "Sqrt": lambda op, x: ops.sqrt(x),
    "Square": lambda op, x: ops.square(x),
    "SquaredDifference": lambda op, x, y: ops.square(ops.subtract(x, y)),
    "Squeeze": lambda op, x: ops.squeeze(x, tuple(op.get_attr("squeeze_dims")) or None),
    "StopGradient": _same,
    "StridedSlice": _strided_slice,
    "Sub": lambda op, x, y: ops.subtract(x, y),
    "Sum": _axes(ops.sum),
    "Tanh": lambda op, x: ops.tanh(x),
    "Transpose": lambda op, x, axes: ops.transpose(x, tuple(np.asarray(axes).tolist())),
}


def read_graph(folder: Path) -> keras.Model:
    """Returns the model of a SavedModel's signature `serving_default`; needs TensorFlow.

    Raises:
        InputError: If the graph has an operation that is not one of a dense layer, a convolution,
            an embedding, or of those around them.
    """
    try:
        import tensorflow as tf
        from tensorflow.python.framework import convert_to_constants
    except ImportError as error:
        raise InputError(
            f"Expected TensorFlow, which reads SavedModels. Received: {folder}, and {error}. "
            f"{installation('tensorflow')}"
        ) from error

    loaded = tf.saved_model.load(folder)
    if "serving_default" not in loaded.signatures:
        raise InputError(
            f"Expected a SavedModel with a signature serving_default. Received: {folder}. "
            f"{_WAY_OUT}"
        )
    function = convert_to_constants.convert_variables_to_constants_v2(
        loaded.signatures["serving_default"]
    )
    values: dict[str, Any] = {}
    inputs = {x.name: keras.Input(x.shape[1:], dtype=x.dtype.name) for x in function.inputs}
    values |= inputs
    for op in function.graph.get_operations():
        if op.type in ("Placeholder", "NoOp"):
            continue
        try:
            values[op.outputs[0].name] = _value(op, values)
        except (KeyError, NotImplementedError, ValueError, TypeError) as error:
            raise InputError(
                "Expected a SavedModel of dense layers, convolutions and embeddings. Received: "
                f"{folder}, with the operation {op.type} ({op.name}). {_WAY_OUT}"
            ) from error
    outputs = [values[x.name] for x in function.outputs]
    model = keras.Model(_single(list(inputs.values())), _single(outputs))
    if not _agrees(model, function):
        raise InputError(
            "Expected a SavedModel of dense layers, convolutions and embeddings. Received: "
            f"{folder}, whose outputs for random inputs its layers do not have. {_WAY_OUT}"
        )
    return model


def _agrees(model: keras.Model, function: Any) -> bool:
    """Returns whether a model has the outputs of a function for two rows of random inputs."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    rows = []
    for x in function.inputs:
        shape = (2, *(size or 8 for size in x.shape[1:]))
        # Ids below 0 count from the end in a table, unless a model does something else with them.
        array = rng.integers(-1, 2, shape) if x.dtype.is_integer else rng.normal(size=shape)
        rows.append(array.astype(x.dtype.as_numpy_dtype))
    expected = tf.nest.flatten(function(*map(tf.constant, rows)))
    actual = keras.tree.flatten(model(_single(rows), training=False))
    pairs = zip(expected, map(ops.convert_to_numpy, actual), strict=True)
    return all(
        x.shape == y.shape and np.allclose(x, y, rtol=1e-3, atol=1e-5, equal_nan=True)
        for x, y in pairs
    )


def _single(tensors: list[Any]) -> Any:
    return tensors[0] if len(tensors) == 1 else tensors


def _value(op: Any, values: dict[str, Any]) -> Any:
    import tensorflow as tf

    if op.type == "Const":
        return tf.make_ndarray(op.get_attr("value"))
    xs = [values[x.name] for x in op.inputs]
    makes = _LAYERS.get(op.type)
    if makes and isinstance(xs[0], keras.KerasTensor) != isinstance(xs[1], keras.KerasTensor):
        return makes(op, *xs)
    if op.type == "SelectV2" and _is_below_zero(op.inputs[0].op, values):
        return xs[2]  # ids below 0, which count from the end in a table
    if op.type == "Less":
        return None
    result = _OPERATIONS[op.type](op, *xs)
    is_symbolic = isinstance(result, keras.KerasTensor)
    return result if is_symbolic else ops.convert_to_numpy(result)


def _is_below_zero(op: Any, values: dict[str, Any]) -> bool:
    is_of_ids = op.type == "Less" and op.inputs[0].dtype.is_integer
    return is_of_ids and np.array_equal(values[op.inputs[1].name], 0)


def _layer(layer: keras.layers.Layer, x: Any, *weights: np.ndarray) -> Any:
    result = layer(x)
    layer.set_weights(weights)
    return result


_TRANSPOSED = {"MatMul": ("transpose_a", "transpose_b"), "BatchMatMulV2": ("adj_x", "adj_y")}


def _dense(op: Any, x: Any, kernel: Any) -> Any:
    first, transposed = _TRANSPOSED[op.type]
    if op.get_attr(first):
        raise NotImplementedError
    kernel = kernel.T if op.get_attr(transposed) else kernel
    return _layer(keras.layers.Dense(kernel.shape[1], use_bias=False), x, kernel)


def _convolution(op: Any, x: Any, kernel: Any) -> Any:
    options = {
        "strides": tuple(op.get_attr("strides")[1:3]),
        "padding": op.get_attr("padding").decode().lower(),
        "dilation_rate": tuple(op.get_attr("dilations")[1:3]),
        "use_bias": False,
    }
    if op.get_attr("data_format") != b"NHWC":
        raise NotImplementedError
    if op.type == "Conv2D":
        layer = keras.layers.Conv2D(kernel.shape[3], kernel.shape[:2], **options)
    else:
        options["depth_multiplier"] = kernel.shape[3]
        layer = keras.layers.DepthwiseConv2D(kernel.shape[:2], **options)
    return _layer(layer, x, kernel)


def _embedding(op: Any, table: Any, ids: Any, axis: Any) -> Any:
    if table.ndim != 2 or axis != 0:
        raise NotImplementedError
    return _layer(keras.layers.Embedding(*table.shape), ids, table)


_LAYERS: dict[str, Callable[..., Any]] = {
    "BatchMatMulV2": _dense,
    "Conv2D": _convolution,
    "DepthwiseConv2dNative": _convolution,
    "GatherV2": _embedding,
    "MatMul": _dense,
}
