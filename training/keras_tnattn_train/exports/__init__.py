"""Exports of trained models of texts: a table of tasks, and one of forms.

| task | `Version` | `Portable` | `Page` |
| --- | --- | --- | --- |
| `Classifier` | SavedModel and engines | folder | page |
| `Encoder` | - | folder | - |
| `Translator` | SavedModel | folder | page |
| `LanguageModel` | engines | folder | - |
| `Search` | - | - | page |
"""

import os
from pathlib import Path

from keras_tnattn.export.signatures import check_backend
from keras_tnattn_train.exports.classifier import Classifier
from keras_tnattn_train.exports.encoder import Encoder
from keras_tnattn_train.exports.language_model import LanguageModel
from keras_tnattn_train.exports.pages import Page
from keras_tnattn_train.exports.portable import Portable
from keras_tnattn_train.exports.search import Search
from keras_tnattn_train.exports.task import Task
from keras_tnattn_train.exports.translator import Translator
from keras_tnattn_train.exports.version import Version

Form = Version | Portable | Page
"""How a task is exported."""

__all__ = [
    "Classifier",
    "Encoder",
    "LanguageModel",
    "Page",
    "Portable",
    "Search",
    "Translator",
    "Version",
    "export",
]


def export(task: Task, path: str | os.PathLike, form: Form | None = None) -> Path:
    """Writes a trained model with its text; completely or not at all.

    Args:
        task: A `Classifier`, `Encoder`, `Translator`, `LanguageModel` or `Search`.
        path: The new folder; of a `Version` that of the model, which gets the version.
        form: A `Version`, a `Portable` or a `Page`. Default: a `Version` without engines.

    Returns:
        The folder that was written.

    Raises:
        FileExistsError: If the folder or the version exists.
        FileNotFoundError: If a page lacks the files of its runtime.
        ImportError: If a runtime or a converter is not installed.
        RuntimeError: If Keras does not run on TensorFlow, or what was written does not answer as
            the model.
        ValueError: If the form is not one of the task, or the task does not fit together.

    Example:
        ```python notest
        news = Classifier(model, vectorizer, ["sports", "science"])
        export(news, "portable/news", Portable("onnxruntime"))
        ```
    """
    form = Version() if form is None else form
    _check_form(task, form)
    check_backend()
    folder = Path(path)
    if not isinstance(form, Version) and folder.exists():
        raise FileExistsError(
            f"Expected a new folder, because exports never overwrite. Received: {folder}"
        )
    return form.write(task, folder)


def _check_form(task: Task, form: Form) -> None:
    """Raises a `ValueError` if a task has no such form."""
    name = type(form).__name__
    if name not in task.forms:
        raise ValueError(
            f"Expected {' or '.join(task.forms)} of {task.kind}. Received: form={form!r}"
        )
