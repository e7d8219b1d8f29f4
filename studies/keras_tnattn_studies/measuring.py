"""Measures what has not been measured yet, and keeps it in a CSV file."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.system.files import write_table, writing

# The columns of a table, with their types.
Columns = Mapping[str, Callable[[str], Any]]
# The measured columns of each row, by the columns that identify it.
Measurements = dict[tuple, dict[str, Any]]


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


def write_measurements(
    path: Path, measurements: Measurements, keys: Columns, columns: Columns
) -> None:
    """Writes the CSV file that `read_measurements` reads, in the order of the measurements."""
    blank = dict.fromkeys(columns, "")
    rows = [dict(zip(keys, key, strict=True)) | blank | row for key, row in measurements.items()]
    write_table(path, rows)


def read_measurements(
    path: Path, keys: Columns, columns: Columns, blanks: bool = False
) -> Measurements:
    """Reads a file of measurements: the other columns of each row, by those that identify it."""
    if not path.exists():
        return {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return {
                tuple(kind(row[name]) for name, kind in keys.items()): {
                    name: kind(row[name])
                    for name, kind in columns.items()
                    if row[name] or not blanks
                }
                for row in csv.DictReader(file)
            }
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise InputError(
            f"Expected a row for each {' and '.join(keys)}. Received: {path} ({error}). Delete it "
            "to measure all of them again"
        ) from error
