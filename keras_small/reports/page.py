"""Shows a report of `compress` as a page in one HTML file, with its pictures."""

import base64
import datetime
import html
import io
from typing import Any

_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:62rem;margin:auto;padding:1rem}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.2rem .6rem}"
    ".scroll{overflow-x:auto}.number{text-align:right;white-space:nowrap}"
    ".bar{min-width:10rem}.bar div{height:.5rem;background:#bbb}.bar div+div{background:#36c}"
    "img{max-width:100%}li{overflow-wrap:anywhere}"
)


def report_page(report: Any, name: str, metric: str) -> str:
    """Returns the page of a `Report`, with the names of the model and of its metric."""
    picture = io.BytesIO()
    report.plot(picture)
    largest = max((row.bytes_before for row in report.layers), default=1)
    facts = [f"{name}, on {datetime.date.today()}"]
    facts.append(f"{report.bytes_before:,} bytes became {report.bytes_after:,}")
    if report.file_bytes is not None:
        facts.append(f"the file has {report.file_bytes:,} bytes")
    if report.metric_before is not None:
        after = f"{report.metric_after:.4f}"
        facts.append(f"the {metric} was {report.metric_before:.4f}, and is {after}")
    if report.error is not None:
        facts.append(f"the error of the outputs on {report.rows:,} rows is {report.error:.4f}")
    remarks: list[Any] = list(report.files)
    if report.promise is not None:
        remarks.append(report.promise)
    remarks += report.notes
    return "\n".join(
        [
            '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>Compression</title>',
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>',
            f"<h1>{report.ratio:.1f} times smaller</h1>",
            _list(facts),
            "<h2>Layers</h2><p>Bars: bytes before (grey) and after (blue).</p>",
            '<div class="scroll"><table><tr><th>layer<th>class<th>stored as',
            '<th class="number">bytes before<th class="number">after<th>',
            '<th class="number">output error',
            *(_row(row, largest) for row in report.layers),
            "</table></div><h2>Error against size</h2>",
            "<p>Estimated errors, by which the bytes were shared out. Lines: the lowest of each "
            "size, by layer. Large dots: the choice.</p>",
            f'<img alt="error against size of each layer" src="data:image/png;base64,'
            f'{base64.b64encode(picture.getvalue()).decode()}">',
            "<h2>Remarks</h2>" + _list(remarks) if remarks else "",
            "</html>\n",
        ]
    )


def _list(items: list[Any]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(str(item))}' for item in items)}</ul>"


def _row(row: Any, largest: int) -> str:
    stored = row.format + (f", {row.bits} bits" if row.bits != 32 else "")
    bars = "".join(
        f'<div style="width:{100 * size / max(largest, 1):.1f}%"></div>'
        for size in (row.bytes_before, row.bytes_after)
    )
    error = f"{row.error:.4f}" if row.format != "kept" else html.escape(row.reason) or "0"
    return (
        f"<tr><td>{html.escape(row.path)}<td>{html.escape(row.kind)}<td>{html.escape(stored)}"
        f'<td class="number">{row.bytes_before:,}<td class="number">{row.bytes_after:,}'
        f'<td class="bar">{bars}<td class="number">{error}'
    )
