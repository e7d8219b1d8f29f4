"""The signatures of trained classifiers of texts."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_tnattn.export.cards import MAX_IDS
from keras_tnattn.export.explaining import classifier_explanation
from keras_tnattn.export.signatures import Signatures, check_backend, class_names_file
from keras_tnattn.text.reserved import PAD, UNK
from keras_tnattn.typing import Tensor


def classifier_signatures(
    model: keras.Model,
    vectorizer: keras.layers.Layer,
    class_names: Sequence[str],
    split_words: Callable[[Tensor], Any] | None = None,
) -> Signatures:
    """Returns the signatures of a classifier of texts, for `export_signatures`.

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
        split_words: Function from strings `(B,)` to the words `(B, None)` of the ids, e.g.
            `keras_tnattn.text.words.split_words`. Default: no `explain`.

    Returns:
        The signatures, with the layers, the entries of the card and the file of the names.

    Raises:
        RuntimeError: If Keras does not run on TensorFlow.
        ValueError: If the model does not have `C` outputs.

    Example:
        ```python notest
        news = classifier_signatures(model, vectorizer, ["sports", "science"])
        files = news.extra_files
        export_signatures(news.functions, news.layers, "saved_models/news", extra_files=files)
        ```
    """
    check_backend()
    check_class_names(model, class_names)
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
    functions: dict[str, tuple] = {
        "serving_default": (from_text, text),
        "ids": (from_ids, tf.TensorSpec([None, None], tf.int32, "ids")),
    }
    explain = split_words and classifier_explanation(
        model, to_ids, split_words, from_ids, by_length
    )
    if explain:
        functions["explain"] = (explain, text)
    card = {
        "task": "classify",
        "labels": list(class_names),
        "sizes": {"parameters": model.count_params()},
        "inputs": {
            "text": {"by_length": by_length},
            "ids": {**({"padding": PAD} if by_length else {}), "max_length": MAX_IDS},
        },
    }
    # Tracked, because the lookup table of the vectorizer is not a variable.
    return Signatures(functions, [model, vectorizer], card, class_names_file(class_names))


def check_class_names(model: keras.Model, class_names: Sequence[str]) -> None:
    """Raises a `ValueError` unless there is a name for each output of a classifier."""
    if model.output_shape[-1] != len(class_names):
        raise ValueError(
            "Expected a name for each output of the model. "
            f"Received: output_shape={model.output_shape}, {len(class_names)} class_names"
        )


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


def ignores_padding(model: keras.Model, vocabulary_size: int) -> bool:
    """Whether a classifier computes the same without the padding at the end of texts.

    Compares the inputs of the last layer, because probabilities near 0 and 1 hardly change. Returns
    `False` for a model whose outputs are not those of one last layer, or whose last layer averages
    the tokens.
    """
    import tensorflow as tf

    inputs = getattr(model, "inputs", None)
    if inputs is None or len(inputs) != 1 or model.layers[-1].output is not model.outputs[0]:
        return False
    ids = np.random.default_rng(0).integers(UNK, max(vocabulary_size, UNK + 1), (8, 6), "int32")
    padded = np.pad(ids, ((0, 0), (0, 30)), constant_values=PAD)
    try:
        features = keras.Model(inputs[0], model.layers[-1].input)
        alone, longer = (
            keras.ops.convert_to_numpy(features(x, training=False)) for x in (ids, padded)
        )
    except (ValueError, tf.errors.InvalidArgumentError):  # a model of texts of one length
        return False
    if alone.shape != longer.shape:  # with an axis for the tokens
        return False
    return bool(np.allclose(alone, longer, rtol=1e-4, atol=1e-6))
