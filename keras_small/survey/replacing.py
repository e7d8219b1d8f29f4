"""Replaces layers of a model in place, and saves and loads such models.

A layer is replaced by becoming another one: it stays the same Python object, but gets the class and
the state of its replacement. Whatever holds it (the graph of a functional model, attributes, lists,
a wrapper, several layers at once) then holds the replacement, and nothing that holds it is created
again.

    before                                     after
    Functional                                 Functional
      dense: Dense 0x1                           dense: LowRankDense 0x1
      attention: MultiHeadAttention 0x2          attention: MultiHeadAttention 0x2, marked
        _query_dense: EinsumDense 0x3              _query_dense: LowRankEinsumDense 0x3

A functional or sequential model saves the configs of the layers inside, those of replacements as
well. Any other layer that holds replacements is marked: it gets a subclass of its class whose
config has the config of the original layer, and those of the replacements by their addresses. When
it is loaded, the original layer is created, its inner layers become the replacements as soon as
they are built, and Keras then reads their weights.
"""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras

from keras_small.survey.inventory import Place, places
from keras_tnattn.errors import cause_of

# Where a layer is used in graphs.
_NODES = ("_inbound_nodes", "_outbound_nodes")


def become(layer: keras.layers.Layer, new: keras.layers.Layer) -> None:
    """Gives a layer of a model the class and the state of a new, built one.

    The new layer must not be used afterwards.
    """
    state = vars(new)
    # Lists of their own: those that Keras tracks hold all weights of the layer before.
    state |= {name: list(vars(layer)[name]) for name in _NODES}
    for name, value in _plain_attributes(layer).items():
        state.setdefault(name, value)
    if hasattr(new, "cell") and hasattr(layer, "units"):  # of LSTM and GRU; RNN has none
        state["units"] = layer.units
    assume(layer, new)


def assume(layer: keras.layers.Layer, other: Any) -> None:
    """Gives a layer the class and all of the state of another object."""
    # Not by assignment: Keras' `__setattr__` would track the values as new state.
    object.__setattr__(layer, "__dict__", vars(other))
    object.__setattr__(layer, "__class__", type(other))


def _plain_attributes(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the public attributes of plain types, which a replacement keeps for other layers."""
    plain = (bool, int, float, str, type(None), tuple)
    return {
        name: value
        for name, value in vars(layer).items()
        if not name.startswith("_") and isinstance(value, plain)
    }


def object_of(cls: type, state: dict) -> Any:
    """Returns an object of a class, without a call of its constructor, with the given state."""
    new: Any = object.__new__(cls)
    object.__setattr__(new, "__dict__", state)
    return new


def replace(place: Place, new: keras.layers.Layer) -> None:
    """Replaces the layer at a place, so that the model saves the new one; see `become`."""
    become(place.layer, new)
    if place.holder is not None:
        _mark(place.holder)
        vars(place.holder)["replaced_addresses"].append(place.address)


def _mark(layer: keras.layers.Layer) -> None:
    if "replaced_addresses" not in vars(layer):
        vars(layer).update(replaced_addresses=[], awaited_replacements={})
    if not isinstance(layer, _Marked):
        object.__setattr__(layer, "__class__", _marked_class(type(layer)))  # type: ignore[arg-type]


class _Marked:
    """Mixed into the class of a layer that holds replacements which its config does not return.

    Attributes:
        replaced_addresses: The addresses of the replacements.
        awaited_replacements: The configs, by address, of those that are made once the layers that
            they replace are built.
    """

    # The values for a layer that is made of this class, and not marked.
    replaced_addresses: Sequence[str] = ()
    awaited_replacements: Mapping[str, dict] = MappingProxyType({})

    def get_config(self) -> dict[str, Any]:
        with _without_mark(self):
            layer = dict(keras.saving.serialize_keras_object(self))
        layer.pop("compile_config", None)
        inner = {place.address: place.layer for place in places(self)}
        replaced = {
            address: keras.saving.serialize_keras_object(inner[address])
            for address in self.replaced_addresses
        }
        return {"layer": layer, "substitutes": {**replaced, **self.awaited_replacements}}

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> keras.layers.Layer:
        return Compressed.from_config(config, custom_objects)

    def save_to_preset(self, preset_dir: Any, **options: Any) -> None:
        """Saves a backbone or task of keras-hub, under names by which `from_preset` finds it."""
        super().save_to_preset(preset_dir, **options)  # type: ignore[misc]
        folder = Path(preset_dir)
        for name in _PRESET_FILES:
            if (folder / name).exists():
                config = json.loads((folder / name).read_text(encoding="utf-8"))
                _write_preset(folder / name, config)
        # The replacements inside a task's backbone are the task's.
        backbone = getattr(self, "backbone", None)
        if isinstance(backbone, keras.Model) and not isinstance(backbone, _Marked):
            inner = {place.address: place.layer for place in places(self)}
            replaced = {id(inner[address]) for address in self.replaced_addresses}
            _mark(backbone)
            with contextlib.ExitStack() as stack:
                stack.callback(_unmark, backbone)
                vars(backbone)["replaced_addresses"] += [
                    place.address for place in places(backbone) if id(place.layer) in replaced
                ]
                _write_preset(folder / "config.json", keras.saving.serialize_keras_object(backbone))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().__call__(*args, **kwargs)  # type: ignore[misc]
        # Layers without `build` build their inner layers when they are called.
        _replace_awaited(self)
        return outputs


# All marked classes are saved under this one name, but in the files of presets, where `from_preset`
# looks a subclass up.
_register = keras.saving.register_keras_serializable(package="keras_small", name="Compressed")
_REGISTERED = "keras_small>Compressed"
_PRESET_FILES = ("config.json", "task.json")


@functools.cache
def _marked_class(base: type) -> type:
    # The name is in the weights' paths in files.
    names = {"__module__": __name__, "__doc__": base.__doc__}
    name = f"Compressed{base.__name__}"
    marked = type(name, (_Marked, base), names)
    if _has_presets(base):
        backbone = getattr(base, "backbone_cls", None)
        if backbone is not None:  # by which keras-hub finds the task of a preset
            marked.backbone_cls = _marked_class(backbone)  # type: ignore[attr-defined]
        keras.saving.register_keras_serializable(package="keras_small", name=name)(marked)
    _register(marked)
    # Registering took the name; give it back to the class that loads models.
    _register(Compressed)
    return marked


def _unmark(layer: Any) -> None:
    object.__setattr__(layer, "__class__", type(layer).__bases__[1])
    for name in ("replaced_addresses", "awaited_replacements"):
        del vars(layer)[name]


def _write_preset(path: Path, config: dict[str, Any]) -> None:
    if config["registered_name"] == _REGISTERED:
        config = {**config, "registered_name": f"keras_small>{config['class_name']}"}
    path.write_text(json.dumps(config, indent=4), encoding="utf-8")


def _has_presets(cls: type) -> bool:
    return hasattr(cls, "save_to_preset") and hasattr(cls, "from_preset")


def register_presets() -> None:
    """Lets `from_preset` of keras-hub find backbones and tasks that `compress` made smaller.

    `import keras_small` does it for the classes that exist by then, so import keras-hub first, or
    call this function before `from_preset`.

    Example:
        ```python notest
        import keras_hub
        import keras_small

        result = keras_small.compress(backbone, 4, data=inputs)
        result.model.save_to_preset("small")

        backbone = keras_hub.models.Backbone.from_preset("small")  # in another process, too
        ```
    """
    classes = [keras.Model]
    for cls in classes:  # grows
        classes += [inner for inner in cls.__subclasses__() if inner not in classes]
        if _has_presets(cls) and not issubclass(cls, _Marked):
            _marked_class(cls)


@contextlib.contextmanager
def _without_mark(layer: keras.layers.Layer) -> Iterator[None]:
    """Gives a layer its own class, whose `get_config` may depend on `type(self)`."""
    marked = type(layer)
    object.__setattr__(layer, "__class__", marked.__bases__[1])
    try:
        yield
    finally:
        object.__setattr__(layer, "__class__", marked)


@_register
class Compressed(keras.layers.Layer):
    """Represents layers with replaced inner layers in saved models."""

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> keras.layers.Layer:
        try:
            layer = keras.saving.deserialize_keras_object(config["layer"], custom_objects)
        except TypeError as error:  # Keras adds the whole config to a TypeError
            name = config["layer"]["class_name"]
            raise ValueError(f"Could not load a compressed {name}: {cause_of(error)}") from error
        _mark(layer)
        vars(layer)["awaited_replacements"] |= config["substitutes"]
        _replace_awaited(layer)
        if layer.awaited_replacements:
            vars(layer)["build"] = _replacing_after(layer.build, layer)
        return layer


def _replacing_after(build: Callable, layer: keras.layers.Layer) -> Callable:
    """Wraps a method `build` so that it also replaces the layers inside that it has built."""

    @functools.wraps(build)  # Keras reads the signature
    def build_and_replace(*args: Any, **kwargs: Any) -> None:
        build(*args, **kwargs)
        _replace_awaited(layer)

    return build_and_replace


def _replace_awaited(layer: Any) -> None:
    """Replaces the layers inside that are built by now."""
    if not layer.awaited_replacements:
        return
    inner = {place.address: place.layer for place in places(layer)}
    for address, config in list(layer.awaited_replacements.items()):
        if address in inner and inner[address].built:
            become(inner[address], _built_like(inner[address], config))
            layer.replaced_addresses.append(address)
            del layer.awaited_replacements[address]


def _built_like(layer: keras.layers.Layer, config: dict) -> keras.layers.Layer:
    new = keras.saving.deserialize_keras_object(config)
    if not new.built:
        new.build_from_config(layer.get_build_config() or {})
    if not new.built:
        new.build(None)  # embeddings may be built without a shape
    return new
