"""Writes trained language models as versions that the server generates text with."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_tnattn.export.cards import extend_card
from keras_tnattn.export.signatures import write_version
from keras_tnattn.models import LanguageModel
from keras_tnattn_runtime.layout import ENGINES, SIGNATURES
from keras_tnattn_train.exports.portable_language_model import export_portable_language_model


def export_language_model(
    model: LanguageModel,
    tokens: Mapping[str, Any],
    folder: str | os.PathLike,
    version: int | None = None,
    engines: Sequence[str] = ("onnxruntime",),
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a language model as `folder/<version>/`, completely or not at all.

    It is no SavedModel: `keras_tnattn_serving` generates with one of the engines, whose folders in
    `assets.extra/engines` are those that `export_portable_language_model` writes.

    Args:
        model: A model of `keras_tnattn.models.language_model`.
        tokens: The arguments of `keras_tnattn_runtime.reader.Tokens`.
        folder: The model's folder, e.g. `saved_models/tales`.
        version: A positive integer. Default: one more than the highest existing version, or 1.
        engines: `"onnxruntime"`, `"litert"` or both. Defaults to the first.
        card: Further entries of the model card, `assets.extra/model_card.json`, besides task,
            sizes, versions and date, for instance `examples`, prompts with which the folders are
            tried.

    Returns:
        The path of the new version.

    Raises:
        FileExistsError: If the version exists.
        ImportError: If a runtime or a converter is not installed.
        RuntimeError: If Keras does not run on TensorFlow, or a folder continues a text in another
            way than the model.
        ValueError: If `version` is not positive, an engine is unknown or there is none, or the
            model has another number of tokens.

    Example:
        ```python notest
        tokens = {"kind": "characters", "characters": " etaoin"}
        export_language_model(model, tokens, "saved_models/tales")
        ```
    """
    if not engines:
        raise ValueError(f"Expected an engine at least. Received: engines={engines!r}")
    own_card = {
        "task": "language",
        "sizes": {"parameters": model.count_params(), "vocabulary": model.vocabulary_size},
        "max_length": model.max_length,
        "engines": list(engines),
    }

    def write(whole: Path) -> None:
        (whole / ENGINES).mkdir(parents=True)
        examples = (card or {}).get("examples", ())
        for engine in engines:
            export_portable_language_model(
                model, tokens, whole / ENGINES / engine, engine, examples, {"name": "engine"}
            )
        content: dict[str, Any] = {"signatures": {}, "files": {}}
        (whole / SIGNATURES).write_text(json.dumps(content) + "\n", encoding="utf-8")

    return write_version(write, Path(folder), version, extend_card(own_card, card))
