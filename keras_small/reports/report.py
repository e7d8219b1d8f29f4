"""Reports the changes to each layer of a compressed model as text, CSV, JSON and a picture."""

import csv
import dataclasses
import io
import json
import os
from collections.abc import Sequence
from typing import IO, Any

from keras_small.goals.counting import KeptPromise
from keras_small.reports.page import report_page
from keras_small.reports.pictures import draw


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """Describes one layer before and after the compression.

    Attributes:
        path: The names or attributes that lead to the layer, joined by `/`.
        kind: Class of the layer.
        format: `dense` or one of `compress(formats=...)`; `kept` if the layer did not change.
        ranks: Ranks of the format; of a table in blocks their numbers of rows. Empty for `dense`.
        bits: Bits per weight; 32 for floats.
        group_size: The number of integers of `dense` that share a scale; `None` for others.
        step: With `coded`, the step of integers in percent of the root of the mean square of the
            weights; otherwise `None`.
        weights_before, weights_after: Numbers of weights; packed integers count as what they stand
            for.
        bytes_before, bytes_after: Bytes of the weights.
        error: Measured relative error of the layer's outputs, before its activation.
        flops_before, flops_after: Floating-point operations for one row of the data, at all its
            positions or steps; sizes that are not known count as 1. Of recurrent layers of low rank
            they stay, because each call forms the product of the factors once, for all steps.
        reason: Why the layer did not change.
        curve: `(bytes, error, format)` of each candidate, with the estimated error by which the
            bytes are shared out: that of the outputs, of a table weighted by how much the model
            responds, of a tensor train as expected once it is fitted.
        chosen: The entry of `curve` that was chosen; `None` if the layer did not change.

    Example:
        >>> from keras_small.reports.report import LayerReport
        >>> LayerReport("hidden", "Dense", "low_rank", (8,), error=0.01).ranks
        (8,)
    """

    path: str
    kind: str
    format: str = "kept"
    ranks: tuple[int, ...] = ()
    bits: int = 32
    group_size: int | None = None
    step: int | None = None
    weights_before: int = 0
    weights_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    error: float = 0.0
    flops_before: int | None = None
    flops_after: int | None = None
    reason: str = ""
    curve: tuple[tuple[int, float, str], ...] = dataclasses.field(default=(), repr=False)
    chosen: tuple[int, float, str] | None = dataclasses.field(default=None, repr=False)


_HEADER = [
    "layer",
    "class",
    "stored as",
    "ranks",
    "weights",
    "bytes",
    "output error",
    "FLOPs per row",
]
# Maximum layers that a line about a reason names.
_NAMES_OF_A_REASON = 4
_NOT_IN_CSV = ("curve", "chosen")
_COLUMNS = [
    field.name for field in dataclasses.fields(LayerReport) if field.name not in _NOT_IN_CSV
]


@dataclasses.dataclass(frozen=True)
class Report:
    """Describes the compression of a model. `print(report)` shows a table.

    Attributes:
        layers: A `LayerReport` for each layer of a kind that can be replaced, and one for each
            class of the others that have weights.
        weights_before, weights_after: Numbers of weights of the model, as in `LayerReport`.
        bytes_before, bytes_after: Bytes of the weights of the model.
        metric_before, metric_after: Values of the metric, or `None` without a metric.
        error: Relative error of the outputs of the finished model on all rows of the data, `||y' -
            y|| / ||y||` over all outputs; `None` without data.
        rows: The number of these rows.
        file_bytes: Bytes of the `.keras` file that `CompressionResult.save` writes, or with `coded`
            of the `.tnz` file; `None` if no layer changed.
        files: The costs in their runtimes of the files that `CompressionResult.export` wrote,
            `keras_small.runtimes.file_costs.FileCosts`.
        promise: The promise that the model keeps, a `keras_small.goals.counting.KeptPromise`;
            `None` without one, or after a healing, which ends it.
        notes: Remarks, one sentence each.

    Example:
        >>> from keras_small import Report
        >>> Report((), 10, 5, 40, 10).ratio
        4.0
    """

    layers: tuple[LayerReport, ...]
    weights_before: int
    weights_after: int
    bytes_before: int
    bytes_after: int
    metric_before: float | None = None
    metric_after: float | None = None
    error: float | None = None
    rows: int = 0
    file_bytes: int | None = None
    files: tuple[Any, ...] = ()
    promise: KeptPromise | None = None
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """How many times smaller the compressed model is, in bytes."""
        return self.bytes_before / max(self.bytes_after, 1)

    def __str__(self) -> str:
        parts = [_table([_HEADER, *map(_cells, self.layers)]), *_reasons(self.layers)]
        parts.append(self._summary())
        parts += map(str, self.files)
        if self.promise is not None:
            parts.append(str(self.promise))
        return "\n".join([*parts, *self.notes])

    def _summary(self) -> str:
        text = (
            f"{self.weights_before:,} weights -> {self.weights_after:,}; "
            f"{self.bytes_before:,} bytes -> {self.bytes_after:,}: {self.ratio:.1f} times smaller"
        )
        if self.metric_before is not None:
            text += f"; metric {self.metric_before:.4f} -> {self.metric_after:.4f}"
        if self.error is not None:
            text += f"; error of the outputs on {self.rows:,} rows {self.error:.4f}"
        if self.file_bytes is not None:
            factor = self.bytes_before / self.file_bytes
            text += (
                f"\nfile: {self.file_bytes:,} bytes, {factor:.1f} times smaller than the "
                "original's weights"
            )
        return text

    def to_csv(self) -> str:
        """Returns the layers as CSV with a header."""
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in self.layers:
            values = {name: getattr(row, name) for name in _COLUMNS}
            writer.writerow(values | {"ranks": " ".join(map(str, row.ranks))})
        return text.getvalue()

    def to_json(self) -> str:
        """Returns the whole report as JSON, including the curves."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    def to_html(self, name: str = "model", metric: str = "metric") -> str:
        """Returns the report as a page in one file, with its pictures; needs Matplotlib.

        Args:
            name: The name of the model on the page. Default: `"model"`.
            metric: The name of the metric there. Default: `"metric"`.
        """
        return report_page(self, name, metric)

    def plot(self, path: str | os.PathLike | IO[bytes]) -> None:
        """Draws the candidates of each layer: error against size, the lowest errors, the choice.

        Below are the costs of the exported files: bytes on disk and of memory, and microseconds of
        a call. Needs Matplotlib.

        Args:
            path: The image file to write.
        """
        draw(self, path)


def _cells(row: LayerReport) -> list[str]:
    """Returns the row of a layer in the table of a report."""
    stored = row.format if row.bits == 32 else f"{row.format} {row.bits} bits"
    error = f"{row.error:.4f}" if row.format != "kept" else "0"
    return [
        row.path,
        row.kind,
        stored,
        ", ".join(map(str, row.ranks)) or "-",
        _change(row.weights_before, row.weights_after),
        _change(row.bytes_before, row.bytes_after),
        error,
        _change(row.flops_before, row.flops_after),
    ]


def _reasons(rows: Sequence[LayerReport]) -> list[str]:
    """Returns a line for each reason, with the layers that did not change for it."""
    paths: dict[str, list[str]] = {}
    for row in rows:
        if row.reason:
            paths.setdefault(row.reason, []).append(row.path)
    return [f"kept, {reason}: {_joined(names)}" for reason, names in paths.items()]


def _joined(names: Sequence[str]) -> str:
    """Returns names in a list that ends with the number of those that it leaves out."""
    left_out = len(names) - _NAMES_OF_A_REASON
    more = f" and {left_out} more" if left_out > 0 else ""
    return ", ".join(names[:_NAMES_OF_A_REASON]) + more


def _table(lines: list[list[str]]) -> str:
    """Returns cells as text in columns, the first line above a rule."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    header, *rows = lines
    rule = ["-" * width for width in widths]
    return "\n".join(
        " | ".join(map(str.ljust, line, widths)).rstrip() for line in (header, rule, *rows)
    )


def _change(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return "-"
    if before == after:
        return f"{before:,}"
    return f"{before:,} -> {after:,}"
