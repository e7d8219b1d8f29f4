"""Draws the pictures of a report, which need Matplotlib."""

import itertools
import os
from collections.abc import Sequence
from typing import IO, Any

from keras_tnattn_runtime.extras import installation

# The costs of a file: attributes of `FileCosts`, and their labels.
_COSTS = {
    "bytes on disk": {"bytes": ""},
    "bytes of memory": {"resident_bytes": ""},
    "microseconds": {"one_row_us": "1 row", "many_rows_us": "32 rows"},
}


def draw(report: Any, path: str | os.PathLike | IO[bytes]) -> None:
    """Draws the pictures of a `Report`; see `Report.plot`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"Pictures need Matplotlib. {installation('matplotlib')}") from error

    if report.files:
        figure = Figure(figsize=(8, 8), layout="constrained")
        grid = figure.add_gridspec(2, 3, height_ratios=[5, 3])
        _draw_files(figure, grid, report.files)
    else:
        figure = Figure(figsize=(8, 5), layout="constrained")
        grid = figure.add_gridspec(1, 3)
    _draw_layers(figure.add_subplot(grid[0, :]), report.layers)
    figure.savefig(path, dpi=120)


def _draw_layers(axes: Any, layers: Sequence[Any]) -> None:
    """Draws for each layer its candidates, the lowest error of each size, and the choice."""
    for row in layers:
        points = sorted(point for point in row.curve if point[1] > 0)
        if not points:
            continue
        sizes = [size for size, _, _ in points]
        errors = [error for _, error, _ in points]
        lowest = list(itertools.accumulate(errors, min))
        line = axes.step(sizes, lowest, where="post", label=row.path)[0]
        axes.plot(sizes, errors, ".", alpha=0.3, color=line.get_color())
        if row.chosen is not None:
            size, error, _ = row.chosen
            axes.plot(size, max(error, 1e-6), "o", color=line.get_color())
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="estimated relative error")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize="small")


def _draw_files(figure: Any, grid: Any, files: Sequence[Any]) -> None:
    """Draws the costs of files in their runtimes."""
    for column, (label, costs) in enumerate(_COSTS.items()):
        axes = figure.add_subplot(grid[1, column])
        for number, (cost, name) in enumerate(costs.items()):
            shift = (2 * number - len(costs) + 1) * 0.2
            places = [place + shift for place in range(len(files))]
            axes.barh(places, [getattr(file, cost) for file in files], 0.4, label=name)
        names = [os.path.basename(file.path) for file in files]
        axes.set(xlabel=label, yticks=range(len(names)), yticklabels=[] if column else names)
        axes.ticklabel_format(axis="x", scilimits=(0, 3))
    axes.legend(fontsize="small")
