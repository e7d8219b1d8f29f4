"""The name of the program that the user called, for help texts, examples and errors."""

import re
import sys
from pathlib import Path

_SCRIPT = re.compile(r"python training/(\w+)\.py")


def is_installed() -> bool:
    """Returns whether the console script was called, not a script of a checkout."""
    called = Path(sys.argv[0])
    return called.stem == "keras-tnattn" or called.parent.name == "keras_tnattn_train"


def program(script: str) -> str:
    """Returns the words that call a program: `"keras-tnattn"`, or `"python training/train.py"`."""
    if not is_installed():
        return f"python training/{script}.py"
    return "keras-tnattn" if script == "train" else f"keras-tnattn {script}"


def with_programs(text: str) -> str:
    """Replaces `python training/SCRIPT.py` in a text by the words that the user can type."""
    return _SCRIPT.sub(lambda match: program(match[1]), text)
