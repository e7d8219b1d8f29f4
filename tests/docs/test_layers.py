"""The tables of layers say what the layers that they name compute."""

import inspect
import re
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_tnattn import layers

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/layers.md").read_text("utf-8")
SHAPE = re.compile(r"(?:`(\w+)` )?`(\([\d, ]+\))`")
NAMES = {
    "keras": keras,
    "adjacency": np.eye(10, dtype="float32"),
    **{name: getattr(layers, name) for name in layers.__all__},
}
CONSTRUCTED = ("num_heads", "key_dim", "dropout")


def rows_of(text):
    """Returns the cells of each row of the tables."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def called(code, shapes):
    """Returns a layer, and the shape of what it returns for tensors of these shapes."""
    layer = eval(code, NAMES)
    ids = len(shapes[""]) == 2 and "Embedding" in code and "Local" not in code
    inputs = np.ones(shapes.pop(""), "int32" if ids else "float32")
    others = {name: np.ones(shape, "float32") for name, shape in shapes.items()}
    return layer, tuple(layer(inputs, **others).shape)


SHAPES = [cells for cells in rows_of(PAGE) if re.search(r"`[\w.]+\(.*\)`", cells[0])]


@pytest.mark.parametrize("cells", SHAPES, ids=lambda cells: re.findall(r"`(.+?)`", cells[0])[0])
def test_shapes_and_weights_are_those_of_the_layer(cells):
    code = re.findall(r"`(.+?)`", cells[0])[0]
    shapes = {name: eval(shape) for name, shape in SHAPE.findall(cells[1])}
    layer, output = called(code, shapes)
    assert f"`{output}`" == cells[2]
    assert f"{layer.count_params():,}" == cells[3]


def test_each_layer_is_in_a_table():
    shown = {name for cells in SHAPES for name in re.findall(r"`(\w+)\(", cells[0])}
    assert shown >= set(layers.__all__)


def test_arguments_are_those_of_the_signatures():
    table = rows_of(PAGE.split("## Arguments")[1].split("## What")[0])
    names = [name.strip("`") for name in table[0][1:]]
    assert len(table) > 10
    for first, *cells in table[2:]:
        kind = eval(first.strip("`"), NAMES)
        for name, cell in zip(names, cells, strict=True):
            function = kind if name in CONSTRUCTED else kind.call
            has_it = name in inspect.signature(function).parameters
            assert cell == ("yes" if has_it else "-"), (first, name)


def test_each_attention_is_in_the_table_of_arguments():
    table = rows_of(PAGE.split("## Arguments")[1].split("## What")[0])
    first = {cells[0].strip("`") for cells in table[2:]}
    attentions = {name for name in layers.__all__ if name.endswith(("Attention", "Network"))}
    assert first >= attentions


def test_the_front_page_has_the_same_numbers():
    readme = (ROOT / "README.md").read_text("utf-8")
    table = rows_of(readme.split("## Layers")[1].split("## ")[0])
    assert len(table) > 7
    of_page = {
        re.findall(r"`(?:keras\.layers\.)?(\w+)\(", cells[0])[0]: cells for cells in SHAPES[::-1]
    }
    for first, _, output, weights, *_ in table[2:]:
        cells = of_page[re.findall(r"`(\w+)`", first)[0]]
        assert (output, weights) == (cells[2], cells[3]), first
