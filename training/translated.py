"""A trained translator, read back from its run."""

import dataclasses
import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import keras

import keras_tnattn  # noqa: F401  registers what the saved model is made of
from training.data.prepared import PreparedCorpus, load_prepared
from training.errors import InputError


@dataclasses.dataclass(frozen=True)
class TrainedTranslator:
    """A translator and what its ids mean.

    Args:
        model: A model of `keras_tnattn.models.translator`.
        corpus: The prepared corpus it was trained on.
        source_tokenizer: The `WordPieceTokenizer` of what it reads.
        target_tokenizer: The `WordPieceTokenizer` of what it writes.
    """

    model: keras.Model
    corpus: PreparedCorpus
    source_tokenizer: Any
    target_tokenizer: Any


def load_translator(folder: str | Path, checkpoint: str | None = None) -> TrainedTranslator:
    """Reads the translator of a run's folder.

    Args:
        folder: The run's folder.
        checkpoint: A file of weights among its checkpoints, such as `best_accuracy` or
            `epoch_0010`. Default: the finished model.

    Raises:
        InputError: If the run is not there or not finished, a file of it is damaged, or the
            weights belong to other vocabularies.
    """
    folder = Path(folder)
    corpus = _corpus_of(folder)
    path = folder / "model.keras"
    weights = None if checkpoint is None else _checkpoint_path(folder, checkpoint)
    try:
        with warnings.catch_warnings():
            # Keras only warns of weights that it does not find and leaves as they began.
            warnings.simplefilter("error", UserWarning)
            model = keras.models.load_model(path, compile=False)
            if weights is not None:
                path = weights
                model.load_weights(path)
    except (OSError, LookupError, TypeError, ValueError, UserWarning, zipfile.BadZipFile) as error:
        raise InputError(
            f"Expected a trained translator of this run. Received: {path} ({_first_line(error)})"
        ) from error
    try:
        sizes = (model.get_layer("source_embedding").input_dim, model.output_shape[-1])
    except (AttributeError, ValueError) as error:
        raise InputError(f"Expected a translator. Received: {path}, another model") from error
    if sizes != corpus.vocabulary_sizes:
        raise InputError(
            f"Expected a translator of {corpus.vocabulary_sizes} source and target pieces, the "
            f"vocabularies in {corpus.folder}. Received: {path} of {sizes} pieces"
        )
    return TrainedTranslator(model, corpus, *corpus.tokenizers())


def _corpus_of(folder: Path) -> PreparedCorpus:
    try:
        data = json.loads((folder / "data.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"Expected the folder of a translator's run. Received: {error}") from error
    corpus = load_prepared(data.get("prepared") or folder / "prepared")
    if data.get("digest", corpus.digest) != corpus.digest:
        raise InputError(
            f"Expected the corpus and vocabularies that the run in {folder} was trained on. "
            f"Received: others in {corpus.folder}"
        )
    return corpus


def _checkpoint_path(folder: Path, name: str) -> Path:
    paths = {
        path.name.removesuffix(".weights.h5"): path
        for path in sorted(folder.glob("checkpoints/*.weights.h5"))
    }
    if name not in paths:
        raise InputError(
            f"Expected a checkpoint of the run in {folder}: {', '.join(paths) or 'it has none'}. "
            f"Received: checkpoint={name!r}"
        )
    return paths[name]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
