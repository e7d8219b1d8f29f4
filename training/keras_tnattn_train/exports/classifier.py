"""Writes trained classifiers of texts as SavedModels."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_tnattn.export.cards import MAX_IDS, extend_card
from keras_tnattn.export.explaining import classifier_explanation
from keras_tnattn.export.signatures import check_backend, class_names_file, export_signatures
from keras_tnattn.text.reserved import PAD, UNK
from keras_tnattn.text.words import WordVectorizer, lower_and_join, lower_and_separate
from keras_tnattn.typing import Tensor
from keras_tnattn_runtime.layout import ENGINES
from keras_tnattn_train.exports.portable import export_portable, ignores_padding


def export_classifier(
    model: keras.Model,
    vectorizer: keras.layers.Layer,
    class_names: Sequence[str],
    folder: str | os.PathLike,
    version: int | None = None,
    split_words: Callable[[Tensor], Any] | None = None,
    card: Mapping[str, Any] | None = None,
    engines: Sequence[str] = (),
) -> Path:
    """Writes a classifier of texts as `folder/<version>/`, a SavedModel; completely or not at all.

    The signature `serving_default` takes `text`, strings `(B,)`; `ids` takes `ids`, int32
    `(B, L)`. Both return `label`, strings `(B,)`, and `probabilities`, floats `(B, C)`, whose
    columns are named in `assets.extra/class_names.json`. If the model ignores padding, as those of
    `keras_tnattn.models.text_classifier` do, texts are padded to the longest of a batch only. With
    `split_words`, and an attention that returns its scores, there is also `explain`: it takes
    `text` and also returns what the attention computed, as described in
    `keras_tnattn.export.explaining.classifier_explanation`.

    Args:
        model: A model from ids `(B, L)` to class probabilities `(B, C)`, of any batch size and
            length.
        vectorizer: Strings `(B,)` to ids `(B, L)`, e.g. from
            `keras_tnattn.text.word_vectorizer`.
        class_names: The `C` names.
        folder: The model's folder, e.g. `saved_models/news`.
        version: A positive integer. Default: one more than the highest existing version, or 1.
        split_words: Function from strings `(B,)` to the words `(B, None)` of the ids, e.g.
            `keras_tnattn.text.words.split_words`. Default: no `explain`.
        card: Further entries of the model card, `assets.extra/model_card.json`, besides task,
            labels, number of weights, versions and date.
        engines: Faster runtimes with which a server may compute the signatures `serving_default`
            and `ids`, `"onnxruntime"`, `"litert"` or both: each gets a folder in
            `assets.extra/engines`, as `export_portable` writes it, whose answers are those of the
            model. Default: none.

    Returns:
        The path of the new version.

    Raises:
        FileExistsError: If the version exists.
        RuntimeError: If Keras does not run on TensorFlow.
        ValueError: If `version` is not positive, the model does not have `C` outputs, or an engine
            cannot read texts as `vectorizer` does.

    Example:
        ```python notest
        export_classifier(model, vectorizer, ["sports", "science"], "saved_models/news")
        ```
    """
    check_backend()
    if model.output_shape[-1] != len(class_names):
        raise ValueError(
            "Expected a name for each output of the model. "
            f"Received: output_shape={model.output_shape}, {len(class_names)} class_names"
        )
    import tensorflow as tf

    # Traced once for all signatures.
    from_ids = tf.function(
        labels_and_probabilities(model, class_names),
        input_signature=[tf.TensorSpec([None, None], tf.int32)],
        autograph=False,
    )

    def to_ids(text: Tensor) -> Tensor:
        return tf.cast(vectorizer(text), "int32")

    size = getattr(vectorizer, "vocabulary_size", None)
    # Of a layer that does not say, the padding and the unknown word.
    by_length = ignores_padding(model, size() if callable(size) else UNK + 1)

    def from_text(text: Tensor) -> dict[str, Tensor]:
        ids = to_ids(text)
        if by_length:
            columns = tf.where(tf.reduce_any(ids != PAD, axis=0))
            ids = ids[:, : tf.reduce_max(tf.concat([columns[:, 0] + 1, [1]], axis=0))]
        return from_ids(ids)

    vectorizer(tf.constant([""]))  # the archive cannot track a layer that was never called
    text = tf.TensorSpec([None], tf.string, "text")
    signatures: dict[str, tuple] = {
        "serving_default": (from_text, text),
        "ids": (from_ids, tf.TensorSpec([None, None], tf.int32, "ids")),
    }
    explain = split_words and classifier_explanation(
        model, to_ids, split_words, from_ids, by_length
    )
    if explain:
        signatures["explain"] = (explain, text)
    own_card = {
        "task": "classify",
        "labels": list(class_names),
        "sizes": {"parameters": model.count_params()},
        "inputs": {
            "text": {"by_length": by_length},
            "ids": {**({"padding": PAD} if by_length else {}), "max_length": MAX_IDS},
        },
    }
    with _engine_folders(model, vectorizer, class_names, engines, card) as folders:
        return export_signatures(
            signatures,
            [model, vectorizer],  # tracked, because its lookup table is not a variable
            folder,
            version,
            {**class_names_file(class_names), **folders},
            extend_card({**own_card, "engines": list(engines)}, card),
        )


@contextlib.contextmanager
def _engine_folders(
    model: keras.Model,
    vectorizer: keras.layers.Layer,
    class_names: Sequence[str],
    engines: Sequence[str],
    card: Mapping[str, Any] | None,
) -> Iterator[dict[str, Path]]:
    """Yields the folder of each engine by its path in a version."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = {}
        for engine in engines:
            folders[f"{ENGINES}/{engine}"] = export_portable(
                model,
                plain_vectorizer(vectorizer),
                class_names,
                Path(scratch, engine),
                engine,
                (card or {}).get("examples", ()),
                {"name": "engine"},
            )
        yield folders


def plain_vectorizer(layer: keras.layers.Layer) -> WordVectorizer:
    """Returns the vectorizer in plain Python that does what a layer of its own does.

    Raises:
        ValueError: If the layer splits texts in another way.
    """
    config = layer.get_config()
    splits = {
        ("whitespace", lower_and_separate): "words",
        ("character", lower_and_join): "characters",
    }
    split = splits.get((config.get("split"), config.get("standardize")))
    if split is None or config.get("ngrams") or config.get("output_mode") != "int":
        raise ValueError(
            "Expected a layer of keras_tnattn.text.words, whose words engines read. Received: "
            f"{layer.name}, another one. Export without engines"
        )
    return WordVectorizer(layer.get_vocabulary()[2:], config["output_sequence_length"], split)


def labels_and_probabilities(
    model: Callable[..., Tensor], class_names: Sequence[str]
) -> Callable[[Tensor], dict[str, Tensor]]:
    """Returns what a classifier's signature computes: `label` and `probabilities`.

    Args:
        model: A function from inputs `(B, ...)` to class probabilities `(B, C)`, with the argument
            `training`.
        class_names: The `C` names.

    Example:
        ```python notest
        classify = labels_and_probabilities(model, ["sports", "science"])
        classify(ids)["label"]
        ```
    """
    import tensorflow as tf

    names = tf.constant(list(class_names))

    def classify(inputs: Tensor) -> dict[str, Tensor]:
        probabilities = model(inputs, training=False)
        label = tf.gather(names, tf.argmax(probabilities, axis=-1))
        return {"label": label, "probabilities": probabilities}

    return classify
