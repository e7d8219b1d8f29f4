"""A run of `language`: continues texts, and is compressed."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_small import logits_divergence
from keras_tnattn_train.language.config import LanguageConfig
from keras_tnattn_train.language.corpus import PackedBatches, read_corpus
from keras_tnattn_train.language.predicting import PredictingLanguageModel
from keras_tnattn_train.language.train import card_of, export, measure
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.trained import TrainedRun
from keras_tnattn_train.system.files import read_object

if TYPE_CHECKING:
    from keras_tnattn_train.exports.task import Task


class LanguageRun(PredictingLanguageModel, TrainedRun):
    """The finished run of a language model."""

    loss = staticmethod(logits_divergence)

    def inputs(self) -> np.ndarray:
        config = Run(self.folder).read_config(LanguageConfig, {})
        part = read_corpus(config).parts["train"]
        batches = PackedBatches(part, config.length, 1024, config.seed)
        return batches[0][0]

    def description(self, result: Any) -> dict[str, Any]:
        return read_object(self.folder / "data.json", "Train again")

    def scores(self, result: Any) -> dict[str, float]:
        config = Run(self.folder).read_config(LanguageConfig, {})
        part = read_corpus(config).parts["test"]
        sizes = (config.length, config.batch_size)
        return {
            "bits per byte": measure(self.model, part, *sizes)["bits_per_byte"],
            "bits per byte, compressed": measure(result.model, part, *sizes)["bits_per_byte"],
        }

    def export(self, result: Any, scores: dict[str, float], folder: Path) -> Path:
        run = Run(self.folder)
        config = run.read_config(LanguageConfig, {})
        measured = {"test": {"bits_per_byte": scores["bits per byte, compressed"]}}
        card = card_of(config, read_corpus(config), measured)
        return export(result.model, self.tokens, folder, None, card)

    def task(self) -> "Task":
        from keras_tnattn_train.exports import LanguageModel

        card = {"name": self.folder.name}
        return LanguageModel(self.language_model(), dataclasses.asdict(self.tokens), card)
