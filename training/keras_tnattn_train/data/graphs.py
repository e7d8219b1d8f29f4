"""Graphs with labeled nodes, from two tables: the nodes, and the edges between them."""

import dataclasses
import hashlib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn_train.data.names import Labels, plain
from keras_tnattn_train.data.opening import PACKINGS, suffix_of
from keras_tnattn_train.data.tables import (
    SUFFIXES,
    BadRows,
    Table,
    TableRow,
    open_table,
    problem_of,
    quantity,
)
from keras_tnattn_train.data.texts.labeled import split_rows
from keras_tnattn_train.data.texts.tables import doubtful_labels
from keras_tnattn_train.options.errors import InputError

# The named graphs, which are folders in the folder of `--data-dir`. To add one, add an entry here.
GRAPH_SETS = {"cora": "citations between papers, which are classified by topic"}

PARTS = ("train", "validation", "test")
FRACTION = 0.2  # of the labeled nodes, for each of validation and test
# Columns with the names of nodes, and columns without a name, which pandas writes for row numbers.
NAMES = ("id", "node", "node_id", "name", "index")
UNNAMED_COLUMNS = ("", "unnamed: 0")
_LARGEST = 2**32  # bytes of the features
_LARGEST_NUMBER = float(np.finfo("float32").max)


@dataclasses.dataclass(frozen=True)
class LabeledGraph:
    """An undirected graph whose nodes have features and classes.

    Args:
        features: Floats `(L, F)`; the magnitudes of a row sum to 1 unless it is empty.
        edges: Integers `(E, 2)`, rows `(sender, receiver)`, each edge in both directions.
        labels: Integers `(L,)`, positions in `class_names`; 0 for a node without a label.
        parts: Booleans `(L,)` for each of `train`, `validation` and `test`.
        class_names: The names of the classes.
        edge_weights: Positive floats `(E,)`. Default: no weights.
        names: The names of the nodes. Default: their numbers.
        labeled: Booleans `(L,)`, whether a node has a label. Default: all have.
        notes: Sentences that describe how the graph was read.
    """

    features: np.ndarray
    edges: np.ndarray
    labels: np.ndarray
    parts: dict[str, np.ndarray]
    class_names: tuple[str, ...]
    edge_weights: np.ndarray | None = None
    names: tuple[str, ...] | None = None
    labeled: np.ndarray | None = None
    notes: tuple[str, ...] = ()

    def fingerprint(self) -> str:
        """Returns a SHA-256 that changes with any feature, edge, weight, label, name or part."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        arrays = [self.features, self.edges, self.labels, *self.parts.values()]
        arrays += [array for array in (self.edge_weights, self.labeled) if array is not None]
        for array in arrays:
            digest.update(repr(array.shape).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        if self.names is not None:
            digest.update(repr(self.names).encode())
        return digest.hexdigest()


def load_graph(
    dataset: str,
    data_dir: str | None = None,
    validation_fraction: float | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
) -> LabeledGraph:
    """Reads a graph.

    Its folder holds the tables `nodes` and `edges`, as `.csv` or `.tsv`, which may be packed
    (`.gz`, `.xz`, `.bz2`, `.zip`).

    Each row of `nodes` is a node. Its columns are: `label`, empty if the class is unknown; `split`
    (`train`, `validation`, `test` or `none`), without which the labeled nodes are split by the
    fractions; the name of the node, called `id`, `node`, `node_id`, `name` or `index`, without
    which nodes are numbered from 0 in the order of the file; and the features, either a column
    `words` (the numbers of the features that are 1, separated by spaces) or columns of numbers.
    The features of a node are divided by the sum of their magnitudes.

    Each row of `edges` is an undirected edge: two nodes, `source` and `target`, and perhaps a
    positive `weight`. An edge that is repeated, in either direction, counts once, and self-loops
    are dropped, because the layers add one to every node. Fractions are those of labeled nodes, if
    there is no column `split`.
    """
    folder = _folder(dataset, data_dir)
    nodes = _Nodes(_table(folder, "nodes"))
    features = nodes.features()
    parts, note = nodes.split((validation_fraction, test_fraction), seed)
    edges, weights, notes = _edges(_table(folder, "edges"), nodes)
    return LabeledGraph(
        features,
        edges,
        nodes.labels,
        parts,
        nodes.class_names,
        weights,
        nodes.names,
        None if nodes.labeled.all() else nodes.labeled,
        (*nodes.notes, *note, *notes),
    )


def _folder(dataset: str, data_dir: str | None) -> Path:
    if dataset in GRAPH_SETS:
        if data_dir is None:
            raise InputError(
                f"Expected --data-dir, the folder of {dataset}/nodes.tsv.xz and "
                f"{dataset}/edges.tsv.xz. Received: dataset={dataset!r} without it"
            )
        return Path(data_dir, dataset)
    folder = Path(dataset)
    if not folder.is_dir():
        raise InputError(
            f"Expected dataset to be one of {', '.join(GRAPH_SETS)}, or the path of a folder. "
            f"Received: dataset={dataset!r}"
        )
    return folder


def _table(folder: Path, name: str) -> Path:
    """Returns the table of a name, in any case; an error if there is none, or more than one."""
    paths = []
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            stem = path.name.lower().partition(".")[0]
            if stem == name and suffix_of(path) in SUFFIXES and path.is_file():
                paths.append(path)
    if len(paths) != 1:
        received = ", ".join(path.name for path in paths)
        raise InputError(
            f"Expected a table {name}.tsv or .csv ({', '.join(PACKINGS)}). Received: {folder}"
            + (f" with {received}" if received else "")
        )
    return paths[0]


class _Nodes:
    """The table of the nodes."""

    def __init__(self, path: Path) -> None:
        self.path, bad = path, BadRows(path, None)
        with open_table(path) as table:
            self.columns = table.columns
            self._label = _required_place(table, "label")
            self._split, words = table.place("split"), table.place("words")
            named = [place for name in NAMES if (place := table.place(name)) is not None]
            unnamed = [i for i, c in enumerate(table.columns) if c.lower() in UNNAMED_COLUMNS]
            taken = {self._label, self._split, *named, *unnamed}
            numbers = [i for i in range(len(table.columns)) if i not in taken]
            self._words = words is not None
            self._features = [words] if words is not None else numbers
            self.rows: list[TableRow] = []
            self._values: list[list[Any]] = []
            for row in table:
                problem = row.problem or self._read(row)
                if problem:
                    bad.add(row, problem)
            self.notes = [*table.notes(), *bad.notes()]
        self._name_nodes(named)
        unused = [table.columns[i] for i in (*named[1:], *(numbers if self._words else ()))]
        unused = [name for name in unused if name != "words"]
        if unused:
            self.notes.append(f"columns of {path.name} that are not used: {', '.join(unused)}")
        if unnamed:
            self.notes.append(f"column without a name of {path.name} left out")
        self._number_classes()

    def _read(self, row: TableRow) -> str | None:
        """Reads the features of a row; returns what is wrong with it, if anything is."""
        if problem := problem_of(row, range(len(row.fields))):
            return problem
        cells = [row.fields[i] for i in self._features]
        if self._words:
            words = cells[0].split()
            wrong = next((word for word in words if not word.isdecimal()), None)
            if wrong is not None:
                return f"{wrong!r} in words, which is no number of a feature"
            values: list[Any] = [int(word) for word in words]
        else:
            values = []
            for place, cell in zip(self._features, cells, strict=True):
                values.append(_number(cell))
                if not abs(values[-1]) <= _LARGEST_NUMBER:
                    name = self.columns[place]
                    return f"{cell!r} in the column {name}, which is no finite float32"
        self.rows.append(row)
        self._values.append(values)
        return None

    def _name_nodes(self, named: Sequence[int]) -> None:
        self.number: dict[str, int] = {}
        bad = BadRows(self.path, None)
        for i, row in enumerate(self.rows):
            name = canonical_name(row.fields[named[0]]) if named else str(i)
            if self.number.setdefault(name, i) != i:
                bad.add(row, f"the node {name!r}, which {self.rows[self.number[name]]} is already")
        bad.notes()
        self.names = tuple(self.number) if named else None

    def _number_classes(self) -> None:
        labels = Labels()
        given = [labels(row.fields[self._label]) for row in self.rows]
        self.notes += labels.notes()
        names = sorted({*given} - {""}, key=_in_order)
        if len(names) < 2:
            raise InputError(
                "Expected labels of two classes or more. "
                f"Received: {self.path} with the classes {names}"
            )
        number = {name: i for i, name in enumerate(names)}
        self.class_names = tuple(names)
        self.labels = np.array([number.get(name, 0) for name in given], "int32")
        self.labeled = np.array([bool(name) for name in given])
        counts = np.bincount(self.labels[self.labeled])
        self.notes += doubtful_labels(dict(zip(names, counts.tolist(), strict=True)))
        if not self.labeled.all():
            count = quantity(int((~self.labeled).sum()), "node")
            self.notes.append(f"{count} without a label, whose classes are predicted only")

    def split(
        self, fractions: tuple[float | None, float | None], seed: int
    ) -> tuple[dict[str, np.ndarray], list[str]]:
        """Returns the parts, and a sentence about them if they are drawn."""
        if self._split is None:
            return self._drawn_parts(fractions, seed)
        if fractions != (None, None):
            raise InputError(
                f"Expected no validation_fraction and test_fraction with a column split in "
                f"{self.path}. Received: {fractions[0]} and {fractions[1]}. Remove one of them"
            )
        column = self._split
        splits = np.array([plain(row.fields[column]).lower() for row in self.rows])
        bad = BadRows(self.path, None)
        for row, split, labeled in zip(self.rows, splits.tolist(), self.labeled, strict=True):
            if split not in (*PARTS, "none", ""):
                bad.add(row, f"the split {split!r}, which is none of {', '.join(PARTS)}, none")
            elif split in PARTS and not labeled:
                bad.add(row, f"a {split} node without a label")
        bad.notes()
        parts = {part: splits == part for part in PARTS}
        empty = [part for part in PARTS if not parts[part].any()]
        if empty:
            raise InputError(
                f"Expected nodes of each split, {', '.join(PARTS)}, and none for the others. "
                f"Received: {self.path} with no {empty[0]} nodes"
            )
        return parts, []

    def _drawn_parts(
        self, fractions: tuple[float | None, float | None], seed: int
    ) -> tuple[dict[str, np.ndarray], list[str]]:
        validation, test = (FRACTION if f is None else f for f in fractions)
        if validation + test >= 1:
            raise InputError(
                "Expected validation_fraction + test_fraction < 1. Received: "
                f"{validation} and {test}"
            )
        known = np.flatnonzero(self.labeled)
        rest, tested = split_rows(self.labels[known], test, seed)
        # `split_rows` rounds up, and a share of the rest is not exact.
        share = (math.ceil(validation * len(known)) - 0.5) / len(rest)
        train, validated = split_rows(self.labels[known[rest]], min(share, 0.999), seed)
        nodes_of = {
            "train": known[rest][train],
            "validation": known[rest][validated],
            "test": known[tested],
        }
        every = np.arange(len(self.rows))
        parts = {part: np.isin(every, nodes) for part, nodes in nodes_of.items()}
        return parts, [f"no column split: the labeled nodes are split by seed {seed}"]

    def features(self) -> np.ndarray:
        """Returns the features `(L, F)`, and appends a sentence about how they were scaled."""
        if self._words:
            highest = [max(values, default=-1) for values in self._values]
            size = 1 + max(highest, default=-1)
            if 4 * size * len(self.rows) > _LARGEST:
                row = self.rows[int(np.argmax(highest))]
                raise InputError(
                    f"Expected features of {len(self.rows)} nodes that fit into "
                    f"{_LARGEST >> 30} GiB. Received: {self.path} with the word {size - 1} in "
                    f"{row}. Number the words from 0 without gaps"
                )
            features: np.ndarray = np.zeros((len(self.rows), size), "float32")
            for i, values in enumerate(self._values):
                features[i, values] = 1
        else:
            shape = len(self.rows), len(self._features)
            features = np.reshape(np.array(self._values, "float32"), shape)
        if not features.size:
            raise InputError(
                "Expected nodes with features, a column words or columns of numbers. "
                f"Received: {self.path} with columns={self.columns} and {len(self.rows)} rows"
            )
        if features.min() < 0:
            self.notes.append(
                "some features are negative: those of a node are divided by the sum of magnitudes"
            )
        sums = np.abs(features).sum(axis=1, keepdims=True)
        return features / np.where(sums == 0, 1, sums)


def _in_order(name: str) -> tuple[bool, Any]:
    """Sorts numbers by value, before all other names."""
    return (False, int(name)) if name.isdecimal() else (True, name)


def _required_place(table: Table, name: str) -> int:
    place = table.place(name)
    if place is None:
        raise InputError(
            f"Expected {table.path} to have a column {name!r}. Received: columns={table.columns}"
        )
    return place


def canonical_name(name: str) -> str:
    """Returns a node's name as it is seen; a number as `7`, also if it is `7.0`.

    pandas writes integers so if a column also has missing values.
    """
    name = plain(name)
    number = re.fullmatch(r"\+?0*(\d+)(\.0*)?", name, re.ASCII)
    return number[1] if number else name


def _edges(path: Path, nodes: _Nodes) -> tuple[np.ndarray, np.ndarray | None, list[str]]:
    """Returns edges in both directions `(E, 2)`, their weights, and sentences about them."""
    known = f"0 to {len(nodes.rows) - 1}" if nodes.names is None else f"called {nodes.names[0]} ..."
    bad, loops, zeros = BadRows(path, None, f"Correct them; the nodes are {known}"), 0, 0
    weights: dict[tuple[int, int], float] = {}
    with open_table(path) as table:
        ends = [_required_place(table, name) for name in ("source", "target")]
        column = table.place("weight")
        for row in table:
            problem, weight = row.problem, 1.0
            if problem is None:
                names = [canonical_name(row.fields[i]) for i in ends]
                unknown = [name for name in names if name not in nodes.number]
                if unknown:
                    problem = f"{unknown[0]!r}, which is no node"
            if problem is None and column is not None:
                weight = _number(row.fields[column])
                if not 0 <= weight < math.inf:
                    problem = f"the weight {row.fields[column]!r}, which is not a number >= 0"
            if problem is not None:
                bad.add(row, problem)
                continue
            source, target = sorted(nodes.number[name] for name in names)
            if source == target:
                loops += 1
            elif weight == 0:
                zeros += 1
            elif (source, target) in weights:
                if weights[source, target] != weight:
                    bad.add(row, f"an edge of another weight, {weights[source, target]:g}, before")
            else:
                weights[source, target] = weight
        notes = [*table.notes()]
        unused = [name for i, name in enumerate(table.columns) if i not in (*ends, column) and name]
    bad.notes()
    if not weights:
        raise InputError(f"Expected edges between nodes. Received: {path} with no edges")
    for count, noun, rest in (
        (loops, "self-loop", "dropped: the layers add one to every node"),
        (zeros, "edge", "of weight 0 dropped"),
    ):
        if count:
            notes.append(f"{quantity(count, noun)} {rest}")
    if unused:
        notes.append(f"columns of {path.name} that are not used: {', '.join(unused)}")
    pairs = np.array(list(weights), "int32")
    both, order = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0, return_index=True)
    if column is None:
        return both, None, notes
    return both, np.tile(np.array(list(weights.values()), "float32"), 2)[order], notes


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
