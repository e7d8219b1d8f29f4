"""Base class of the layers of this package: it checks how a layer is called, in one place."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import keras

from keras_tnattn.checks import check_numbers, check_shapes, fitted_sizes
from keras_tnattn.layers.wrong_arguments import call_message, check_binding, check_known, usage
from keras_tnattn.ops.graph import check_edges

# Sizes of batch, tokens, target, source, sites and edges: they may differ from call to call.
_FREE = frozenset("BLTSNE")


class _ConstructorSignature:
    """Shows the arguments that a constructor hands on to that of its base as its own."""

    def __get__(self, layer: Any, kind: Any) -> inspect.Signature:
        if layer is not None:
            raise AttributeError("the signature of a layer is that of its call")
        return _whole_signature(kind)


class BaseLayer(keras.layers.Layer):
    """A layer that takes masks, and refuses wrong call arguments before it computes.

    Attributes:
        call_shapes: For each tensor among the call arguments its shape, as `check_shapes` reads it.
            A size is the same in all arguments, and sizes other than `B`, `L`, `T`, `S`, `N` and
            `E` are those for which the layer was built.
        fixes_sizes: Whether a built layer needs the sizes for which it was built.
    """

    call_shapes: ClassVar[Mapping[str, str]] = {}
    fixes_sizes: ClassVar[bool] = True
    __signature__: Any = _ConstructorSignature()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        check_binding(cls, args, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_known(type(self), BaseLayer, kwargs)
        super().__init__(*args, **kwargs)
        self.supports_masking = True
        self.build = _freezing_parts(self, self.build)  # type: ignore[has-type, method-assign]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kind: Any = type(self)
        signature = _call_signature(kind)
        # Keras drops `training` where a layer does not take it.
        keywords = {n: v for n, v in kwargs.items() if n != "training" or n in signature.parameters}
        try:
            arguments = signature.bind(self, *args, **keywords).arguments
        except TypeError as error:
            raise TypeError(call_message(kind, kwargs, str(error))) from None
        tensors = self._tensors({name: arguments.get(name) for name in self.call_shapes})
        check_numbers(tensors)
        check_shapes(tensors, self.call_shapes, self._built_sizes(), f". {usage(kind)}")
        if tensors.get("adjacency") is not None and tensors["adjacency"] is tensors["inputs"]:
            # As many features as tokens: the shape alone would do.
            raise ValueError(f"Expected a graph. Received: adjacency=inputs. {usage(kind)}")
        if tensors.get("edges") is not None:
            check_edges(tensors["edges"], tensors["inputs"].shape[1])
        return super().__call__(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, from the attributes of their names."""
        kind: Any = type(self)
        own = {n: config_of(n, getattr(self, n)) for n in _constructor_arguments(kind)}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        def read(value: Any) -> Any:
            is_object = isinstance(value, dict) and "class_name" in value
            return keras.saving.deserialize_keras_object(value) if is_object else value

        return cls(**{name: read(value) for name, value in config.items()})

    def _tensors(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the tensors whose shapes are checked."""
        return arguments

    def _built_sizes(self) -> dict[str, Any]:
        if not self.built or not self.fixes_sizes:
            return {}
        config = self.get_build_config() or {}
        first = next(iter(self.call_shapes), "")
        shapes = config.get("shapes_dict", {f"{first}_shape": config.get("input_shape")})
        sizes: dict[str, Any] = {}
        for name, form in self.call_shapes.items():
            shape = shapes.get(f"{name}_shape")
            fitted = None if shape is None else fitted_sizes(form, tuple(shape), {})
            free = _FREE if form.endswith("...") else _FREE | {"..."}
            sizes |= {key: size for key, size in (fitted or {}).items() if key not in free}
        return sizes


def _freezing_parts(layer: BaseLayer, build: Callable[..., None]) -> Callable[..., None]:
    """Returns a layer's `build` that freezes what it makes if the layer is frozen."""

    @functools.wraps(build)
    def build_and_freeze(*args: Any, **kwargs: Any) -> None:
        build(*args, **kwargs)
        if not layer.trainable:
            layer.trainable = True  # what does not change is not handed on
            layer.trainable = False

    return build_and_freeze


def _whole_signature(kind: Any) -> inspect.Signature:
    """Returns the signature of a constructor with the arguments of its bases, as keywords."""
    parameters: dict[str, inspect.Parameter] = {}
    for base in kind.__mro__[: kind.__mro__.index(BaseLayer)]:
        own = vars(base).get("__init__", lambda self, **kwargs: None)
        for name, parameter in list(inspect.signature(own).parameters.items())[1:]:
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and "kwargs" in parameters:
                parameter = parameter.replace(kind=parameter.KEYWORD_ONLY)
            parameters.setdefault(name, parameter)
    return inspect.Signature(sorted(parameters.values(), key=lambda x: x.kind))


@functools.cache
def _constructor_arguments(kind: Any) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, BaseLayer) and "__init__" in vars(base):
            parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
            names |= {p.name: None for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    return tuple(names)


def config_of(name: str, value: Any) -> Any:
    if name == "activation":
        return keras.activations.serialize(value)
    # Layers, initializers, regularizers and constraints can be called.
    return keras.saving.serialize_keras_object(value) if callable(value) else value


@functools.cache
def _call_signature(kind: Any) -> inspect.Signature:
    return inspect.signature(kind.call)


def built_dense(
    layer: keras.layers.Layer, units: int, input_shape: Any, name: str, **options: Any
) -> keras.layers.Dense:
    """Returns a built dense layer inside a layer, with its initializer and, by default, dtype."""
    # An initializer that is used twice gives the same values twice.
    initializer = layer.kernel_initializer.clone()
    options = {"dtype": layer.dtype_policy, **options}
    dense = keras.layers.Dense(units, kernel_initializer=initializer, name=name, **options)
    dense.build(input_shape)
    return dense


def check_built(layer: keras.layers.Layer, kind: str) -> None:
    """Refuses a layer that is not a built layer of Keras' class `kind`, or is quantized."""
    if not isinstance(layer, getattr(keras.layers, kind)) or not layer.built:
        raise ValueError(f"Expected a built keras.layers.{kind}. Received: layer={layer!r}")
    check_float(layer)


def check_float(layer: keras.layers.Layer) -> None:
    """Refuses a layer that Keras has quantized: its weights are integers without their scales."""
    if layer.quantization_mode is not None:
        raise ValueError(
            f"Expected a layer of float weights. Received: {layer.name} with "
            f"quantization_mode={layer.quantization_mode!r}. Convert it before you quantize it"
        )


def dense_options(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the constructor arguments that a factored layer takes over from a dense layer.

    The regularizer of the kernel is applied to the factors. The constraint of the kernel is left
    out, because a constraint of the factors would not be one of their product.
    """
    names = (
        "activation",
        "kernel_regularizer",
        "bias_regularizer",
        "activity_regularizer",
        "bias_constraint",
        "trainable",
    )
    return {"dtype": layer.dtype_policy, **{name: getattr(layer, name) for name in names}}
