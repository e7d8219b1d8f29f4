"""The inputs of a model: their specs, and examples of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_small.survey.graph_names import flat_layers
from keras_tnattn.typing import Tensors

_WORD_LAYERS = (
    keras.layers.StringLookup,
    keras.layers.IntegerLookup,
    keras.layers.TextVectorization,
    keras.layers.Hashing,
    keras.layers.HashedCrossing,
)


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


def check_numeric(model: keras.Model, example: Any) -> None:
    """Raises a `ValueError` that says where to cut a model of strings or of tables of words."""
    operations = (
        model.layers if isinstance(model, keras.Sequential) else getattr(model, "operations", ())
    )
    texts = [x for x in operations if _needs_words(x)]
    names = [x.name for x in texts] or [
        x.name for x in flat_layers(model) if isinstance(x, _WORD_LAYERS)
    ]
    kinds = {np.asarray(x).dtype.kind for x in keras.tree.flatten(example)}
    if not names and not kinds & set("OSU"):
        return
    writing = [x for x in texts if getattr(x, "invert", False) or _has_strings(x, "output")]
    starts = [x for x in texts if x not in writing]
    read = {id(tensor) for x in starts for tensor in _tensors(x, "input")}
    starts += [x for x in operations if _is_input(x) and id(x.output) not in read]
    starts = [x for x in starts if not _has_strings(x, "output")]
    way = "the model from its first numbers on"
    if all(_tensors(x, "output") for x in texts) and starts:
        inputs = ", ".join(f"model.get_layer({x.name!r}).output" for x in starts)
        outputs = ", ".join(f"model.get_layer({x.name!r}).input" for x in writing)
        way = f"keras.Model([{inputs}], {f'[{outputs}]' if outputs else 'model.outputs'})"
    raise ValueError(
        "Expected numbers only, because only a SavedModel has strings and tables of words: export "
        f"{way}. Received: {' and '.join(names) or 'inputs of strings'} in {model.name}"
    )


def _needs_words(operation: Any) -> bool:
    """Whether an operation reads or makes strings, or looks something up in a table of words."""
    layers = flat_layers(operation) if isinstance(operation, keras.layers.Layer) else ()
    if any(isinstance(x, _WORD_LAYERS) for x in layers):
        return True
    kinds = ("input", "output")
    return not _is_input(operation) and any(_has_strings(operation, kind) for kind in kinds)


def _is_input(operation: Any) -> bool:
    return isinstance(operation, keras.layers.InputLayer)


def _has_strings(operation: Any, kind: str) -> bool:
    return any(tensor.dtype == "string" for tensor in _tensors(operation, kind))


def _tensors(operation: Any, kind: str) -> list[keras.KerasTensor]:
    """Returns the inputs or outputs of an operation, or none if it has several calls."""
    try:
        return keras.tree.flatten(getattr(operation, kind))
    except (AttributeError, ValueError):
        return []


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
