"""A finished run of `language` predicts: what an answer within seconds needs, and no more."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_tnattn.models import LanguageModel
from keras_tnattn.search import Generator
from keras_tnattn_train.language.tokens import END, Tokens
from keras_tnattn_train.options.errors import InputError, input_errors
from keras_tnattn_train.runs.predictions import (
    CONTINUATION_COLUMNS,
    CONTINUED_TOKENS,
    Prediction,
    Predictor,
    continuation,
    share_out_tokens,
)
from keras_tnattn_train.runs.saved_models import load_model
from keras_tnattn_train.runs.trained import PredictingRun
from keras_tnattn_train.system.files import read_object


class PredictingLanguageModel(PredictingRun):
    """The finished run of a language model, which continues texts."""

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
            room = CONTINUED_TOKENS if self.max_length is None else self.max_length - len(ids)
            max_tokens = min(CONTINUED_TOKENS, max(1, room))
        generator = self.generator(max_new_tokens=max_tokens, **options)
        with input_errors():
            ids_until_end = itertools.takewhile(lambda i: i != END, generator.stream(ids))
            yield from map(self.tokens.decoder(), ids_until_end)

    def predictor(self, batch_size: int, beam: int, n_best: int | None) -> Predictor:
        longest, count = share_out_tokens(self.max_length)
        generator = self.generator(max_new_tokens=count)

        def predictions(texts: list[str]) -> list[list[Prediction]]:
            prompts = [self.tokens.prompt(text)[-longest:] for text in texts]
            rows = generator(prompts, batch_size).ids
            return [[continuation(self.tokens.decode(row))] for row in rows]

        return Predictor(predictions, CONTINUATION_COLUMNS)


def model_path(folder: Path) -> Path:
    """Returns where the finished model of a run is."""
    return folder / "model.keras"
