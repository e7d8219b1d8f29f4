"""Writes files atomically; reads JSON files. Errors are reported in one line."""

import contextlib
import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_tnattn_train.options.errors import InputError


class WriteError(InputError):
    """A file or folder could not be written; the message says which one and why."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Converts an `OSError` (disk full, permission denied, ...) to a `WriteError` about `path`."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"Could not write {path}: {reason(error)}") from error


def reason(error: OSError) -> str:
    """Returns the message of an `OSError` without number and path: `no space left on device`."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the same folder; the file written there then replaces `path`.

    Raises:
        WriteError: If the file cannot be written; `path` is then unchanged.
    """
    partial = path.with_name(f".partial-{path.name}")
    try:
        with writing(path):
            yield partial
            os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def save_text(path: Path, text: str) -> None:
    """Writes a text file atomically, and ends its last line."""
    with replacing(path) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file atomically."""
    # A lone surrogate, as in a file name that is not UTF-8, becomes JSON's own escape.
    with replacing(path) as partial, partial.open("w", -1, "utf-8", "backslashreplace") as file:
        json.dump(content, file, indent=2, ensure_ascii=False)
        file.write("\n")


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a CSV file atomically; the keys of the first row are the columns."""
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def read_object(path: Path, hint: str) -> dict[str, Any]:
    """Reads a file that holds a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        return content
    except (OSError, ValueError) as error:
        raise InputError(
            f"Expected a file that the run wrote. Received: {path} ({error}). {hint}"
        ) from error
