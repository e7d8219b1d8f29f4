"""A finished run of `translate` predicts: what an answer within seconds needs, and no more."""

from pathlib import Path

import numpy as np

from keras_tnattn.models import Translator
from keras_tnattn.search import BeamSearch
from keras_tnattn.text.piece_files import read_pieces
from keras_tnattn_runtime.reader import Pieces
from keras_tnattn_train.data.pairs.prepared import PreparedCorpus, load_prepared
from keras_tnattn_train.data.pairs.tokenizing import SIDES
from keras_tnattn_train.options.errors import InputError, input_errors
from keras_tnattn_train.runs.predictions import (
    TRANSLATION_COLUMNS,
    Prediction,
    Predictor,
    translation,
)
from keras_tnattn_train.runs.saved_models import load_model
from keras_tnattn_train.runs.trained import PredictingRun
from keras_tnattn_train.system.files import read_object

_EMPTY = 2  # ids of a sentence without words: start and end


class PredictingTranslator(PredictingRun):
    """The finished run of a translator, which predicts without TensorFlow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.corpus = corpus_of(folder)
        self.model = finished_model(folder, self.corpus)

    def predictor(self, batch_size: int, beam: int, n_best: int | None) -> Predictor:
        source, target = pieces_in(self.corpus.folder)
        with input_errors():
            search = BeamSearch(self.model, beam)

        def predictions(texts: list[str]) -> list[list[Prediction]]:
            sentences = [source.ids(text) for text in texts]
            ids = np.zeros((len(texts), max(map(len, sentences))), "int32")
            for row, sentence in zip(ids, sentences, strict=True):
                row[: len(sentence)] = sentence
            found = search(ids, batch_size)
            return [
                best(sentence, *hypotheses)
                for sentence, *hypotheses in zip(sentences, *found, strict=True)
            ]

        def best(
            sentence: list[int], ids: np.ndarray, scores: np.ndarray, finished: np.ndarray
        ) -> list[Prediction]:
            texts = [target.text(row) for row in ids]
            count = int(np.isfinite(scores).sum())
            if len(sentence) == _EMPTY:
                texts, count = [""], 1
            return [
                translation(
                    texts[k], float(scores[k]), bool(finished[k]), k + 1 if n_best else None
                )
                for k in range(min(count, n_best or 1))
            ]

        ranked = ("rank",) if n_best else ()
        return Predictor(predictions, (*ranked, *TRANSLATION_COLUMNS))


def pieces_in(folder: Path) -> tuple[Pieces, Pieces]:
    """Returns what cuts sentences as the tokenizers in a folder do, without TensorFlow Text."""
    source, target = (_pieces(folder / f"{side}.txt") for side in SIDES)
    return source, target


def _pieces(path: Path) -> Pieces:
    vocabulary, options = read_pieces(path)
    if options.get("tokenizer") != "bert":
        return Pieces(vocabulary, "joined", **options)
    if options["lower_case"]:
        return Pieces(vocabulary, "bert", "lower", keep_accents=False, form="NFD")
    return Pieces(vocabulary, "bert", "keep", keep_accents=True, form="as given")


def finished_model(folder: Path, corpus: PreparedCorpus) -> Translator:
    """Loads the model of a finished run, which was trained on a corpus."""
    path = folder / "model.keras"
    model = load_model(
        path, "Finish the run with --resume, or choose one of its checkpoints with --checkpoint"
    )
    if not isinstance(model, Translator):
        raise InputError(f"Expected a translator. Received: {path}, another model")
    sizes = (model.source_vocabulary_size, model.target_vocabulary_size)
    if sizes != corpus.vocabulary_sizes:
        raise InputError(
            f"Expected a translator of {corpus.vocabulary_sizes} source and target pieces, the "
            f"vocabularies in {corpus.folder}. Received: {path} of {sizes} pieces"
        )
    return model


def corpus_of(folder: Path) -> PreparedCorpus:
    """Returns the prepared corpus that a run was trained on."""
    data = read_object(folder / "data.json", "Choose the folder of a translator's run")
    if "digest" not in data and not (folder / "prepared").exists():
        raise InputError(
            f"Expected the folder of a translator's run. Received: {folder}. The scores of other "
            "runs are in their results.json"
        )
    shared = data.get("prepared")
    if not isinstance(shared, str | None):
        raise InputError(
            f"Expected the path of a prepared corpus in {folder / 'data.json'}, which is damaged. "
            f"Received: prepared={shared!r}"
        )
    corpus = load_prepared(shared or folder / "prepared")
    if data.get("digest", corpus.digest) != corpus.digest:
        raise InputError(
            f"Expected the corpus and vocabularies that the run in {folder} was trained on. "
            f"Received: others in {corpus.folder}"
        )
    return corpus
