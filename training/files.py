"""Files written whole or not at all, with errors of one line, and JSON files read back."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.errors import InputError


class WriteError(InputError):
    """A file or folder could not be written; the message says which one and why."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an `OSError` (disk full, permission denied, ...) into a `WriteError` about `path`."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"Could not write {path}: {reason(error)}") from error


def reason(error: OSError) -> str:
    """Returns what an `OSError` says, without its number and path: `no space left on device`."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a sibling of `path` to write to, which then replaces `path` in one step.

    Raises:
        WriteError: If the file cannot be written; `path` is then as it was before.
    """
    partial = path.with_name(f".partial-{path.name}")
    try:
        with writing(path):
            yield partial
            os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
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
