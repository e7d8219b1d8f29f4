"""Exports folders with all that turns a text into an answer.

`reader.py`, which is in each folder, needs NumPy and one runtime. It is a file and not a package:
this package brings Keras along, and a reader that comes with its model always fits it.
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_tnattn.export.cards import extend_card, technical
from keras_tnattn_runtime import reader
from keras_tnattn_runtime.folders import partial_folder
from keras_tnattn_runtime.layout import READER_RUNTIMES, RUNTIMES
from keras_tnattn_train.exports.task import Task


@dataclasses.dataclass(frozen=True)
class Portable:
    """The form of a folder for a runtime.

    Besides the files of the runtime the folder has `text.json`, with the vocabulary, the rules that
    split texts, the model card and the checksums of the files, and `reader.py`, which tries the
    answers of the folder before it gets its name:

    ```python notest
    from reader import load  # or: from keras_tnattn_runtime.reader import load

    load("news")("a text")  # the name of a class
    ```

    Args:
        runtime: `"onnxruntime"` (default) or `"litert"`.

    Raises:
        ValueError: For another runtime.
    """

    runtime: str = "onnxruntime"

    def __post_init__(self) -> None:
        if self.runtime not in READER_RUNTIMES:
            raise ValueError(
                f"Expected one of {READER_RUNTIMES}. Received: runtime={self.runtime!r}"
            )

    def write(self, task: Task, folder: Path) -> Path:
        """Writes the folder, completely or not at all."""
        return self.write_with_card(task, folder, task.card)

    def write_with_card(self, task: Task, folder: Path, card: Mapping[str, Any]) -> Path:
        """Writes the folder with another card than that of the task."""
        content = task.content()
        with _new_folder(folder) as partial:
            files = task.write_files(partial, RUNTIMES[self.runtime].suffix)
            _write_text(partial, content, files, card)
            try:
                task.compare(partial)
            except RuntimeError as error:
                raise RuntimeError(
                    f"The folder for {self.runtime} does not answer as the model: {error}"
                ) from error
        return folder


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yields a folder that gets its name at the end of the block, if nothing was raised."""
    with partial_folder(folder) as partial:
        (partial / "whole").mkdir()
        yield partial / "whole"
        (partial / "whole").rename(folder)


def _write_text(
    folder: Path, content: Mapping[str, Any], files: Mapping[str, str], card: Mapping[str, Any]
) -> None:
    """Writes `text.json`, which the reader reads, and `reader.py`, beside other files.

    `files` are those of the model, by the names that the reader gives them.
    """
    described = {
        key: {"name": name, **reader.describe_file(folder / name)} for key, name in files.items()
    }
    text = {**content, "files": described, "card": extend_card(technical(), card)}
    (folder / "text.json").write_bytes(reader.sealed(text))
    shutil.copyfile(reader.__file__, folder / "reader.py")
