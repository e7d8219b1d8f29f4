"""The pictures of a run, drawn without a display."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.metrics import ConfusionMatrixDisplay

from training.runs import replacing


def learning_curves(rows: list[dict[str, float]], test_accuracy: float | None, path: Path) -> None:
    """Draws loss and accuracy over the epochs, and the final accuracy on the test part, if any."""
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
    _save(figure, path)


def confusion_matrix(
    labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str], path: Path
) -> None:
    """Draws which class the rows of each class were taken for, as shares of the class."""
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
    _save(figure, path)


def psi(scores: np.ndarray, words: Sequence[str], path: Path) -> None:
    """Draws the scores `(H, L, L)` between the `L` words of a text, a panel for each head."""
    figure = Figure(figsize=(1.5 + 5 * len(scores), 5.5), layout="constrained")
    panels = figure.subplots(1, len(scores), squeeze=False)[0]
    for head, (axes, score) in enumerate(zip(panels, scores, strict=True)):
        image = axes.imshow(score, cmap="viridis")
        axes.set_title(rf"$\Psi$, head {head + 1}")
        axes.set_xticks(range(len(words)), words, rotation="vertical", fontsize=8)
        axes.set_yticks(range(len(words)), words, fontsize=8)
        figure.colorbar(image, ax=axes, shrink=0.7)
    _save(figure, path)


def space_time(truth: np.ndarray, predicted: np.ndarray, steps: int, path: Path) -> None:
    """Draws two histories of a row of bits, `(T, N)`, `steps` steps between rows, and their errors.

    Args:
        truth: By the rule.
        predicted: By the network, from the same first row.
        steps: Steps of the rule between two rows.
        path: The picture.
    """
    errors = truth != predicted
    figure = Figure(figsize=(14, 4), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    titles = ("rule", "network, fed with its outputs", f"errors: {errors.sum():,} cells")
    for axes, bits, title in zip(panels, (truth, predicted, errors), titles, strict=True):
        extent = (0, bits.shape[1], steps * len(bits), 0)
        axes.imshow(
            bits, cmap="binary", vmin=0, vmax=1, aspect="auto", interpolation="none", extent=extent
        )
        axes.set(title=title, xlabel="cell")
    panels[0].set_ylabel("step")
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    with replacing(path) as partial:
        figure.savefig(partial, dpi=120)
