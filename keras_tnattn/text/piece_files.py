"""Files of tokenizers, which are read without TensorFlow."""

import json
import os
from pathlib import Path
from typing import Any


def read_pieces(path: str | os.PathLike) -> tuple[list[str], dict[str, Any]]:
    """Returns the vocabulary and the options that the `save` of any tokenizer wrote."""
    path = Path(path)
    options = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return path.read_bytes().decode("utf-8").removesuffix("\n").split("\n"), options
