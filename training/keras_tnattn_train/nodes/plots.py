"""Draws what a graph attention network attends to."""

import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_tnattn.models.graph_classifier import attention_model
from keras_tnattn_train.data.graphs import LabeledGraph
from keras_tnattn_train.runs.plots import distinct_colors, save

# The maximum number of neighbors drawn for the node in the middle, and for each of its neighbors.
NEIGHBORS = 8
MORE = 5


def attention(model: keras.Model, inputs: dict[str, Any], graph: LabeledGraph, path: Path) -> None:
    """Draws the coefficients of every layer, averaged over its heads, around one test node.

    The wider an edge, the more the node at its inner end receives from the node at its outer end.
    The number on a node is its coefficient for itself. The colors are the true classes.
    """
    places, edges = neighborhood(graph)
    layers = [
        keras.ops.convert_to_numpy(scores)[0].mean(axis=0)
        for scores in attention_model(model)(inputs)
    ]
    number = {tuple(edge): i for i, edge in enumerate(graph.edges.tolist())}
    figure = Figure(figsize=(5 * len(layers), 5), layout="constrained")
    colors = distinct_colors(len(graph.class_names))
    for n, (axes, scores) in enumerate(
        zip(figure.subplots(1, len(layers), squeeze=False)[0], layers, strict=True)
    ):
        for outer, inner in edges:
            ends = np.array([places[outer], places[inner]])
            width = 8 * scores[number[outer, inner]]
            axes.plot(*ends.T, color="gray", linewidth=width, zorder=1)
        for node, place in places.items():
            axes.scatter(*place, s=420, color=colors[graph.labels[node]], zorder=2)
            self_score = scores[len(graph.edges) + node]
            axes.text(*place, f"{self_score:.2f}", ha="center", va="center", fontsize=7, zorder=3)
        axes.set(title=f"layer {n + 1}", aspect="equal")
        axes.axis("off")
    save(figure, path)


def neighborhood(
    graph: LabeledGraph,
) -> tuple[dict[int, tuple[float, float]], list[tuple[int, int]]]:
    """Chooses a node of the test part, and places the nodes near it on two rings.

    The chosen node is one with the most neighbors among those with at most `NEIGHBORS`.
    """
    degrees = np.bincount(graph.edges[:, 1], minlength=len(graph.labels))
    tested = np.flatnonzero(graph.parts["test"])
    fitting = tested[degrees[tested] <= NEIGHBORS]
    middle = int(fitting[degrees[fitting].argmax()] if len(fitting) else tested[0])

    def senders(node: int) -> list[int]:
        return graph.edges[graph.edges[:, 1] == node, 0].tolist()

    places: dict[int, tuple[float, float]] = {middle: (0.0, 0.0)}
    edges = []
    inner = senders(middle)[:NEIGHBORS]
    sector = 2 * math.pi / max(len(inner), 1)
    for i, node in enumerate(inner):
        places[node] = (math.cos(i * sector), math.sin(i * sector))
        edges.append((node, middle))
    for i, node in enumerate(inner):
        outer = [other for other in senders(node) if other not in places][:MORE]
        for k, other in enumerate(outer):
            angle = (i + (k + 1) / (len(outer) + 1) - 0.5) * sector
            places[other] = (2 * math.cos(angle), 2 * math.sin(angle))
            edges.append((other, node))
    return places, edges
