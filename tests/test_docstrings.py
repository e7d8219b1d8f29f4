"""The docstrings hold: their examples run, their defaults are those of the signatures."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import keras_small
import keras_tnattn
import keras_tnattn_runtime

pytestmark = pytest.mark.usefixtures("eagerly")
MODULES = [
    "keras_small",
    *(
        module.name
        for package in (keras_tnattn, keras_small, keras_tnattn_runtime)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not module.name.endswith("__main__")
    ),
]
FENCED = re.compile(r"^ *```python\n(.*?)^ *```", re.M | re.S)  # not `python notest`
SECTION = re.compile(r"^(Args|Call arguments):\n((?: {4}.*\n|\n)+)", re.M)
ENTRY = re.compile(r"^ {4}(?=[*\w])", re.M)
DEFAULT = re.compile(
    r'Defaults? (?:to )?`?("[^"]*"|[-\d.,e_]*\d|True|False|None)`?'
    r'|`?("[^"]*"|[-\d.]*\d|True|False)`? \(default'
)
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


def methods(thing):
    """The functions that a class defines itself, `__call__` among them."""
    for name, method in vars(thing).items() if inspect.isclass(thing) else ():
        if inspect.isfunction(method) and (name == "__call__" or not name.startswith("_")):
            yield full_name(method), method


def listed(module):
    """What a module's `__all__` lists; a module there stands for all that it defines."""
    for name in getattr(module, "__all__", ()):
        thing = getattr(module, name)
        if inspect.ismodule(thing):
            yield from listed(thing) if hasattr(thing, "__all__") else public(thing)
        elif is_api(thing):
            yield full_name(thing), thing


def documented_defaults(thing):
    """`(name, documented default, parameter)` where a docstring names one as a literal."""
    for section, entries in SECTION.findall((inspect.getdoc(thing) or "") + "\n"):
        signature = inspect.signature(thing if section == "Args" else thing.call)
        for entry in ENTRY.split(entries)[1:]:
            names, _, text = entry.partition(":")
            default = DEFAULT.search(" ".join(text.split()))
            for name in names.split(", "):
                if default and name in signature.parameters:
                    literal = (default[1] or default[2]).replace(",", "")
                    yield name, ast.literal_eval(literal), signature.parameters[name]


def is_api(thing):
    return inspect.isclass(thing) or inspect.isfunction(thing)


def full_name(thing):
    return f"{thing.__module__}.{thing.__qualname__}"


def all_listed():
    things = {}
    for name in MODULES:
        things.update(listed(importlib.import_module(name)))
    return things


def test_everything_public_has_an_example():
    things = all_listed()
    assert len(things) > 40
    docs = {name: thing.__doc__ or "" for name, thing in things.items()}
    missing = {name for name, doc in docs.items() if ">>>" not in doc and "```" not in doc}
    assert sorted(missing) == []


def test_documented_defaults_are_those_of_the_signatures():
    checked = 0
    for module in map(importlib.import_module, MODULES):
        things = list(public(module))
        things += [pair for _, thing in things for pair in methods(thing)]
        for owner, thing in things:
            for name, documented, parameter in documented_defaults(thing):
                assert parameter.default == documented, f"{owner}({name}=...)"
                checked += 1
    assert checked > 150


def test_defaults_are_documented():
    missing = []
    for name, thing in all_listed().items():
        documented = {name for name, _, _ in documented_defaults(thing)}
        sections = SECTION.findall((inspect.getdoc(thing) or "") + "\n")
        arguments = "".join(f"\n{entries}" for section, entries in sections if section == "Args")
        for parameter in inspect.signature(thing).parameters.values():
            entry = f"\n    {parameter.name}:" in arguments
            literal = isinstance(parameter.default, (bool, int, float, str))
            if entry and literal and parameter.name not in documented:
                missing.append(f"{name}({parameter.name}={parameter.default!r})")
    assert missing == []
