"""Draws the pictures of the studies."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from keras_tnattn_train.runs.plots import distinct_colors, save
from keras_tnattn_train.runs.tables import attention_title


def by_dimension(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws weights and accuracies by embedding dimension, a row of panels for each data set.

    Points are means over seeds; bars reach one standard deviation up and down.
    """
    panels = {
        "attention weights": ("attention_weights", "log"),
        "training accuracy": ("train_accuracy", "linear"),
        "test accuracy": ("test_accuracy", "linear"),
    }
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    names = list(dict.fromkeys(row["attention"] for row in rows if row["dim"]))
    figure = Figure(figsize=(10, 2.8 * len(datasets)), layout="constrained")
    grid = figure.subplots(len(datasets), len(panels), squeeze=False)
    for line, dataset in zip(grid, datasets, strict=True):
        for axes, (title, (column, scale)) in zip(line, panels.items(), strict=True):
            for name, color in zip(names, distinct_colors(len(names)), strict=True):
                group = [r for r in rows if (r["attention"], r["dataset"]) == (name, dataset)]
                dims = sorted({row["dim"] for row in group})
                seeds = [[row[column] for row in group if row["dim"] == dim] for dim in dims]
                axes.errorbar(
                    dims,
                    [fmean(values) for values in seeds],
                    yerr=[stdev(values) if len(values) > 1 else 0.0 for values in seeds],
                    marker=".",
                    capsize=2,
                    color=color,
                    label=attention_title(name),
                )
            axes.set(title=f"{dataset}: {title}", xlabel="embedding dimension")
            axes.set_xscale("log", base=2)
            axes.set_yscale(scale)
            axes.grid(alpha=0.3)
    grid[0][0].legend()
    save(figure, path)


def by_cost(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the test accuracy against the bytes of the weights and the seconds of training.

    Each data set has a column of panels; colors are attentions, and markers are settings.
    """
    costs: dict[str, Callable[[dict[str, Any]], float]] = {
        "bytes (4 for each weight)": lambda row: 4 * row["weights"],
        "seconds of training": lambda row: row["seconds"],
    }
    datasets, names, settings = (
        list(dict.fromkeys(row[column] for row in rows))
        for column in ("dataset", "attention", "setting")
    )
    colors = distinct_colors(len(names))
    figure = Figure(figsize=(2 + 2.6 * len(datasets), 5.5), layout="constrained")
    grid = figure.subplots(len(costs), len(datasets), squeeze=False)
    for line, (title, cost) in zip(grid, costs.items(), strict=True):
        for axes, dataset in zip(line, datasets, strict=True):
            for name, setting in itertools.product(names, settings):
                wanted = (name, setting, dataset)
                group = [r for r in rows if (r["attention"], r["setting"], r["dataset"]) == wanted]
                points = []
                for dim in sorted({row["dim"] for row in group}):
                    same = [row for row in group if row["dim"] == dim]
                    accuracy = 100 * fmean(row["test_accuracy"] for row in same)
                    points.append((fmean(map(cost, same)), accuracy))
                if not points:
                    continue
                # The baseline is the same in all settings.
                is_baseline = not group[0]["dim"]
                axes.plot(
                    *zip(*points, strict=True),
                    color=colors[names.index(name)],
                    marker="*" if is_baseline else "os^vD"[settings.index(setting)],
                    markersize=6,
                    linewidth=0.8,
                    label=name if is_baseline else f"{attention_title(name)}, {setting}",
                )
            axes.set(title=dataset, xlabel=title, xscale="log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.grid(alpha=0.3)
        line[0].set_ylabel("test accuracy, %")
    labels = {
        label: handle
        for axes in grid[0]
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(labels.values(), labels, loc="outside right upper", fontsize=8)
    save(figure, path)


def by_epoch(runs: Mapping[str, Sequence[Sequence[dict[str, float]]]], path: Path) -> None:
    """Draws loss and accuracy over the epochs, of all models in the same panels.

    A circle marks the epoch of the lowest validation loss.
    """
    figure = Figure(figsize=(11, 4), layout="constrained")
    colors = distinct_colors(len(runs))
    panels = {"log perplexity (loss)": "loss", "accuracy of the next token": "accuracy"}
    for axes, (title, metric) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for number, (name, seeds) in enumerate(runs.items()):
            for seed, rows in enumerate(seeds):
                epochs = [row["epoch"] for row in rows]
                label = None if seed else name
                style: dict[str, Any] = {"color": colors[number], "linewidth": 1.2}
                axes.plot(epochs, [row[metric] for row in rows], linestyle=":", **style)
                axes.plot(epochs, [row[f"val_{metric}"] for row in rows], label=label, **style)
                best = min(rows, key=lambda row: row["val_loss"])
                axes.plot(best["epoch"], best[f"val_{metric}"], marker="o", **style)
        axes.set(title=title, xlabel="epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    figure.suptitle("training dotted, validation solid", fontsize=10)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    save(figure, path)
