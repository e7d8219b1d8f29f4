"""Draws the attention scores between the words of a text."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from keras_tnattn_train.runs.plots import save


def psi(scores: np.ndarray, words: Sequence[str], path: Path) -> None:
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
