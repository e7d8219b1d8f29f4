"""Space-time diagrams of cellular automata."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from keras_tnattn_train.runs.plots import save


def space_time(truth: np.ndarray, predicted: np.ndarray, steps: int, path: Path) -> None:
    """Draws two histories of a row of bits, `(T, N)`, and where they differ.

    Args:
        truth: The history computed by the rule.
        predicted: The history computed by the network, from the same first row.
        steps: Steps of the rule between two rows.
        path: The PNG file.
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
    save(figure, path)
