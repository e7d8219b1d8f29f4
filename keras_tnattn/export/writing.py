"""Writes trained models as SavedModels."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tnattn.export.cards import MODEL_CARD, merged, technical
from keras_tnattn.export.explaining import classifier_explanation, translator_explanation
from keras_tnattn.export.partial import partial_folder
from keras_tnattn.models import Translator
from keras_tnattn.renaming import renamed_arguments
from keras_tnattn.text.reserved import PAD, UNK
from keras_tnattn.typing import Tensor

CLASS_NAMES = "assets.extra/class_names.json"
# Limits that a model card sets for servers: the memory of an attention grows with the square of
# the length.
_MAX_IDS = 1000
_MAX_SENTENCE = 2000  # bytes
_N_BEST = 4


def check_backend() -> None:
    """Raises a `RuntimeError` unless Keras runs on TensorFlow, whose graphs process the text.

    The functions of `keras_tnattn.export.formats` export numeric models on other backends.

    Example:
        >>> if keras.backend.backend() == "tensorflow":
        ...     check_backend()
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "Exporting a model of text, or with a training command, needs the TensorFlow backend "
            "(pip install 'keras-tnattn[tensorflow]'): set KERAS_BACKEND=tensorflow and "
            f"load the .keras file there. Received: backend={keras.backend.backend()!r}"
        )


def export_classifier(
    model: keras.Model,
    vectorizer: keras.layers.Layer,
    class_names: Sequence[str],
    folder: str | os.PathLike,
    version: int | None = None,
    split_words: Callable[[Tensor], Any] | None = None,
    card: Mapping[str, Any] | None = None,
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

    Returns:
        The path of the new version.

    Raises:
        FileExistsError: If the version exists.
        RuntimeError: If Keras does not run on TensorFlow.
        ValueError: If `version` is not positive, or the model does not have `C` outputs.

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
            "ids": {**({"padding": PAD} if by_length else {}), "max_length": _MAX_IDS},
        },
    }
    return export_signatures(
        signatures,
        [model, vectorizer],  # tracked, because its lookup table is not a variable
        folder,
        version,
        class_names_file(class_names),
        merged(own_card, card),
    )


def export_translator(
    model: keras.Model,
    source_tokenizer: Any,
    target_tokenizer: Any,
    folder: str | os.PathLike,
    version: int | None = None,
    beam_size: int = 1,
    extra_tokens: int = 50,
    length_penalty: float = 0.6,
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a translator as `folder/<version>/`, a SavedModel; completely or not at all.

    Its signatures, for `B` sentences and the `K` best hypotheses, best first; lower scores are
    better:

    - `serving_default`: `text`, strings `(B,)`, to `translation`, strings `(B,)`, and `score`,
      float32 `(B,)`. Tokenization and search are part of the graph.
    - `ids`: `ids`, int32 `(B, S)`, with start and end, padded with 0, to `ids`, int32 `(B, K, L)`,
      and `scores`, float32 `(B, K)`, as `BeamSearch` returns them.
    - `greedy` and `n_best`: `text` to `translations`, strings `(B, K)`, and `scores`, float32
      `(B, K)`, of greedy search and of a beam search with `beam_size`, or 4 if that is 1. The score
      of a missing hypothesis is the largest float32.
    - `explain`: `text` and `translation`, strings `(B,)`, to the pieces of both and the attention
      between them, as described in `keras_tnattn.export.explaining.translator_explanation`.

    Sentences are translated by `keras_tnattn.text.sentence_translator.SentenceTranslator`: the
    translation of a sentence without words, or of unknown pieces only, is empty. A sentence may
    have any length; its translation has at most the number of its pieces plus `extra_tokens`. The
    sentences of one call are searched together, so that all wait for the longest.

    Args:
        model: A model of `keras_tnattn.models.translator`.
        source_tokenizer: The `keras_tnattn.text.word_pieces.WordPieceTokenizer` of the source
            language.
        target_tokenizer: The tokenizer of the target language.
        folder: The model's folder, e.g. `saved_models/pt_en`.
        version: A positive integer. Default: one more than the highest existing version, or 1.
        beam_size: Number `K` of hypotheses. Defaults to 1, greedy search.
        extra_tokens: How many more pieces than the sentence a translation may have. Defaults to 50.
        length_penalty: As in `BeamSearch`. Defaults to 0.6.
        card: Further entries of the model card, `assets.extra/model_card.json`, besides task,
            sizes, versions and date, for instance `languages`.

    Returns:
        The path of the new version.

    Raises:
        FileExistsError: If the version exists.
        RuntimeError: If Keras does not run on TensorFlow.
        ValueError: If `version` is not positive, a vocabulary does not fit the model, or an
            argument of the search is invalid.

    Example:
        ```python notest
        export_translator(model, source_tokenizer, target_tokenizer, "saved_models/pt_en")
        ```
    """
    check_backend()
    import tensorflow as tf

    from keras_tnattn.text.sentence_translator import SentenceTranslator

    model = Translator.from_model(model)

    def searching(size: int) -> SentenceTranslator:
        return SentenceTranslator(
            model, source_tokenizer, target_tokenizer, size, extra_tokens, length_penalty
        )

    sentences = searching(beam_size)
    sizes = (model.source_vocabulary_size, model.target_vocabulary_size)
    if beam_size > 1:
        greedy, several = searching(1), sentences
    else:
        greedy, several = sentences, searching(min(_N_BEST, sizes[1]))
    text = tf.TensorSpec([None], tf.string, "text")
    own_card = {
        "task": "translate",
        "sizes": {
            "parameters": model.count_params(),
            "source_vocabulary": sizes[0],
            "target_vocabulary": sizes[1],
        },
        "beam_size": beam_size,
        "inputs": {
            # A search takes as long as its longest sentence.
            "text": {"by_length": True, "max_ratio": 4, "max_length": _MAX_SENTENCE},
            "translation": {"max_length": _MAX_SENTENCE},
            "ids": {"padding": PAD, "max_ratio": 4, "max_length": _MAX_IDS},
        },
    }
    return export_signatures(
        {
            "serving_default": (sentences.translate, text),
            "ids": (sentences.search_ids, tf.TensorSpec([None, None], tf.int32, "ids")),
            "greedy": (greedy.translate_n_best, text),
            "n_best": (several.translate_n_best, text),
            "explain": (
                translator_explanation(model, source_tokenizer, target_tokenizer),
                [text, tf.TensorSpec([None], tf.string, "translation")],
            ),
        },
        [model],
        folder,
        version,
        card=merged(own_card, card),
    )


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


def class_names_file(class_names: Sequence[str]) -> dict[str, str]:
    """Returns the file of an exported classifier that names its classes, for `extra_files`.

    Args:
        class_names: The `C` names, in the order of the probabilities.

    Example:
        >>> class_names_file(["cat", "dog"])
        {'assets.extra/class_names.json': '["cat", "dog"]'}
    """
    return {CLASS_NAMES: json.dumps(list(class_names))}


def _extra_files(class_names: Sequence[str] | None) -> dict[str, str] | None:
    return None if class_names is None else class_names_file(class_names)


@renamed_arguments(class_names=("extra_files", _extra_files))
def export_signatures(
    signatures: Mapping[str, tuple[Callable[..., dict[str, Tensor]], Any]],
    layers: Sequence[keras.layers.Layer],
    folder: str | os.PathLike,
    version: int | None = None,
    extra_files: Mapping[str, str] | None = None,
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Writes `folder/<version>/`, a SavedModel with any signatures; completely or not at all.

    Args:
        signatures: For each name a function from tensors to a dict of tensors, and the
            `tf.TensorSpec` of its argument or a list of them.
        layers: All models and layers that the functions call.
        folder: The model's folder.
        version: A positive integer. Default: one more than the highest existing version, or 1.
        extra_files: The content of further text files by their paths in the version, such as that
            of `class_names_file`.
        card: Further entries of the model card, `assets.extra/model_card.json`, besides name,
            version, versions and date.

    Returns:
        The path of the new version.

    Raises:
        FileExistsError: If the version exists.
        RuntimeError: If Keras does not run on TensorFlow.
        ValueError: If `version` is not positive.

    Example:
        ```python notest
        spec = tf.TensorSpec((None, 64), tf.float32, name="features")
        export_signatures({"serving_default": (classify, spec)}, [model], "saved_models/mine")
        ```
    """
    check_backend()
    folder, chosen = Path(folder), version is not None
    if version is None:
        version = next_version(folder)
    if version < 1:
        raise ValueError(f"Expected a positive version. Received: version={version}")
    if (folder / str(version)).exists():
        raise _existing(folder / str(version))
    with partial_folder(folder / str(version)) as partial:
        archive = keras.export.ExportArchive()
        for layer in layers:
            archive.track(layer)
        for name, (function, spec) in signatures.items():
            archive.add_endpoint(name, function, spec if isinstance(spec, list) else [spec])
        whole = partial / "whole"
        write_archive(archive, whole)
        (whole / MODEL_CARD).parent.mkdir()
        for name, content in (extra_files or {}).items():
            (whole / name).parent.mkdir(parents=True, exist_ok=True)
            (whole / name).write_text(content, encoding="utf-8")
        while True:
            target = folder / str(version)
            whole_card = {"name": folder.name, "version": version, **technical(), **(card or {})}
            text = json.dumps(whole_card, indent=1, ensure_ascii=False) + "\n"
            (whole / MODEL_CARD).write_text(text, encoding="utf-8")
            try:
                return whole.rename(target)
            except OSError as error:
                if not target.exists():
                    raise
                if chosen:
                    raise _existing(target) from error
                version = next_version(folder)  # another export has taken this one


def write_archive(archive: keras.export.ExportArchive, path: Path) -> None:
    """Writes a SavedModel with one copy of its weights and without gradients.

    Keras keeps the variables of the tracked layers beside those that the signatures read, which are
    the same, and TensorFlow the gradients of functions that have their own.
    """
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    tracked = getattr(archive, "_tf_trackable", archive)
    for name in ("variables", "trainable_variables", "non_trainable_variables"):
        if hasattr(tracked, name):
            setattr(tracked, name, [])
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    archive.write_out(str(path), options, verbose=False)
    file = path / "saved_model.pb"
    content = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    graph = content.meta_graphs[0].graph_def
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            node.attr.pop("_gradient_op_type", None)  # TensorFlow warns of one without a gradient
    file.write_bytes(content.SerializeToString(deterministic=True))


def _existing(target: Path) -> FileExistsError:
    return FileExistsError(
        f"Expected a new version, because exports are never changed. Received: {target} exists"
    )


def next_version(folder: str | os.PathLike) -> int:
    """Returns the version that an export takes by default in a model's folder.

    Example:
        >>> next_version("a_folder_without_versions")
        1
    """
    return max(versions_in(Path(folder)), default=0) + 1


def versions_in(folder: Path) -> list[int]:
    """Returns the numbers of the versions in a model's folder.

    Example:
        >>> versions_in(Path("a_folder_without_versions"))
        []
    """
    return [int(p.name) for p in folder.glob("[0-9]*") if p.name.isdecimal()]
