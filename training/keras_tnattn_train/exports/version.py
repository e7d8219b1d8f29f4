"""Exports versions of a model, for servers."""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

from keras_tnattn.export import export_signatures
from keras_tnattn.export.cards import extend_card
from keras_tnattn.export.signatures import write_description, write_version
from keras_tnattn_runtime.layout import ENGINES
from keras_tnattn_train.exports.portable import Portable
from keras_tnattn_train.exports.task import Task

_ENGINE_CARD = {"name": "engine"}


@dataclasses.dataclass(frozen=True)
class Version:
    """The form of a version `folder/<number>/`: a SavedModel, with engines for the server beside.

    Args:
        number: A positive integer. Default: one more than the highest existing version, or 1.
        engines: Faster runtimes with which the server may compute labels, or continues texts,
            `"onnxruntime"`, `"litert"` or both. Each gets a folder in `assets.extra/engines`, as
            `Portable` writes it, whose answers are those of the model. Default: none.

    Raises:
        ValueError: For another engine.
    """

    number: int | None = None
    engines: Sequence[str] = ()

    def __post_init__(self) -> None:
        for engine in self.engines:
            Portable(engine)  # checks the name

    def write(self, task: Task, folder: Path) -> Path:
        """Writes the version, completely or not at all, and returns its path."""
        if without_saved_model := task.version_card():
            if not self.engines:
                raise ValueError(
                    f"Expected at least one engine, with which the server runs {task.kind}. "
                    f"Received: engines={self.engines!r}"
                )
            card = extend_card({**without_saved_model, "engines": list(self.engines)}, task.card)

            def write(version: Path) -> None:
                write_description(version, {})
                for engine in self.engines:
                    target = version / ENGINES / engine
                    Portable(engine).write_with_card(task, target, _ENGINE_CARD)

            return write_version(write, folder, self.number, card)
        signatures = task.signatures()
        card = extend_card({**signatures.card, "engines": list(self.engines)}, task.card)
        with tempfile.TemporaryDirectory() as scratch:
            folders = {
                f"{ENGINES}/{engine}": Portable(engine).write_with_card(
                    task, Path(scratch, engine), _ENGINE_CARD
                )
                for engine in self.engines
            }
            return export_signatures(
                signatures.functions,
                signatures.layers,
                folder,
                self.number,
                {**signatures.extra_files, **folders},
                card,
            )
