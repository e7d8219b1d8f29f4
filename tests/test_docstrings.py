"""The examples in the docstrings run, and every public class and function has one."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import keras_tnattn

MODULES = [
    *(
        module.name
        for module in pkgutil.walk_packages(keras_tnattn.__path__, "keras_tnattn.")
        if not module.name.endswith("__main__")
    ),
]
FENCED = re.compile(r"^ *```python\n(.*?)^ *```", re.M | re.S)  # not `python notest`
# Still without an example.
MISSING: set[str] = {
    "keras_tnattn.layers.graph_tensor_network.GraphTensorNetwork",
    "keras_tnattn.layers.local_embedding.LocalEmbedding",
    "keras_tnattn.layers.mps_classifier.MPSClassifier",
    "keras_tnattn.layers.tensorized_graph_attention.TensorizedGraphAttention",
    "keras_tnattn.layers.tensorized_spectral_attention.TensorizedSpectralAttention",
    "keras_tnattn.layers.tn_attention.TNAttention",
    "keras_tnattn.models.deep_tensor_network.deep_tensor_network",
    "keras_tnattn.ops.reflections.orthonormal_columns",
    "keras_tnattn.ops.scan.fold_sites",
    "keras_tnattn.ops.scan.unfold_sites",
    "keras_tnattn.ops.scan.map_sites",
    "keras_tnattn.ops.scan.closed_contexts",
    "keras_tnattn.ops.scan.open_contexts",
    "keras_tnattn.ops.scan.chain_product",
    "keras_tnattn.ops.scan.dominant_eigenvectors",
    "keras_tnattn.ops.scan.normalized",
    "keras_tnattn.ops.spectral_filter.check_method",
    "keras_tnattn.ops.spectral_filter.attention_graph",
    "keras_tnattn.ops.spectral_filter.spectral_filter",
    "keras_tnattn.ops.spectral_filter.banded_plan",
    "keras_tnattn.ops.time_graph.time_adjacency",
    "keras_tnattn.ops.time_graph.bidirectional_adjacency",
    "keras_tnattn.ops.time_graph.bandwidth",
    "keras_tnattn.ops.time_graph.check_damping",
    "keras_tnattn.ops.time_graph.check_receive_from",
    "keras_tnattn.ops.time_graph.time_filter",
}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=FLAGS)
    assert result.failed == 0
    for owner, block in fenced_blocks(module):
        exec(compile(inspect.cleandoc(block), f"<{owner}>", "exec"), {})


def fenced_blocks(module):
    for name, thing in public(module):
        for block in FENCED.findall(thing.__doc__ or ""):
            yield name, block


def public(module):
    """The classes and functions that are defined in a module, by their full names."""
    for name, thing in vars(module).items():
        if not name.startswith("_") and is_api(thing) and thing.__module__ == module.__name__:
            yield full_name(thing), thing


def listed(module):
    """What a module's `__all__` lists; a module there stands for all that it defines."""
    for name in getattr(module, "__all__", ()):
        thing = getattr(module, name)
        if inspect.ismodule(thing):
            yield from listed(thing) if hasattr(thing, "__all__") else public(thing)
        elif is_api(thing):
            yield full_name(thing), thing


def is_api(thing):
    return inspect.isclass(thing) or inspect.isfunction(thing)


def full_name(thing):
    return f"{thing.__module__}.{thing.__qualname__}"


def test_everything_public_has_an_example():
    things = {}
    for name in MODULES:
        things.update(listed(importlib.import_module(name)))
    assert len(things) > 40
    docs = {name: thing.__doc__ or "" for name, thing in things.items()}
    missing = {name for name, doc in docs.items() if ">>>" not in doc and "```" not in doc}
    assert sorted(missing - MISSING) == []
