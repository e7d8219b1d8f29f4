"""The pages and notebooks name options, functions and arguments that exist."""

import ast
import contextlib
import importlib
import inspect
import json
import re
from pathlib import Path

import pytest

import keras_small
from keras_tnattn_train.cli import PROGRAMS, main
from keras_tnattn_train.tasks import TASKS

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "examples", "keras_small", "studies")
FOUND = [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))]
WRITTEN = [ROOT / "docs" / name for name in ("_build", "reference/generated", "studies/reports")]
# Without those that `make docs` writes.
PAGES = [page for page in FOUND if not any(page.is_relative_to(folder) for folder in WRITTEN)]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.M | re.S)
DOTTED = re.compile(r"(?<![\w/.])keras_(?:small|tnattn(?:_train)?)(?:\.\w+)+")
OPTION = re.compile(r"--[a-z][a-z0-9-]*")
# These take other commands, with the options of those.
AROUND_OTHERS = {"launch", "reproduce"}
# The calls whose arguments are checked, by the name with which pages call them.
CALLED = {
    "compress": keras_small.compress,
    "heal": keras_small.CompressionResult.heal,
    "Data": keras_small.Data,
    "Keeping": keras_small.Keeping,
    "Promise": keras_small.Promise,
    "Smaller": keras_small.Smaller,
    "Within": keras_small.Within,
}


def code_of(path):
    """Returns the Python of a page or a notebook, a text for each block."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return BLOCK.findall(text)
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    # Lines that begin with these are commands of the notebook.
    return [re.sub(r"^[%!].*$", "", "".join(cell["source"]), flags=re.M) for cell in cells]


def resolve(name):
    """Returns what a dotted name means."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        folder, _, last = name.rpartition(".")
        if not folder:
            raise
        return getattr(resolve(folder), last)


def imported(tree):
    """Yields the dotted names of ours that a block imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in names if DOTTED.match(name))


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda p: str(p.relative_to(ROOT)))
def test_names_exist(path):
    names = set(DOTTED.findall(path.read_text("utf-8")))
    for block in code_of(path):
        names |= set(imported(ast.parse(block)))
    for name in names:
        resolve(name)


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda p: str(p.relative_to(ROOT)))
def test_arguments_exist(path):
    trees = [ast.parse(block) for block in code_of(path)]
    for call in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = (
            call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        )
        if function in CALLED:
            given = {keyword.arg for keyword in call.keywords}
            assert given <= set(inspect.signature(CALLED[function]).parameters), function


@pytest.mark.parametrize("command", sorted({*PROGRAMS, *TASKS} - AROUND_OTHERS))
def test_options_exist(command, capsys):
    for option in ("--help", "--help-all"):
        with contextlib.suppress(SystemExit):  # which the server's parser raises
            main([command, option])
    known = set(OPTION.findall(capsys.readouterr().out))
    assert len(known) > 3
    for page in PAGES:
        text = page.read_text("utf-8").replace("\\\n", " ")
        for arguments in re.findall(rf"keras-tnattn {command} ([^`\n#]*)", text):
            options = set(OPTION.findall(arguments)) - {"--help", "--help-all"}
            assert options <= known, page.name
