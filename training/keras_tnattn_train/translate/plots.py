"""Pictures of the results of a translator's attentions for a sentence."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from keras_tnattn_train.runs.plots import save
from keras_tnattn_train.translate.power_laws import PowerLaw

# The paper's symbols for the results of power law graph attention; other attentions have scores.
SYMBOLS = {
    "E_LM": r"$E_{LM}$",
    "E": r"$E$",
    "P": r"$P$",
    "a": r"$a$",
    "b_a": r"$b_a$",
    "A_LM": r"$A_{LM}$",
    "G_LM": r"$G_{LM}$",
    "scores": "scores",
}
CURVES = {"power_law": "tab:blue", "lognormal": "tab:orange", "exponential": "tab:green"}
BETWEEN_TOKENS = ("E_LM", "E", "scores")
MAX_WIDTH = 10  # inches of a picture of several heads, whose words can be read on a page


def heat_maps(
    name: str,
    matrices: np.ndarray,
    heads: Sequence[int],
    path: Path,
    tokens: tuple[Sequence[str], Sequence[str]] | None = None,
) -> None:
    """Draws a matrix of each head `(H, R, C)`, one panel per head, on one scale of colors."""
    for axes, head, matrix in _panels(heads, matrices, path, _size(matrices[0].shape, tokens)):
        _heat_map(axes, matrix, tokens, (float(matrices.min()), float(matrices.max())))
        axes.set_title(f"{SYMBOLS[name]}, head {head}")


def histograms(name: str, matrices: np.ndarray, heads: Sequence[int], path: Path) -> None:
    """Draws histograms of the entries of a matrix of each of `H` heads `(H, R, C)`."""
    for axes, head, matrix in _panels(heads, matrices, path, (3.6, 2.8)):
        _histogram(axes, name, matrix)
        axes.set_title(f"{SYMBOLS[name]}, head {head}")


def tails(name: str, fits: Sequence[PowerLaw], heads: Sequence[int], path: Path) -> None:
    """Draws how many entries of a matrix of each head exceed a magnitude, and the fitted tails.

    Both axes are logarithmic, so that a power law is a straight line.
    """
    for axes, head, fit in _panels(heads, fits, path, (3.6, 3.2)):
        x = fit.magnitudes
        axes.set(xlabel="magnitude", ylabel="share of larger entries")
        if not fit.curves:
            axes.set_title(f"{SYMBOLS[name]}, head {head}: not tested")
            continue
        axes.set_title(f"{SYMBOLS[name]}, head {head}")
        axes.plot(x, np.arange(len(x), 0, -1) / len(x), ".", color="silver", markersize=3)
        for law, curve in fit.curves.items():
            label = law.replace("_", " ")
            axes.plot(x[-len(curve) :], curve, CURVES[law], label=label, linewidth=1.2)
        # The many entries near zero would take up most of the picture.
        axes.set(xscale="log", xlim=(x[len(x) // 4] / 2, 2 * x[-1]))
        axes.set(yscale="log", ylim=(0.5 / len(x), 1.5))
        wide = x[-1] > 100 * x[len(x) // 4]
        axes.xaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 3)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.axvline(fit.results["x_min"], color="silver", linestyle=":")
        axes.legend(loc="lower left", fontsize=8)


def metric_spreads(spreads: Mapping[str, Sequence[float]], path: Path) -> None:
    """Draws the relative spread of the metric of each head, by layer."""
    figure = Figure(figsize=(1.5 + 1.6 * len(spreads), 3.2), layout="constrained")
    axes = figure.add_subplot()
    for position, values in enumerate(spreads.values()):
        width = 0.8 / len(values)
        places = [position - 0.4 + (head + 0.5) * width for head in range(len(values))]
        axes.bar(places, values, width=0.9 * width)
    axes.set_xticks(range(len(spreads)), [name.replace("/", "\n") for name in spreads])
    axes.set(ylabel="spread of G_LM over sentences, by head")
    axes.set_yscale("symlog", linthresh=0.01)
    axes.grid(axis="y", alpha=0.3)
    save(figure, path)


def one_head(
    matrices: dict[str, np.ndarray], path: Path, tokens: tuple[Sequence[str], Sequence[str]]
) -> None:
    """Draws matrices of one head as heat maps and histograms, and scores with their tokens."""
    width, height = _size((len(tokens[0]), len(tokens[1])), tokens)
    sizes = [(width, max(height, 3.6)) if name in BETWEEN_TOKENS else (9, 3.6) for name in matrices]
    widths, heights = zip(*sizes, strict=True)
    figure = Figure(figsize=(max(widths), sum(heights)), layout="constrained")
    subfigures: Any = figure.subfigures(len(matrices), 1, height_ratios=heights)
    rows = np.atleast_1d(subfigures)
    for row, (name, matrix) in zip(rows, matrices.items(), strict=True):
        row.suptitle(SYMBOLS[name])
        if name in BETWEEN_TOKENS:
            _heat_map(row.subplots(), matrix, tokens)
        else:
            left, right = row.subplots(1, 2)
            _heat_map(left, matrix)
            _histogram(right, name, matrix)
    save(figure, path)


def _panels(
    heads: Sequence[int],
    contents: Iterable[Any],
    path: Path,
    size: tuple[float, float],
) -> Iterator[tuple[Axes, int, Any]]:
    """Yields axes, number and content of each head's panel; saves the figure at the end."""
    columns = max(1, min(int(MAX_WIDTH / size[0]), len(heads)))
    rows = -(-len(heads) // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="compressed")
    for i, (head, content) in enumerate(zip(heads, contents, strict=True)):
        yield figure.add_subplot(rows, columns, i + 1), head, content
    save(figure, path)


def _size(
    shape: tuple[int, int], tokens: tuple[Sequence[str], Sequence[str]] | None
) -> tuple[float, float]:
    """Returns width and height of a heat map in inches, with room for the tokens."""
    if tokens is None:
        return 3.6, 3.2
    return 2.5 + 0.22 * shape[1], 1.8 + 0.22 * shape[0]


def _heat_map(
    axes: Axes,
    matrix: np.ndarray,
    tokens: tuple[Sequence[str], Sequence[str]] | None = None,
    limits: tuple[float | None, float | None] = (None, None),
) -> None:
    low, high = limits
    image = axes.imshow(matrix, cmap="viridis", interpolation="nearest", vmin=low, vmax=high)
    between = "feature" if tokens is None else "token"
    axes.set(xlabel=f"{between} of the keys", ylabel=f"{between} of the queries")
    figure: Any = axes.get_figure(root=False)
    figure.colorbar(image, ax=axes, shrink=0.8)
    if tokens is not None:
        # The fonts lack the joiner.
        rows, columns = ([x.replace("\uffed", "\u25a0") for x in side] for side in tokens)
        style: dict[str, Any] = {"fontsize": 8, "parse_math": False}
        axes.set_xticks(range(len(columns)), columns, rotation="vertical", **style)
        axes.set_yticks(range(len(rows)), rows, **style)


def _histogram(axes: Axes, name: str, matrix: np.ndarray) -> None:
    """Draws a histogram with a line at zero, as in the paper; not for `A_LM`, which is positive."""
    axes.hist(matrix.ravel(), bins=100, log=name == "A_LM")
    if name != "A_LM":
        axes.axvline(0, color="tab:orange", linestyle="--")
    axes.locator_params(axis="x", nbins=6)  # long numbers, too, have room side by side
    axes.set(xlabel="value", ylabel="entries")
