"""Measures classifiers; writes the scores of each class and the most confident mistakes."""

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from matplotlib.figure import Figure
from sklearn.metrics import classification_report

from keras_tnattn_train.runs.plots import save
from keras_tnattn_train.system.files import replacing

MISTAKES = 100


def parameter_counts(model: keras.Model) -> dict[str, int]:
    """Counts the weights of the attention layers, of the embedding and of the whole model."""
    return {
        "attention": sum(model.get_layer(name).count_params() for name in attentions(model)),
        "embedding": model.get_layer("embedding").count_params(),
        "all": model.count_params(),
    }


def attentions(model: keras.Model) -> list[str]:
    """Returns the names of the attention layers, those that `text_classifier` documents."""
    return [x.name for x in model.layers if re.fullmatch(r"attention(_\d+)?", x.name)]


def draw_psi(scores: np.ndarray, words: Sequence[str], path: Path) -> None:
    """Draws the scores `(H, L, L)` between the `L` words of a text, one panel per head."""
    figure = Figure(figsize=(1.5 + 5 * len(scores), 5.5), layout="constrained")
    panels = figure.subplots(1, len(scores), squeeze=False)[0]
    for head, (axes, score) in enumerate(zip(panels, scores, strict=True)):
        image = axes.imshow(score, cmap="viridis")
        axes.set_title(rf"$\Psi$, head {head + 1}")
        axes.set_xticks(range(len(words)), words, rotation="vertical", fontsize=8)
        axes.set_yticks(range(len(words)), words, fontsize=8)
        figure.colorbar(image, ax=axes, shrink=0.7)
    save(figure, path)


def write_report(
    labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str], path: Path
) -> None:
    """Writes precision, recall, F1 and support of each class, and their averages."""
    report = classification_report(
        labels,
        predictions,
        labels=range(len(class_names)),
        target_names=list(class_names),
        output_dict=True,
        zero_division=0,
    )
    # scikit-learn reports the accuracy as "micro avg" if the test part lacks a class.
    accuracy = float(np.mean(labels == predictions))
    report.pop("accuracy", None)
    report.pop("micro avg", None)
    rows = [
        [name, row["precision"], row["recall"], row["f1-score"], int(row["support"])]
        for name, row in report.items()
    ]
    _write(
        path,
        ["class", "precision", "recall", "f1", "support"],
        [*rows, ["accuracy", accuracy, accuracy, accuracy, len(labels)]],
    )


def write_mistakes(
    texts: Sequence[str],
    text_rows: np.ndarray,
    labels: np.ndarray,
    probabilities: np.ndarray,
    class_names: Sequence[str],
    path: Path,
) -> None:
    """Writes the 100 most confident mistakes, the most confident first."""
    predictions = probabilities.argmax(axis=-1)
    rows = np.arange(len(labels))
    wrong = rows[predictions != labels]
    order = np.argsort(-probabilities.max(axis=-1)[wrong], kind="stable")
    _write(
        path,
        ["probability", "predicted", "label", "probability_of_label", "text"],
        (
            [
                f"{probabilities[row, predictions[row]]:.6f}",
                class_names[predictions[row]],
                class_names[labels[row]],
                f"{probabilities[row, labels[row]]:.6f}",
                texts[text_rows[row]],
            ]
            for row in wrong[order][:MISTAKES]
        ),
    )


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
