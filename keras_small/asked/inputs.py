"""The inputs that a model takes: their number, shapes and names, and examples of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_small.asked.data import Data, are_arrays, inputs_and_labels
from keras_tnattn.typing import Tensors


def check_model(model: Any) -> None:
    """Refuses what is no model of Keras, or one without weights."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"Expected a keras.Model of the backend {keras.backend.backend()}. "
            f"Received: model={model!r}"
        )
    if not model.built or not model.weights:
        raise ValueError(
            "Expected a built model with weights: call it on data, or give it an Input. "
            f"Received: model={model.name}"
        )


def symbolic_inputs(model: keras.Model) -> Any:
    """Returns the symbolic inputs of a model, or `None` if it has none."""
    # Keras knows no `input` of a Sequential model that was loaded and never called symbolically.
    try:
        return model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    except (AttributeError, ValueError, TypeError, IndexError):
        return None


def number_of_inputs(model: keras.Model) -> int | None:
    """Returns the number of arrays that a built model takes, or `None` if that is not known."""
    inputs = getattr(model, "inputs", None)
    if inputs is not None:
        return len(inputs)
    return _number_of_shapes((model.get_build_config() or {}).get("input_shape"))


def _number_of_shapes(shapes: Any) -> int | None:
    if not shapes:
        return None
    if isinstance(shapes, dict):
        return len(shapes)
    return 1 if all(size is None or isinstance(size, int) for size in shapes) else len(shapes)


def fixed_rows(model: keras.Model) -> int | None:
    """Returns the number of rows that each batch of a model must have, or `None` if any will do."""
    inputs = getattr(model, "inputs", None) or []
    return next((x.shape[0] for x in inputs if x.shape and x.shape[0] is not None), None)


def check_shapes(model: keras.Model, data: Data | None) -> None:
    """Refuses arrays without an axis of rows, and labels among the inputs of a model.

    Arrays of a model whose inputs are not known, dicts and batches are left to the model.

    Raises:
        ValueError: If the arrays cannot be what the model reads.
    """
    tensors = getattr(model, "inputs", None)
    if data is None or not tensors or not are_arrays(data.inputs):
        return
    inputs, labels = inputs_and_labels(data.inputs, len(tensors))
    if isinstance(inputs, dict):
        return
    arrays = keras.tree.flatten(inputs)
    shapes = [tuple(getattr(array, "shape", ())) for array in arrays]
    expected = [tuple(tensor.shape) for tensor in tensors]
    if all(len(shape) == len(full) - 1 for shape, full in zip(shapes, expected, strict=True)):
        raise ValueError(
            f"Expected data with a row for each sample, of shape {_text(expected)}. Received: data "
            f"of shape {_text(shapes)}, a single row. Pass several rows, or data[None] for this one"
        )
    are_pair = isinstance(data.inputs, tuple) and labels is None and len(tensors) == 2
    if are_pair and not _fits(shapes[1], expected[1]):
        raise ValueError(
            f"Expected an array for each of the 2 inputs, of shape {_text(expected)}. Received: a "
            f"tuple of arrays of shape {_text(shapes)}. Pass labels, which are not used, as "
            "((first, second), labels)"
        )
    rows = shapes[0][0] if shapes[0] else None
    given = keras.tree.flatten(labels)[0] if labels is not None else None
    if given is not None and hasattr(given, "__len__") and len(given) != rows:
        raise ValueError(
            "Expected as many labels as rows, or inputs alone. Received: a tuple of "
            f"{rows} rows and {len(given)} labels"
        )


def _fits(shape: Sequence[int], expected: Sequence[int | None]) -> bool:
    pairs = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(n is None or m == n for m, n in pairs)


def _text(shapes: Sequence[Any]) -> str:
    return " and ".join(map(str, shapes))


def example_inputs(model: keras.Model) -> Any:
    """Returns one row of inputs that a model takes: random numbers, ids 0, empty texts.

    `None` if the shapes of the inputs are not known.
    """
    specs = symbolic_inputs(model)
    if specs is None:
        shape = (model.get_build_config() or {}).get("input_shape")
        if not shape or not all(size is None or isinstance(size, int) for size in shape):
            return None
        specs = keras.KerasTensor(shape)
    return keras.tree.map_structure(_example, specs)


def _example(spec: Any) -> np.ndarray:
    rows = spec.shape[0] or 1  # stateful recurrent layers have a fixed number of rows
    shape = [rows, *(size or 8 for size in spec.shape[1:])]
    if spec.dtype == "string":
        return np.full(shape, "")
    if keras.backend.is_float_dtype(spec.dtype):
        return np.random.default_rng(0).normal(size=shape).astype("float32")
    return np.zeros(shape, spec.dtype)


def specs_of(
    model: keras.Model, example: Tensors, length: int | None = None, fixed: bool = False
) -> Any:
    """Returns the specs of the model's inputs: of any batch size and length, or of the example's.

    A model without symbolic inputs takes inputs like the example, integers of any length.
    """
    inputs = symbolic_inputs(model)
    pairs = keras.tree.flatten_with_path(example)
    symbolic = [None] * len(pairs) if inputs is None else keras.tree.flatten(inputs)
    specs = []
    for (path, array), tensor in zip(pairs, symbolic, strict=True):
        shape = tuple(np.shape(array))
        name = "_".join(map(str, path)) or "inputs"
        dtype = np.asarray(array).dtype.name
        if tensor is not None:
            name = tensor.name
            dtype = tensor.dtype
        if not fixed:
            are_ids = len(shape) == 2 and np.asarray(array).dtype.kind in "iu"
            sizes = (None,) if are_ids else shape[1:]
            if tensor is not None:
                sizes = tensor.shape[1:]
            shape = (None, *sizes)
        if length is not None:
            shape = (shape[0], length, *shape[2:])
        specs.append(keras.InputSpec(dtype=dtype, shape=shape, name=name))
    return keras.tree.pack_sequence_as(example, specs)


def example_of(model: keras.Model, example: Tensors) -> Any:
    """Returns an example with the structure and the dtypes of the model's inputs."""
    inputs = symbolic_inputs(model)
    if example is None and inputs is None:
        raise ValueError(
            f"Expected an example of the inputs of {model.name}, which does not say what they are. "
            "Received: example=None"
        )
    if inputs is None:
        return keras.tree.map_structure(np.asarray, example)
    if example is None:
        rng = np.random.default_rng(0)
        return keras.tree.map_structure(lambda x: _random(rng, x), inputs)
    if isinstance(example, Mapping) and isinstance(inputs, Mapping):
        if set(inputs) - set(example):
            raise ValueError(f"Expected inputs {list(inputs)}. Received: inputs {list(example)}")
        example = {name: example[name] for name in inputs}
    elif isinstance(example, Mapping):
        names = [x.name for x in keras.tree.flatten(inputs)]
        if set(names) - set(example):
            raise ValueError(f"Expected inputs {names}. Received: inputs {list(example)}")
        example = keras.tree.pack_sequence_as(inputs, [example[name] for name in names])
    return keras.tree.map_structure(_as_array, inputs, example)


def _as_array(tensor: keras.KerasTensor, array: Any) -> np.ndarray:
    return np.asarray(array, None if tensor.dtype == "string" else tensor.dtype)


def _random(rng: np.random.Generator, tensor: keras.KerasTensor) -> np.ndarray:
    shape = (2, *(size or 8 for size in tensor.shape[1:]))
    if tensor.dtype == "string":
        return np.full(shape, "a text")
    if keras.backend.is_float_dtype(tensor.dtype):
        return rng.normal(size=shape).astype(tensor.dtype)
    return rng.integers(0, 2, shape).astype(tensor.dtype)


def examples_of(model: keras.Model, example: Tensors) -> list[Any]:
    """Returns the example, and one of other sizes where the sizes are free."""
    specs = keras.tree.flatten(specs_of(model, example))
    arrays = keras.tree.flatten(example)
    larger = []
    for spec, array in zip(specs, arrays, strict=True):
        array = np.concatenate([array, array[:1]])
        if len(spec.shape) > 1 and spec.shape[1] is None:
            array = np.concatenate([array, array[:, -1:]], axis=1)
        larger.append(array)
    second = keras.tree.pack_sequence_as(example, larger)
    try:
        model(second, training=False)
    except Exception:  # a model of one size, which raises errors of any class
        return [example]
    return [example, second]


def common_specs(examples: Sequence[Mapping[str, np.ndarray]]) -> dict[str, keras.InputSpec]:
    """Returns specs whose sizes are free where they differ in two examples."""
    specs = {}
    for name, array in examples[0].items():
        sizes = zip(array.shape, examples[1][name].shape, strict=True)
        shape = tuple(a if a == b else None for a, b in sizes)
        specs[name] = keras.InputSpec(array.dtype.name, shape, name=name)
    return specs
