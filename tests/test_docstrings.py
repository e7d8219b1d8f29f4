"""The examples in the docstrings run, and every public class and function has one."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import keras_tnattn

MODULES = [
    "keras_tnattn",
    *(
        module.name
        for module in pkgutil.walk_packages(keras_tnattn.__path__, "keras_tnattn.")
        if not module.name.endswith("__main__")
    ),
]
FENCED = re.compile(r"^ *```python\n(.*?)^ *```", re.M | re.S)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=FLAGS)
    assert result.failed == 0
    for owner, block in fenced_blocks(module):
        exec(compile(inspect.cleandoc(block), f"<{owner}>", "exec"), {})


def fenced_blocks(module):
    for name, thing in [(module.__name__, module), *public(module)]:
        for block in FENCED.findall(thing.__doc__ or ""):
            yield name, block


def public(module):
    """The classes and functions that are defined in a module, as `(name, thing)`."""
    for name, thing in vars(module).items():
        if (
            not name.startswith("_")
            and (inspect.isclass(thing) or inspect.isfunction(thing))
            and thing.__module__ == module.__name__
        ):
            yield f"{module.__name__}.{name}", thing


def api(module):
    """What a module's `__all__` lists; a module there stands for all it defines."""
    for name in getattr(module, "__all__", ()):
        thing = getattr(module, name)
        if inspect.ismodule(thing):
            yield from api(thing) if hasattr(thing, "__all__") else public(thing)
        elif inspect.isclass(thing) or inspect.isfunction(thing):
            yield f"{module.__name__}.{name}", thing


def test_everything_public_has_an_example():
    things = {}
    for name in MODULES:
        things.update(
            (id(thing), (where, thing)) for where, thing in api(importlib.import_module(name))
        )
    assert len(things) > 40
    missing = {
        where
        for where, thing in things.values()
        if ">>>" not in (doc := thing.__doc__ or "") and not FENCED.search(doc)
    }
    assert sorted(missing) == []
