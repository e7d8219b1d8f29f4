"""A run of `translate`: translates, is compressed, and exports."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_small import logits_divergence
from keras_tnattn_train.data.pairs.batches import BucketedBatches
from keras_tnattn_train.data.pairs.prepared import PreparedCorpus
from keras_tnattn_train.options.errors import InputError, input_errors
from keras_tnattn_train.runs.checkpoints import load_weights
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.trained import TrainedRun
from keras_tnattn_train.system.files import read_object
from keras_tnattn_train.translate.config import TranslateConfig
from keras_tnattn_train.translate.models import build_translator
from keras_tnattn_train.translate.predicting import (
    PredictingTranslator,
    corpus_of,
    finished_model,
)
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


class TranslatorRun(PredictingTranslator, TrainedRun):
    """The finished run of a translator."""

    loss = staticmethod(logits_divergence)

    def inputs(self) -> BucketedBatches:
        return BucketedBatches(self.corpus.parts["train"], 64, seed=0)

    def description(self, result: Any) -> dict[str, Any]:
        data = read_object(self.folder / "data.json", "Train again")
        return {**data, "prepared": str(self.corpus.folder.resolve())}

    def summary(self, scores: dict[str, float], folder: Path) -> str:
        return f"for its BLEU: keras-tnattn evaluate {folder}"

    def export(self, result: Any, scores: dict[str, float], folder: Path) -> Path:
        config = Run(self.folder).read_config(TranslateConfig, {})
        counts = {"parameters": result.model.count_params()}
        return export_trained(config, result.model, self.corpus, counts, folder)

    def task(self) -> "Task":
        config = Run(self.folder).read_config(TranslateConfig, {})
        card = {"name": config.name, **model_card(config, self.corpus, {})}
        return task_of(config, self.model, self.corpus, card)


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
    return TrainedTranslator(finished_model(folder, corpus), corpus, *corpus.tokenizers)


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
