"""Draws learning curves and confusion matrices; needs no display."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from sklearn.metrics import ConfusionMatrixDisplay

from keras_tnattn_train.system.files import replacing


def learning_curves(rows: list[dict[str, float]], test_accuracy: float | None, path: Path) -> None:
    """Draws loss and accuracy over the epochs and, if given, the final test accuracy."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    epochs = [row["epoch"] for row in rows]
    for axes, metric in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for name, label in ((metric, "training"), (f"val_{metric}", "validation")):
            if name in rows[0]:
                axes.plot(epochs, [row[name] for row in rows], marker=".", label=label)
        axes.set(xlabel="epoch", ylabel=metric)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    if test_accuracy is not None:
        axes.axhline(test_accuracy, color="black", linestyle=":", label="test, at the end")
    axes.legend()
    save(figure, path)


def confusion_matrix(
    labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str], path: Path
) -> None:
    """Draws the confusion matrix; the row of each true class sums to 1."""
    size = 3 + 0.3 * len(class_names)
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    ConfusionMatrixDisplay.from_predictions(
        labels,
        predictions,
        labels=range(len(class_names)),
        display_labels=class_names,
        normalize="true",
        include_values=len(class_names) <= 12,
        values_format=".2f",
        xticks_rotation="vertical",
        cmap="Blues",
        ax=figure.subplots(),
    )
    save(figure, path)


def distinct_colors(count: int) -> list[tuple[float, ...]]:
    """Returns as many colors as there are series, no two of them equal."""
    if count > 20:
        return [colormaps["turbo"](n / (count - 1)) for n in range(count)]
    # Those of tab10, which matplotlib takes by itself, and then the light ones.
    places = [*range(0, 20, 2), *range(1, 20, 2)]
    return [colormaps["tab20"](place) for place in places[:count]]


def save(figure: Figure, path: Path) -> None:
    """Writes a figure to a PNG file, atomically.

    Characters that the font does not have, such as emoji, are drawn as boxes.
    """
    with replacing(path) as partial, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        figure.savefig(partial, dpi=120)
