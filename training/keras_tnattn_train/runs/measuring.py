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
    They are sorted by `place`. `report` is called with all rows after each measurement, or once if
    none was missing. With `blanks` a row may lack some columns. Returns all rows, those of the file
    that were not wanted included.
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
