"""The names of data sets, and the error about one that does not exist."""

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from keras_tnattn_train.options.errors import InputError

TFDS = "tfds:"


def short_name(data: str) -> str:
    """Shortens the name or path of data (a TFDS name, too) to a valid file name."""
    if data.startswith(TFDS):
        name = data.removeprefix(TFDS).partition(":")[0]
    else:
        # Not Path.resolve, which would replace the name of a link.
        name = Path(os.path.abspath(data)).name.lstrip(".").partition(".")[0]
    return re.sub(r"^-|[^\w-]", "_", name) or "data"


def refuse(option: str, data: str, **others: str | None) -> None:
    """Raises `InputError` if an option is given that such data does not have."""
    for name, value in others.items():
        if value is not None:
            raise InputError(
                f"Expected no {name} with {option}={data!r}, which has none. "
                f"Received: {name}={value!r}"
            )


def unknown_source(option: str, value: str, names: Iterable[str]) -> InputError:
    """Returns the error for a data set that is neither a known name nor an existing path."""
    path = Path(value)
    if path.suffix or len(path.parts) > 1:
        return InputError(f"There is no file or folder {value!r} ({option}={value!r})")
    similar = difflib.get_close_matches(value, names, n=1)
    hint = f" Did you mean {similar[0]}?" if similar else ""
    return InputError(
        f"Expected {option} to be one of {', '.join(names)}, or the path of a file or folder. "
        f"Received: {option}={value!r}.{hint}"
    )
