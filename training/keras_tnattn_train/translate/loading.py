"""A run of `translate`: translates, is compressed, and exports."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_small import logits_divergence
from keras_tnattn.models import Translator
from keras_tnattn_train.data.pairs.batches import BucketedBatches
from keras_tnattn_train.data.pairs.prepared import PreparedCorpus, load_prepared
from keras_tnattn_train.options.errors import InputError, input_errors
from keras_tnattn_train.runs.checkpoints import load_weights
from keras_tnattn_train.runs.predictions import (
    TRANSLATION_COLUMNS,
    Prediction,
    Predictor,
    translation,
)
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.saved_models import load_model
from keras_tnattn_train.runs.trained import TrainedRun
from keras_tnattn_train.system.files import read_object
from keras_tnattn_train.translate.config import TranslateConfig
from keras_tnattn_train.translate.models import build_translator
from keras_tnattn_train.translate.train import SUFFIX, export_trained, model_card, task_of

if TYPE_CHECKING:
    from keras_tnattn.text.sentence_translator import SentenceTranslator
    from keras_tnattn_train.exports.task import Task


@dataclasses.dataclass(frozen=True)
class TrainedTranslator:
    """A translator and its vocabularies."""

    model: Any
    corpus: PreparedCorpus
    source_tokenizer: Any
    target_tokenizer: Any

    def with_beam(self, beam_size: int) -> "SentenceTranslator":
        """Returns a `SentenceTranslator` that searches with a beam of `beam_size` hypotheses."""
        from keras_tnattn.text.sentence_translator import SentenceTranslator  # needs TensorFlow

        with input_errors():
            return SentenceTranslator(
                self.model, self.source_tokenizer, self.target_tokenizer, beam_size
            )


class TranslatorRun(TrainedRun):
    """The finished run of a translator."""

    loss = staticmethod(logits_divergence)

    def __init__(self, folder: Path) -> None:
        self.trained = load_translator(folder)
        self.folder, self.model = folder, self.trained.model

    def predictor(self, batch_size: int, beam: int, n_best: int | None) -> Predictor:
        translate = self.trained.with_beam(beam)

        def predictions(texts: list[str]) -> list[list[Prediction]]:
            return [
                [
                    translation(*best, rank=rank if n_best else None)
                    for rank, best in enumerate(translations[: n_best or 1], start=1)
                ]
                for translations in translate.n_best(texts, batch_size)
            ]

        ranked = ("rank",) if n_best else ()
        return Predictor(predictions, (*ranked, *TRANSLATION_COLUMNS))

    def inputs(self) -> BucketedBatches:
        return BucketedBatches(self.trained.corpus.parts["train"], 64, seed=0)

    def description(self, result: Any) -> dict[str, Any]:
        data = read_object(self.folder / "data.json", "Train again")
        return {**data, "prepared": str(self.trained.corpus.folder.resolve())}

    def summary(self, scores: dict[str, float], folder: Path) -> str:
        return f"for its BLEU: keras-tnattn evaluate {folder}"

    def export(self, result: Any, scores: dict[str, float], folder: Path) -> Path:
        config = Run(self.folder).read_config(TranslateConfig, {})
        counts = {"parameters": result.model.count_params()}
        return export_trained(config, result.model, self.trained.corpus, counts, folder)

    def task(self) -> "Task":
        config = Run(self.folder).read_config(TranslateConfig, {})
        card = {"name": config.name, **model_card(config, self.trained.corpus, {})}
        return task_of(config, self.model, self.trained.corpus, card)


def load_translator(folder: str | Path, checkpoint: str | None = None) -> TrainedTranslator:
    """Loads the translator of a finished run, or of a checkpoint, such as `epoch_0010`."""
    folder = Path(folder)
    corpus = corpus_of(folder)
    if checkpoint is not None:
        path = _checkpoint_path(folder, checkpoint)
        config = Run(folder).read_config(TranslateConfig, {})
        model = build_translator(config, corpus.vocabulary_sizes)
        load_weights(model, path, "Choose another, or train the run again")
        return TrainedTranslator(model, corpus, *corpus.tokenizers)
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
    return TrainedTranslator(model, corpus, *corpus.tokenizers)


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


def _checkpoint_path(folder: Path, name: str) -> Path:
    paths = {
        path.name.removesuffix(SUFFIX): path
        for path in sorted(folder.glob(f"checkpoints/*{SUFFIX}"))
    }
    if name not in paths:
        raise InputError(
            f"Expected a checkpoint of the run in {folder}: {', '.join(paths) or 'it has none'}. "
            f"Received: checkpoint={name!r}"
        )
    return paths[name]
