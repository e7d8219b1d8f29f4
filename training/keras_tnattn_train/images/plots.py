"""Pictures of what power law graph attention computes for an image."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from keras_tnattn_train.runs.plots import save

# The paper's symbols: what is computed from the image, then what is learned of all images.
SYMBOLS = {
    "E_LM": r"$E_{LM}$",
    "A_LM": r"$A_{LM}$",
    "G_LM": r"$G_{LM}$",
    "P": r"$P$",
    "a": r"$a$",
    "b_a": r"$b_a$",
}


def deductive(image: np.ndarray, outputs: dict[str, np.ndarray], path: Path) -> None:
    """Draws an image, and a row of the deductive outputs of each head.

    Args:
        image: The image `(H, W)`.
        outputs: Arrays `(heads, rows, columns)` by the names of `SYMBOLS`, among others.
        path: The file.
    """
    heads = len(outputs["E_LM"])
    columns = 1 + len(SYMBOLS)
    figure = Figure(figsize=(2.6 * columns, 2.6 * heads), layout="constrained")
    rows = figure.subplots(heads, columns, squeeze=False)
    for head, row in enumerate(rows):
        if head == 0:
            row[0].imshow(image, cmap="gray")
        row[0].axis("off")
        for axes, (name, symbol) in zip(row[1:], SYMBOLS.items(), strict=True):
            drawn = axes.imshow(outputs[name][head], cmap="viridis", interpolation="nearest")
            figure.colorbar(drawn, ax=axes, shrink=0.7)
            axes.set_title(f"{symbol}, head {head + 1}")
    save(figure, path)
