"""Copies models with some layers replaced.

A functional or sequential model is cloned layer by layer. A layer or model that has layers as
attributes is created again from its config, by a subclass of its own class that assigns the
replacement instead of the original layer. Nothing unused is built, and the layer's own code runs as
before. Such a layer is saved as the config of the original and the configs of the replacements, and
can be loaded wherever `keras_tnattn` is imported.
"""

import copy
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras


@functools.cache
def _functional_class() -> type[keras.Model]:
    inputs = keras.Input((1,))
    return type(keras.Model(inputs, keras.layers.Identity()(inputs)))


def is_graph(layer: keras.layers.Layer) -> bool:
    """Whether a layer is a functional or sequential model whose class adds no `get_config`."""
    graphs = (_functional_class(), keras.Sequential)
    return isinstance(layer, graphs) and type(layer).get_config in {
        graph.get_config for graph in graphs
    }


def children(layer: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
    """Returns the layers directly inside a layer, by name (in a graph) or attribute."""
    if is_graph(layer):
        return {inner.name: inner for inner in layer.layers}
    hidden: tuple[str, ...] = ("_self_", "_layers")
    if isinstance(layer, _functional_class()):
        hidden = ("_",)  # the operations of its graph
    return {
        key: inner
        for name, value in _attributes(layer).items()
        if not name.startswith(hidden)
        for key, inner in _layers_in(name, value)
    }


def _attributes(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the attributes of a layer, which on PyTorch is a module that holds layers apart."""
    attributes = dict(vars(layer))
    if keras.backend.backend() == "torch":
        modules = attributes.pop("_modules", {})
        attributes |= {k: m for k, m in modules.items() if isinstance(m, keras.layers.Layer)}
    return attributes


def _layers_in(key: str, value: Any) -> Iterator[tuple[str, keras.layers.Layer]]:
    if isinstance(value, keras.layers.Layer):
        yield key, value
    elif isinstance(value, list | tuple):
        for i, entry in enumerate(value):
            yield from _layers_in(f"{key}/{i}", entry)
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _layers_in(f"{key}/{name}", entry)


def leaves(
    model: keras.layers.Layer, is_leaf: Callable[[keras.layers.Layer], bool]
) -> dict[str, keras.layers.Layer]:
    """Returns the layers anywhere in a model that `is_leaf` accepts, each once, by path."""
    found, seen = {}, set()

    def visit(path: str, layer: keras.layers.Layer) -> None:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        if is_leaf(layer):
            found[path] = layer
            return
        for key, inner in children(layer).items():
            visit(f"{path}/{key}" if path else key, inner)

    visit("", model)
    return found


def owners(model: keras.layers.Layer) -> dict[int, set[int]]:
    """Returns for the `id` of each layer the `id`s of the layers, except graphs, that hold it."""
    held_by: dict[int, set[int]] = {}
    seen = set()

    def visit(layer: keras.layers.Layer) -> None:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        for inner in children(layer).values():
            if not is_graph(layer):
                held_by.setdefault(id(inner), set()).add(id(layer))
            visit(inner)

    visit(model)
    return held_by


# The substitutes made so far, and the one that stands for each original layer. Both forget layers
# that nothing else uses, so that neither originals nor compressed models are kept in memory.
_SUBSTITUTES: weakref.WeakSet[keras.layers.Layer] = weakref.WeakSet()
_SUBSTITUTE_OF: weakref.WeakKeyDictionary[keras.layers.Layer, keras.layers.Layer] = (
    weakref.WeakKeyDictionary()
)


class _Substituting:
    """Replaces inner layers when they are assigned; mixed into a subclass of a layer's class.

    The layer's own `__init__` and `build` run as before. When they execute `self.dense = Dense(8)`,
    the attribute `dense` gets the substitute if there is one for the key `"dense"`, and the code
    goes on with it.
    """

    original: dict  # the original layer, serialized
    substitutes: dict[str, dict]  # the replacements, serialized, by their keys in `children`

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, self._substituted(name, value))

    def _substituted(self, key: str, value: Any) -> Any:
        """Returns the value to assign: with substitutes, also inside lists, tuples and dicts."""
        if isinstance(value, keras.layers.Layer):
            return self._substitute(key, value)
        # Return the same object if nothing in a container changes: Keras compares some by identity.
        if type(value) in (list, tuple):
            entries = [self._substituted(f"{key}/{i}", v) for i, v in enumerate(value)]
            changed = any(new is not old for new, old in zip(entries, value, strict=True))
            return type(value)(entries) if changed else value
        if type(value) is dict:
            new = {name: self._substituted(f"{key}/{name}", v) for name, v in value.items()}
            return new if any(new[name] is not value[name] for name in value) else value
        return value

    def _substitute(self, key: str, layer: keras.layers.Layer) -> keras.layers.Layer:
        """Returns the substitute of a layer, or the layer itself if it has none."""
        # A second attribute can hold a substitute already: `self.again = self.dense`.
        if key not in self.substitutes or layer in _SUBSTITUTES:
            return layer
        if layer not in _SUBSTITUTE_OF:
            new = keras.saving.deserialize_keras_object(self.substitutes[key])
            if layer.built and not new.built:
                new.build_from_config(layer.get_build_config())
            _SUBSTITUTES.add(new)
            _SUBSTITUTE_OF[layer] = new
        return _SUBSTITUTE_OF[layer]

    def replace_in_lists(self) -> None:
        """Replaces layers that were appended to a list, for which `__setattr__` was not called."""
        for name, value in list(vars(self).items()):
            if name != "_layers" and isinstance(value, list) and not name.startswith("_self_"):
                for i, entry in enumerate(list(value)):
                    new = self._substituted(f"{name}/{i}", entry)
                    if isinstance(entry, keras.layers.Layer) and new is not entry:
                        value.pop(i)
                        value.insert(i, new)

    def get_config(self) -> dict[str, Any]:
        inner = children(self)
        return {
            "layer": self.original,
            # Some may not exist before `build`.
            "substitutes": {
                key: _config_of(inner[key]) if key in inner else config
                for key, config in self.substitutes.items()
            },
        }

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> keras.layers.Layer:
        return _made_anew(config["layer"], config["substitutes"])


# All classes created below are saved under this one name.
_register = keras.saving.register_keras_serializable(package="keras_tnattn", name="Compressed")


@_register
class Compressed(_Substituting, keras.layers.Layer):
    """Represents layers with substitutes in saved models; loading creates the derived class."""


def _config_of(layer: keras.layers.Layer) -> dict:
    """Serializes a layer without its build config, because the layer that holds it builds it."""
    config = dict(keras.saving.serialize_keras_object(layer))
    config.pop("compile_config", None)
    if not is_graph(layer):
        config.pop("build_config", None)
    return config


def _replacing_after(build: Callable) -> Callable:
    """Wraps a method `build` so that it also replaces the layers that it appended to lists."""

    @functools.wraps(build)  # Keras reads the signature
    def build_and_replace(self: _Substituting, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        self.replace_in_lists()

    return build_and_replace


def _made_anew(original: dict, substitutes: dict[str, dict]) -> keras.layers.Layer:
    """Creates a layer from its config, with substitutes for some of its inner layers."""
    unbuilt = {k: v for k, v in original.items() if k not in ("build_config", "compile_config")}
    base = type(keras.saving.deserialize_keras_object(unbuilt))
    derived = _register(
        type(
            f"Compressed{base.__name__}",
            (_Substituting, base),
            {
                "original": unbuilt,
                "substitutes": substitutes,
                "build": _replacing_after(base.build),
                "__module__": __name__,
                "__doc__": base.__doc__,
            },
        )
    )
    # Registering the derived class took the name; give it back to the class that loads models.
    _register(Compressed)
    layer = base.from_config.__func__(derived, unbuilt["config"])
    layer.replace_in_lists()
    return layer


def rebuilt(
    model: keras.layers.Layer,
    prototypes: Mapping[int, keras.layers.Layer],
    call: Callable[[keras.layers.Layer], object] | None = None,
) -> keras.layers.Layer:
    """Copies a model, with some layers replaced.

    Args:
        model: A built model; it is not changed.
        prototypes: Built layers by the Python id of the layers that they replace. The copy has a
            layer with the same config and weights.
        call: Function that calls a model on data, to build a copy that its config cannot build.

    Returns:
        The copy, which shares no weights with `model`.

    Raises:
        ValueError: If the model cannot be created from its config.
    """
    made: dict[int, keras.layers.Layer] = {}
    new = _copy(model, prototypes, made)
    if not new.built:
        new.build_from_config(model.get_build_config() or {})
    if not new.built and call is not None:
        call(new)
    if len(new.weights) == 0 < len(model.weights):
        raise ValueError(
            f"Could not build a copy of {model.name} from its config. Pass `data`, or implement "
            "`build` and `get_build_config`"
        )
    # Keras does not mark a model as built if its config builds it by a symbolic call.
    new.built = True
    _copy_weights(model, new, prototypes, set())
    return new


def _touched(layer: keras.layers.Layer, prototypes: Mapping[int, Any]) -> bool:
    return id(layer) in prototypes or any(
        _touched(inner, prototypes) for inner in children(layer).values()
    )


def _copy(
    layer: keras.layers.Layer,
    prototypes: Mapping[int, keras.layers.Layer],
    made: dict[int, keras.layers.Layer],
) -> keras.layers.Layer:
    """Returns the copy of a layer without its weights; one copy for each layer."""
    if id(layer) in made:
        return made[id(layer)]
    if id(layer) in prototypes:
        new = keras.saving.deserialize_keras_object(_config_of(prototypes[id(layer)]))
    elif is_graph(layer):
        new = keras.models.clone_model(
            layer, clone_function=lambda inner: _copy(inner, prototypes, made)
        )
    else:
        new = _copy_of_layers(layer, prototypes, made)
    made[id(layer)] = new
    return new


def _copy_of_layers(
    layer: keras.layers.Layer,
    prototypes: Mapping[int, keras.layers.Layer],
    made: dict[int, keras.layers.Layer],
) -> keras.layers.Layer:
    """Returns the copy of a layer that has layers as attributes."""
    substituting = isinstance(layer, _Substituting)
    before = layer.substitutes if substituting else {}
    inner = children(layer)
    substitutes = {
        key: _config_of(_copy(child, prototypes, made))
        for key, child in inner.items()
        if key in before or _touched(child, prototypes)
    }
    config = copy.deepcopy(layer.original) if substituting else _serialized(layer)
    config.pop("build_config", None)
    # A layer that is an argument of the constructor is replaced right here, in the config. Others
    # are made by the code of the class, and replaced when that code assigns them.
    for key in [key for key in substitutes if key not in before]:
        places = list(_places(config["config"], inner[key].name))
        if len(places) == 1:
            container, position = places[0]
            container[position] = substitutes.pop(key)
    if substitutes:
        return _made_anew(config, substitutes)
    return keras.saving.deserialize_keras_object(config)


def _places(config: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """Yields the container and the key or index of each serialized layer called `name`."""
    for key, value in config.items() if isinstance(config, dict) else enumerate(config):
        if isinstance(value, dict) and "class_name" in value:
            if isinstance(value.get("config"), dict) and _name_in(value) == name:
                yield config, key
        elif isinstance(value, dict | list):
            yield from _places(value, name)


def _name_in(serialized: dict) -> str | None:
    """Returns the name of a serialized layer, which may have substitutes."""
    arguments = serialized["config"]
    if "substitutes" in arguments:
        return _name_in(arguments["layer"])
    return arguments.get("name")


def _serialized(layer: keras.layers.Layer) -> dict:
    try:
        config = dict(keras.saving.serialize_keras_object(layer))
        config.pop("compile_config", None)
        return config
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(
            f"Could not copy {layer.name} ({type(layer).__name__}): its get_config does not return "
            f"all arguments of its constructor ({error})"
        ) from error


def _copy_weights(
    layer: keras.layers.Layer,
    new: keras.layers.Layer,
    prototypes: Mapping[int, keras.layers.Layer],
    done: set[int],
) -> None:
    if id(layer) in done:
        return
    done.add(id(layer))
    if id(layer) in prototypes:
        new.set_weights(prototypes[id(layer)].get_weights())
        return
    if not _touched(layer, prototypes):
        new.set_weights(layer.get_weights())
        return
    pairs = _pairs(layer, new)
    for _, child, child_copy in pairs:
        _copy_weights(child, child_copy, prototypes, done)
    inner, inner_copies = ([pair[i] for pair in pairs] for i in (1, 2))
    for old, weight in zip(_own(layer, inner), _own(new, inner_copies), strict=True):
        weight.assign(old)


def _pairs(
    layer: keras.layers.Layer, new: keras.layers.Layer
) -> list[tuple[str, keras.layers.Layer, keras.layers.Layer]]:
    """Returns the key, the layer and its copy for all inner layers."""
    inner, copies = children(layer), children(new)
    if is_graph(layer):
        # By position: layers that a model's code creates have other names in each copy.
        copies = dict(zip(inner, copies.values(), strict=True))
    return [(key, child, copies[key]) for key, child in inner.items()]


def counterparts(
    model: keras.layers.Layer, new: keras.layers.Layer, layers: Mapping[str, keras.layers.Layer]
) -> dict[str, keras.layers.Layer]:
    """Returns the layers of a copy that correspond to the given layers of the model, by path."""
    paths = {id(layer): path for path, layer in layers.items()}
    found, seen = {}, set()

    def visit(layer: keras.layers.Layer, place: keras.layers.Layer) -> None:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        if id(layer) in paths:
            found[paths[id(layer)]] = place
            return
        for _, child, child_copy in _pairs(layer, place):
            visit(child, child_copy)

    visit(model, new)
    return found


def _own(layer: keras.layers.Layer, inner: Sequence[keras.layers.Layer]) -> list:
    """Returns the weights that belong to the layer itself and not to an inner layer."""
    theirs = {id(weight) for child in inner for weight in child.weights}
    return [weight for weight in layer.weights if id(weight) not in theirs]
