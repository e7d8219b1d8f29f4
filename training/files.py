"""Files written whole or not at all, and JSON files read back."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.errors import InputError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a sibling of `path` to write to, which then takes the place of `path` at once."""
    partial = path.with_name(f".partial-{path.name}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_object(path: Path, instead: str) -> dict[str, Any]:
    """Reads the JSON object of a file.

    Args:
        path: The file.
        instead: What to do if it cannot be read, a sentence.

    Raises:
        InputError: If the file is missing or damaged.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        return found
    except (OSError, ValueError) as error:
        raise InputError(
            f"Expected a file as the run wrote it. Received: {path} ({error}). {instead}"
        ) from error
