"""A run of `language`: continues texts, and is compressed."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_small import logits_divergence
from keras_tnattn.models import LanguageModel
from keras_tnattn.search import Generator
from keras_tnattn_train.language.config import LanguageConfig
from keras_tnattn_train.language.corpus import PackedBatches, read_corpus
from keras_tnattn_train.language.tokens import END, Tokens
from keras_tnattn_train.language.train import card_of, export, measure, model_path
from keras_tnattn_train.options.errors import InputError, input_errors
from keras_tnattn_train.runs.predictions import Prediction, Predictor
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.saved_models import load_model
from keras_tnattn_train.runs.trained import TrainedRun
from keras_tnattn_train.system.files import read_object

if TYPE_CHECKING:
    from keras_tnattn_train.exports.task import Task

CONTINUATION = 50  # tokens that `predict` writes


class LanguageRun(TrainedRun):
    """The finished run of a language model."""

    loss = staticmethod(logits_divergence)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        data = read_object(folder / "data.json", "Choose the folder of a run of language")
        if "tokens" not in data or "characters" not in data:
            raise InputError(f"Expected a run of language. Received: {folder}, another one")
        self.tokens = Tokens.load(data)
        self.model = load_model(model_path(folder), "Finish the run with --resume")
        size = getattr(self.model, "vocabulary_size", self.model.output_shape[-1])
        if size != self.tokens.vocabulary_size:
            raise InputError(
                f"Expected a model of {self.tokens.vocabulary_size} tokens, those of data.json. "
                f"Received: {model_path(folder)} of {size}"
            )

    def generator(self, **options: Any) -> Generator:
        """Returns a generator; documents end it."""
        with input_errors():
            return Generator(self.language_model(), end_id=END, **options)

    def language_model(self) -> LanguageModel:
        """Returns the model."""
        if not isinstance(self.model, LanguageModel):
            raise InputError(
                f"Expected a language model. Received: {model_path(self.folder)}, "
                f"a {type(self.model).__name__}"
            )
        return self.model

    @property
    def max_length(self) -> int | None:
        """How many tokens the model reads."""
        return self.language_model().max_length

    def stream(self, prompt: str, max_tokens: int | None = None, **options: Any) -> Iterator[str]:
        """Yields the text of each token that continues a prompt; an empty one begins a document."""
        ids = self.tokens.prompt(prompt)
        if max_tokens is None:
            room = CONTINUATION if self.max_length is None else self.max_length - len(ids)
            max_tokens = min(CONTINUATION, max(1, room))
        generator = self.generator(max_new_tokens=max_tokens, **options)
        with input_errors():
            ids_until_end = itertools.takewhile(lambda i: i != END, generator.stream(ids))
            yield from map(self.tokens.decoder(), ids_until_end)

    def predictor(self, batch_size: int, beam: int, n_best: int | None) -> Predictor:
        room = self.model.max_length or 2 * CONTINUATION
        generator = self.generator(max_new_tokens=min(CONTINUATION, max(1, room // 2)))

        def predictions(texts: list[str]) -> list[list[Prediction]]:
            # The last tokens that the model reads.
            longest = room - generator.max_new_tokens
            prompts = [self.tokens.prompt(text)[-longest:] for text in texts]
            rows = generator(prompts, batch_size).ids
            continuations = [self.tokens.decode(row) for row in rows]
            return [[Prediction((text,), {"continuation": text})] for text in continuations]

        return Predictor(predictions, ("continuation",))

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
