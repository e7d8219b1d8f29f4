"""What a model takes: the specs of its inputs, and examples of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_tnattn.typing import Tensors


def symbolic_inputs(model: keras.Model) -> Any:
    """Returns the symbolic inputs of a model, or `None` if it has none."""
    # Keras knows no `input` of a Sequential model that was loaded and never called symbolically.
    try:
        return model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    except (AttributeError, ValueError, TypeError, IndexError):
        return None


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
        name, dtype = "_".join(map(str, path)) or "inputs", np.asarray(array).dtype.name
        if tensor is not None:
            name, dtype = tensor.name, tensor.dtype
        if not fixed:
            ids = len(shape) == 2 and np.asarray(array).dtype.kind in "iu"
            free = (None,) if ids else shape[1:]
            shape = (None, *(free if tensor is None else tensor.shape[1:]))
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
        example = {name: example[name] for name in inputs}
    elif isinstance(example, Mapping):
        flat = keras.tree.flatten(inputs)
        by_name = [example.get(x.name) for x in flat]
        example = keras.tree.pack_sequence_as(inputs, by_name)
    return keras.tree.map_structure(lambda x, array: np.asarray(array, x.dtype), inputs, example)


def _random(rng: np.random.Generator, tensor: keras.KerasTensor) -> np.ndarray:
    shape = (2, *(size or 8 for size in tensor.shape[1:]))
    if keras.backend.is_float_dtype(tensor.dtype):
        return rng.normal(size=shape).astype(tensor.dtype)
    return rng.integers(0, 2, shape).astype(tensor.dtype)


def examples_of(model: keras.Model, example: Tensors) -> list[Any]:
    """Returns the example, and one of other sizes where the sizes are free."""
    specs = keras.tree.flatten(specs_of(model, example))
    arrays = keras.tree.flatten(example)
    other = []
    for spec, array in zip(specs, arrays, strict=True):
        array = np.concatenate([array, array[:1]])
        if len(spec.shape) > 1 and spec.shape[1] is None:
            array = np.concatenate([array, array[:, -1:]], axis=1)
        other.append(array)
    second = keras.tree.pack_sequence_as(example, other)
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
