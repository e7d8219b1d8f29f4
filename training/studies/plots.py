"""Draws the pictures of the studies."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from training.engine.plots import save


def by_dimension(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws weights and accuracies against the embedding dimension, a row of panels per data set.

    Args:
        rows: The runs of one setting.
        path: The image file to write.
    """
    panels = {
        "attention weights": ("attention_weights", "log"),
        "training accuracy": ("train_accuracy", "linear"),
        "test accuracy": ("test_accuracy", "linear"),
    }
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    figure = Figure(figsize=(10, 2.8 * len(datasets)), layout="constrained")
    grid = figure.subplots(len(datasets), len(panels), squeeze=False)
    for line, dataset in zip(grid, datasets, strict=True):
        for axes, (title, (column, scale)) in zip(line, panels.items(), strict=True):
            for name in dict.fromkeys(row["attention"] for row in rows if row["dim"]):
                own = [r for r in rows if (r["attention"], r["dataset"]) == (name, dataset)]
                dims = sorted({row["dim"] for row in own})
                values = [fmean(row[column] for row in own if row["dim"] == dim) for dim in dims]
                axes.plot(dims, values, marker=".", label=name.upper())
            axes.set(title=f"{dataset}: {title}", xlabel="embedding dimension")
            axes.set_xscale("log", base=2)
            axes.set_yscale(scale)
            axes.grid(alpha=0.3)
    grid[0][0].legend()
    save(figure, path)


def by_cost(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the test accuracy against the bytes of the weights and the seconds of training.

    Args:
        rows: The runs of one setting, and the fits of the baseline.
        path: The image file to write.
    """
    costs: dict[str, Callable[[dict[str, Any]], float]] = {
        "bytes, 4 a weight": lambda row: 4 * row["weights"],
        "seconds of training": lambda row: row["seconds"],
    }
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    figure = Figure(figsize=(9, 3.2 * len(datasets)), layout="constrained")
    grid = figure.subplots(len(datasets), len(costs), squeeze=False)
    for line, dataset in zip(grid, datasets, strict=True):
        for axes, (title, cost) in zip(line, costs.items(), strict=True):
            for name in dict.fromkeys(row["attention"] for row in rows):
                own = [r for r in rows if (r["attention"], r["dataset"]) == (name, dataset)]
                for dim in sorted({row["dim"] for row in own}):
                    same = [row for row in own if row["dim"] == dim]
                    point = (fmean(map(cost, same)), fmean(row["test_accuracy"] for row in same))
                    label = f"{name} {dim}" if dim else name
                    axes.scatter(*point, s=14)
                    axes.annotate(
                        label, point, fontsize=7, xytext=(3, 2), textcoords="offset points"
                    )
            axes.set(title=dataset, xlabel=title, ylabel="test accuracy")
            axes.set_xscale("log")
            axes.grid(alpha=0.3)
    save(figure, path)
