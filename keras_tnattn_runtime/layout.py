"""The files of runtimes, and where an exported version has those that TensorFlow does not know."""

import importlib.util
import os
import re
from pathlib import Path
from typing import NamedTuple

MODEL_CARD = "assets.extra/model_card.json"
ENGINES = "assets.extra/engines"
SIGNATURES = "assets.extra/signatures.json"


class Runtime(NamedTuple):
    """What runs a kind of model file.

    Attributes:
        suffix: The end of the names of its files.
        package: The package that has to be installed.
        module: The module of the package that runs files.
    """

    suffix: str
    package: str
    module: str


RUNTIMES = {
    "onnxruntime": Runtime(".onnx", "onnxruntime", "onnxruntime"),
    "litert": Runtime(".tflite", "ai_edge_litert", "ai_edge_litert.interpreter"),
    "openvino": Runtime(".xml", "openvino", "openvino"),
}
# The runtimes that the reader knows, in the order in which the server prefers them.
READER_RUNTIMES = ("onnxruntime", "litert")


def file_sizes(path: str | os.PathLike) -> dict[str, int]:
    """Returns the bytes of each file that an export wrote; of a folder, of all files in it.

    Args:
        path: The file or the folder. With an `.xml` file goes its `.bin` file.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "model.onnx").write_bytes(b"12345")
        ...     list(file_sizes(Path(folder, "model.onnx")).values())
        [5]
    """
    path = Path(path)
    files = sorted(x for x in path.rglob("*") if x.is_file()) if path.is_dir() else [path]
    if path.suffix == ".xml":
        files.append(path.with_suffix(".bin"))
    return {str(file): file.stat().st_size for file in files}


def is_version(name: str) -> bool:
    """Returns whether a folder's name is that of a version: a number, without leading zeros."""
    return re.fullmatch(r"[1-9][0-9]{0,17}", name) is not None


def portable_folder(folder: Path) -> Path | None:
    """Returns the files for NumPy and a runtime: a folder itself, or those of its newest version.

    The folder may be a version, too. Of several engines it is one that is installed, where there is
    one. `None` if the folder has no such files.
    """
    if (folder / "text.json").is_file():
        return folder
    versions = [path for path in folder.glob("*") if is_version(path.name) and path.is_dir()]
    newest = max(versions, key=lambda path: int(path.name), default=folder)
    paths = {name: newest / ENGINES / name for name in READER_RUNTIMES}
    found = {name: path for name, path in paths.items() if (path / "text.json").is_file()}
    installed = [n for n in found if importlib.util.find_spec(RUNTIMES[n].package)]
    return next((found[name] for name in (*installed, *found)), None)
