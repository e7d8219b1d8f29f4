"""The base class of the tasks that can be exported."""

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from keras_tnattn.export.signatures import Signatures


class Task(abc.ABC):
    """A trained model, and the text that belongs to it.

    Attributes:
        kind: The name in messages.
        card: Entries of the model card; `examples` are texts with which exports are tried.
        forms: The names of the forms in which it can be exported.
        scripts: The scripts that only pages of this task have.
    """

    kind: ClassVar[str]
    forms: ClassVar[tuple[str, ...]]
    scripts: ClassVar[tuple[str, ...]] = ()
    card: Mapping[str, Any]

    @abc.abstractmethod
    def content(self) -> dict[str, Any]:
        """Returns what `text.json` has for the reader, but for files and card; checks the task."""

    @abc.abstractmethod
    def write_files(self, folder: Path, suffix: str) -> dict[str, str]:
        """Writes the files of the model; returns their names, by the reader's names for them."""

    @property
    def examples(self) -> list[str]:
        """The examples of the card."""
        return list(self.card.get("examples", ()))

    def compare(self, folder: Path) -> None:  # noqa: B027  a page of search has no reader
        """Compares the answers of a folder with those of the model.

        Raises:
            RuntimeError: If they differ.
        """

    def signatures(self) -> Signatures:
        """Returns the signatures of a SavedModel."""
        raise NotImplementedError

    def version_card(self) -> dict[str, Any]:
        """Returns the entries of the card of a version without a SavedModel; empty with one."""
        return {}
