"""The name of the program that the user called, for help texts, examples and errors."""

import sys
from pathlib import Path

# The programs of a checkout, each with the words that call the same when the package is installed.
_INSTALLED = {
    "train": "keras-tnattn",
    "predict": "keras-tnattn predict",
    "generate": "keras-tnattn generate",
    "compress": "keras-tnattn compress",
    "evaluate": "keras-tnattn evaluate",
    "explain": "keras-tnattn explain",
    "reproduce": "keras-tnattn reproduce",
    "launch": "keras-tnattn launch",
}


def installed() -> bool:
    """Returns whether the console script was called, not a script of a checkout."""
    called = Path(sys.argv[0])
    return called.stem == "keras-tnattn" or called.parent.name == "keras_tnattn_train"


def program(script: str) -> str:
    """Returns the words that call a program: `"keras-tnattn"`, or `"python training/train.py"`.

    Args:
        script: The name of the script in `training/`, such as `"train"`.
    """
    return _INSTALLED[script] if installed() else f"python training/{script}.py"


def with_programs(text: str) -> str:
    """Replaces `python training/SCRIPT.py` in a text by the words that the user can type."""
    for script in _INSTALLED:
        text = text.replace(f"python training/{script}.py", program(script))
    return text
