"""Graphs with labeled nodes, from two tables: the nodes, and the edges between them."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn_train.data.reading import PACKED, Row, read_table
from keras_tnattn_train.options.errors import InputError

# The named graphs, which are folders in the folder of `--data-dir`. To add one, add an entry here.
GRAPH_SETS = {"cora": "citations between papers, which are classified by topic"}

PARTS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class LabeledGraph:
    """An undirected graph whose nodes have features and classes.

    Args:
        features: Floats `(L, F)`; a row sums to 1 unless it is empty.
        edges: Integers `(E, 2)`, rows `(sender, receiver)`, each edge in both directions.
        labels: Integers `(L,)`, positions in `class_names`.
        parts: Booleans `(L,)` for each of `train`, `validation` and `test`.
        class_names: The names of the classes.
    """

    features: np.ndarray
    edges: np.ndarray
    labels: np.ndarray
    parts: dict[str, np.ndarray]
    class_names: tuple[str, ...]

    def fingerprint(self) -> str:
        """Returns a SHA-256 that changes with any feature, edge, label or part."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        for array in (self.features, self.edges, self.labels, *self.parts.values()):
            digest.update(repr(array.shape).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def load_graph(dataset: str, data_dir: str | None = None) -> LabeledGraph:
    """Reads a graph.

    Its folder holds the tables `nodes` and `edges`, as `.csv` or `.tsv`, which may be compressed
    (`.gz`, `.xz`). Each row of `nodes` is a node, numbered from 0 in the order of the file: its
    `label`, its `split` (`train`, `validation`, `test` or `none`), and its features, either in a
    column `words` (the numbers of the features that are 1, separated by spaces) or in columns of
    numbers. Each row of `edges` is an undirected edge: the numbers of two nodes, `source` and
    `target`.

    The features of a node are divided by their sum. A repeated edge counts once, and self-loops
    are dropped, because the layers add one to every node.

    Args:
        dataset: A name in `GRAPH_SETS`, or the path of a folder.
        data_dir: The folder that holds the named graphs. Default: none.

    Raises:
        InputError: If there are no such tables, or they cannot be read as a graph.
    """
    if dataset in GRAPH_SETS:
        if data_dir is None:
            raise InputError(
                f"Expected --data-dir, the folder of {dataset}/nodes.tsv.xz and "
                f"{dataset}/edges.tsv.xz. Received: dataset={dataset!r} without it"
            )
        folder = Path(data_dir, dataset)
    else:
        folder = Path(dataset)
        if not folder.is_dir():
            raise InputError(
                f"Expected dataset to be one of {', '.join(GRAPH_SETS)}, or the path of a folder. "
                f"Received: dataset={dataset!r}"
            )
    path = _table(folder, "nodes")
    header, rows = read_table(path)
    _check_columns(path, header, "label", "split")
    features = _features(path, header, rows)
    names = sorted({row["label"] for row in rows}, key=_in_order)
    if len(names) < 2 or "" in names:
        raise InputError(
            f"Expected a label for each node, and two classes or more. Received: {path} with the "
            f"classes {names}"
        )
    number = {name: i for i, name in enumerate(names)}
    labels = np.array([number[row["label"]] for row in rows], "int32")
    splits = np.array([row["split"] for row in rows])
    unknown = sorted({*splits.tolist()} - {*PARTS, "none"})
    parts = {part: splits == part for part in PARTS}
    empty = [part for part in PARTS if not parts[part].any()]
    if unknown or empty:
        raise InputError(
            f"Expected nodes of each split, {', '.join(PARTS)}, and none for the others. "
            f"Received: {path} with {', '.join(map(repr, unknown)) or f'no {empty[0]} nodes'}"
        )
    edges = _edges(_table(folder, "edges"), len(rows))
    return LabeledGraph(features, edges, labels, parts, tuple(names))


def _in_order(name: str) -> tuple[bool, Any]:
    """Sorts numbers by value, before all other names."""
    return (False, int(name)) if name.isdecimal() else (True, name)


def _table(folder: Path, name: str) -> Path:
    for suffix in (".tsv", ".csv"):
        for packed in ("", *PACKED):
            path = folder / f"{name}{suffix}{packed}"
            if path.exists():
                return path
    raise InputError(f"Expected a table {name}.tsv or .csv (.gz, .xz). Received: {folder}")


def _check_columns(path: Path, header: list[str], *names: str) -> None:
    for name in names:
        if name not in header:
            raise InputError(
                f"Expected {path} to have a column {name!r}. Received: columns={header}"
            )


def _features(path: Path, header: list[str], rows: list[Row]) -> np.ndarray:
    columns = [name for name in header if name not in ("label", "split")]
    try:
        if "words" in columns:
            words = [[int(word) for word in row["words"].split()] for row in rows]
            if min((word for line in words for word in line), default=0) < 0:
                raise ValueError("a negative word")
            size = 1 + max((word for line in words for word in line), default=-1)
            features = np.zeros((len(rows), size), "float32")
            for i, line in enumerate(words):
                features[i, line] = 1
        else:
            values = [[float(row[name]) for name in columns] for row in rows]
            features = np.array(values, "float32").reshape(len(rows), len(columns))
    except ValueError as error:
        raise InputError(
            f"Expected numbers as features of the nodes. Received: {path} ({error})"
        ) from error
    if not features.size or not np.isfinite(features).all():
        raise InputError(
            "Expected nodes with features, a column words or columns of finite numbers. "
            f"Received: {path} with columns={header} and {len(rows)} rows"
        )
    sums = features.sum(axis=1, keepdims=True)
    return features / np.where(sums == 0, 1, sums)


def _edges(path: Path, num_nodes: int) -> np.ndarray:
    header, rows = read_table(path)
    _check_columns(path, header, "source", "target")
    try:
        pairs = [(int(row["source"]), int(row["target"])) for row in rows]
        edges = np.array(pairs, "int32").reshape(-1, 2)
    except (ValueError, OverflowError) as error:
        raise InputError(f"Expected numbers of nodes. Received: {path} ({error})") from error
    if not len(edges) or edges.min() < 0 or edges.max() >= num_nodes:
        raise InputError(
            f"Expected edges between nodes 0 to {num_nodes - 1}. Received: {path} with "
            + (f"the nodes {edges.min()} to {edges.max()}" if len(edges) else "no edges")
        )
    both = np.concatenate([edges, edges[:, ::-1]])
    return np.unique(both[both[:, 0] != both[:, 1]], axis=0)
