"""Finds every layer of a model, wherever it lives, and its twin in a copy."""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from keras_small.storage.sizes import byte_count
from keras_small.survey.kinds import kind_of, reason_against


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


def children(layer: keras.layers.Layer, named: bool = True) -> dict[str, keras.layers.Layer]:
    """Returns the layers directly inside a layer.

    Args:
        layer: Any layer.
        named: Whether the keys of the layers of a functional or sequential model are their names.
            Otherwise they are their positions, which are the same in each copy.

    Returns:
        A dict with the layers by name or position (of a graph), or by attribute.
    """
    inner = {}
    if isinstance(layer, _functional_class() | keras.Sequential):
        inner = {
            entry.name if named else str(position): entry
            for position, entry in enumerate(layer.layers)
        }
        if is_graph(layer):
            return inner
    known = {id(entry) for entry in inner.values()}
    for name, value in _attributes(layer).items():
        # Lists of the same layers that TensorFlow and Keras keep.
        if name.startswith("_self_unconditional_") or name in ("_layers", "_functional"):
            continue
        for key, entry in _layers_in(name, value):
            if id(entry) not in known:
                inner[key] = entry
    return inner


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
        for position, entry in enumerate(value):
            yield from _layers_in(f"{key}/{position}", entry)
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _layers_in(f"{key}/{name}", entry)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a layer is in a model.

    Attributes:
        layer: The layer.
        path: The names and attributes that lead to it, joined by `/`, to be read.
        holder: The outermost layer around it that is no functional or sequential model, whose
            `get_config` therefore does not return the layers inside; `None` if there is none.
        address: The positions and attributes that lead from `holder` to the layer.
    """

    layer: keras.layers.Layer
    path: str
    holder: keras.layers.Layer | None
    address: str


def places(model: keras.layers.Layer) -> list[Place]:
    """Returns all layers inside a model, each once, by the first path that leads to it."""
    all_places = []
    visited = {id(model)}

    def visit(layer: keras.layers.Layer, path: str, holder: Any, address: str) -> None:
        if holder is None and not is_graph(layer):
            holder = layer
            address = ""
        pairs = zip(children(layer).items(), children(layer, named=False), strict=True)
        for (name, inner), position in pairs:
            if id(inner) in visited:
                continue
            visited.add(id(inner))
            place = Place(inner, _join_keys(path, name), holder, _join_keys(address, position))
            all_places.append(place)
            visit(inner, place.path, holder, place.address)

    visit(model, "", None, "")
    return all_places


@dataclasses.dataclass(frozen=True)
class Inventory:
    """A model and the places of all layers inside, found once.

    Attributes:
        model: The model.
        places: The places of its layers by path; in a copy by the paths in the original.
        shared: The paths of layers in a copy that are one and the same layer in the original.
        replaceable: The places of the layers that can be replaced.
        reasons: Why other layers of known kinds stay.
    """

    model: keras.Model
    places: Mapping[str, Place]
    shared: frozenset[str] = frozenset()
    replaceable: dict[str, Place] = dataclasses.field(default_factory=dict)
    reasons: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, model: keras.Model) -> "Inventory":
        return cls(model, {place.path: place for place in places(model)})

    @property
    def normalizations(self) -> dict[str, keras.layers.Layer]:
        """The batch normalizations, by path."""
        kind = keras.layers.BatchNormalization
        layers = {path: place.layer for path, place in self.places.items()}
        return {path: layer for path, layer in layers.items() if isinstance(layer, kind)}

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """The model and all layers inside."""
        return [self.model, *(place.layer for place in self.places.values())]

    @property
    def known(self) -> dict[str, Place]:
        """The places of the layers of known kinds."""
        return {path: place for path, place in self.places.items() if kind_of(place.layer)}

    @property
    def unsuited(self) -> dict[str, str]:
        """Why some of these layers cannot be replaced whatever the model is, by path."""
        found = {path: reason_against(place.layer) for path, place in self.known.items()}
        return {path: reason for path, reason in found.items() if reason is not None}

    @property
    def bytes(self) -> int:
        """Bytes of all weights."""
        return byte_count(self.model)

    @property
    def replaceable_layers(self) -> dict[str, keras.layers.Layer]:
        return {path: place.layer for path, place in self.replaceable.items()}

    def keep(self, reasons: Mapping[str, str]) -> None:
        """Keeps layers as they are, for reasons by path."""
        self.reasons.update(reasons)
        for path in reasons:
            self.replaceable.pop(path, None)

    def of_copy(self, copy: keras.Model) -> "Inventory":
        """Returns the inventory of a copy of the model."""
        own = Inventory.of(copy)
        copies = dict(layers_by_address(copy))
        holders: dict[int, set[int]] = collections.defaultdict(set)
        for address, layer in layers_by_address(self.model):
            if address in copies:
                holders[id(layer)].add(id(copies[address]))
        shared = {layer for group in holders.values() if len(group) > 1 for layer in group}
        # The names that Keras makes up differ in a copy.
        own_places = {id(place.layer): place for place in own.places.values()}
        twins = {
            path: own_places[holder]
            for path, place in self.places.items()
            for holder in holders[id(place.layer)]
        }
        types = [type(place.layer) for place in self.places.values()]
        types_of_twins = [type(place.layer) for place in twins.values()]
        if shared or types != types_of_twins:
            paths = (path for path, place in own.places.items() if id(place.layer) in shared)
            return dataclasses.replace(own, shared=frozenset(paths))
        return dataclasses.replace(own, places=twins)


def layers_by_address(
    layer: keras.layers.Layer, address: str = "", above: tuple[int, ...] = ()
) -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yields all layers inside a layer by each of their addresses, shared ones several times."""
    for position, inner in children(layer, named=False).items():
        if id(inner) not in above:
            path = _join_keys(address, position)
            yield path, inner
            yield from layers_by_address(inner, path, (*above, id(inner)))


def _join_keys(path: str, key: str) -> str:
    return f"{path}/{key}" if path else key


def contents(layer: keras.layers.Layer) -> Iterator[Any]:
    """Yields the contents of a layer's attributes, by their names, at any depth."""
    yield from entries([vars(layer)[name] for name in sorted(vars(layer))])


def entries(value: Any) -> Iterator[Any]:
    """Yields the entries of lists, tuples and dicts, at any depth."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for entry in value:
            yield from entries(entry)
    else:
        yield value
