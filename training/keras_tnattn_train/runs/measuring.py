"""Measures what has not been measured yet, and keeps it in a CSV file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.system.files import (
    Columns,
    Measurements,
    read_measurements,
    write_measurements,
    writing,
)


def measure_missing(
    path: Path,
    keys: Columns,
    columns: Columns,
    wanted: Sequence[tuple],
    measure: Callable[..., dict[str, Any]],
    place: Callable[[tuple], Any],
    report: Callable[[Measurements], object] = lambda rows: None,
    blanks: bool = False,
) -> Measurements:
    """Measures the rows of a table that are missing; the file is written after each of them.

    Rows that other processes write to the file in the meantime are kept, and not measured again.

    Args:
        path: The CSV file; it need not exist yet.
        keys: The columns that identify a row, with their types.
        columns: The other columns, with their types.
        wanted: The rows to measure, by `keys`, in this order.
        measure: Called with the parts of a row's key; returns its other columns, and perhaps more.
        place: Returns what the rows are sorted by.
        report: Called with all rows after each measurement, or once if none was missing.
        blanks: Whether a row may lack some columns. Default `False`.

    Returns:
        All rows, those of the file that were not wanted included.
    """
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    rows = read_measurements(path, keys, columns, blanks)
    missing = [key for key in wanted if key not in rows]
    for key in missing:
        rows = read_measurements(path, keys, columns, blanks)
        if key in rows:
            continue
        results = measure(*key)
        row = {name: results[name] for name in columns if not blanks or name in results}
        with Run(path.parent).waited_for():
            rows = read_measurements(path, keys, columns, blanks) | {key: row}
            rows = {key: rows[key] for key in sorted(rows, key=place)}
            write_measurements(path, rows, keys, columns)
            report(rows)
    if rows and not missing:
        report(rows)  # a study may have been interrupted before its report
    return rows
