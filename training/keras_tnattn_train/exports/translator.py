"""Exports translators of sentences."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_small.asked.inputs import common_specs
from keras_small.runtimes.computation import Computation
from keras_small.runtimes.exporting import write_computation
from keras_tnattn import models
from keras_tnattn.export.signatures import Signatures
from keras_tnattn.export.translators import translator_signatures
from keras_tnattn.search.model_steps import TranslatorSteps
from keras_tnattn.typing import Tensor
from keras_tnattn_runtime import reader
from keras_tnattn_train.exports.task import Task

if TYPE_CHECKING:  # it needs TensorFlow
    from keras_tnattn.text.sentence_translator import SentenceTranslator


@dataclasses.dataclass(frozen=True)
class Translator(Task):
    """A translator of sentences.

    A portable folder has two files of the runtime: `encode`, from source ids to the context of all
    steps of the search and to the state before the first step, and `step`, from the ids so far and
    the state to the logits of the next id and the new state. It is a function from a sentence to
    its translation, with `n_best` for several. A version has the signatures of
    `keras_tnattn.export.translators.translator_signatures`.

    Args:
        model: A model of `keras_tnattn.models.translator`.
        source_tokenizer: The `keras_tnattn.text.word_pieces.WordPieceTokenizer` of the source
            language, or a `BertPieceTokenizer`.
        target_tokenizer: The tokenizer of the target language.
        beam_size: Number of hypotheses, unless a call says otherwise. Defaults to 1, greedy search.
        extra_tokens: How many more pieces than the sentence a translation may have. Defaults to 50.
        length_penalty: As in `keras_tnattn.search.BeamSearch`. Defaults to 0.6.
        card: Entries of the model card. Default: none.
    """

    model: keras.Model
    source_tokenizer: Any
    target_tokenizer: Any
    beam_size: int = 1
    extra_tokens: int = 50
    length_penalty: float = 0.6
    card: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    kind = "a translator"
    forms = ("Version", "Portable", "Page")
    scripts = ("pieces.js", "translator.js")

    def content(self) -> dict[str, Any]:
        self._translate()  # checks the options
        return {
            "format": reader.FORMAT,
            "task": "translate",
            "source": pieces_of(self.source_tokenizer),
            "target": pieces_of(self.target_tokenizer),
            "beam_size": self.beam_size,
            "extra_tokens": self.extra_tokens,
            "length_penalty": self.length_penalty,
            "grows": self._computations[2],
        }

    def write_files(self, folder: Path, suffix: str) -> dict[str, str]:
        encode, step, _ = self._computations
        files = {name: f"{name}{suffix}" for name in ("encode", "step")}
        write_computation(encode, folder / files["encode"])
        write_computation(step, folder / files["step"])
        return files

    def compare(self, folder: Path) -> None:
        translate = self._translate()
        translator = reader.load(folder)
        for text in [*_sentences(self.source_tokenizer), *self.examples]:
            (expected,) = translate.n_best([text])
            (received,) = translator.n_best([text])
            # Hypotheses whose scores are nearly the same may change places.
            if not np.isclose(expected[0].score, received[0][1], rtol=1e-3, atol=1e-3):
                raise RuntimeError(
                    f"it translates {text!r} as {received[0][0]!r} and not, as the model does, as "
                    f"{expected[0].text!r}"
                )

    def signatures(self) -> Signatures:
        return translator_signatures(
            self.model,
            self.source_tokenizer,
            self.target_tokenizer,
            self.beam_size,
            self.extra_tokens,
            self.length_penalty,
        )

    @functools.cached_property
    def _computations(self) -> tuple[Computation, Computation, list[bool]]:
        return step_computations(self.model)

    def _translate(self) -> "SentenceTranslator":
        from keras_tnattn.text.sentence_translator import SentenceTranslator

        return SentenceTranslator(
            self.model,
            self.source_tokenizer,
            self.target_tokenizer,
            self.beam_size,
            self.extra_tokens,
            self.length_penalty,
        )


def step_computations(
    model: models.Translator,
) -> tuple[Computation, Computation, list[bool]]:
    """Returns the computations of the files `encode` and `step`; raises as `TranslatorSteps`.

    The first is from `source`, ids `(B, S)`, to a dict of `context_000`, `context_001` and so on,
    `(B, ...)`, and `state_000` and so on, `(B, ...)`, with room for one id. The second is from
    these, `position` and `ids`, `(N, L)`, to `logits` `(N, V)` and the new state, `next_000` and so
    on, where the state has room for `L` ids of `N = B K` sequences. The third result tells which
    states have room for ids, in their last axis but one.
    """
    steps = TranslatorSteps(model)
    source = np.array([[2, 4, 5, 3, 0], [2, 4, 3, 0, 0]], "int32") % model.source_vocabulary_size
    wider = np.pad(source, ((0, 1), (0, 3)), mode="edge")
    structure = steps.encode(source)
    paths = [path for path, _ in keras.tree.flatten_with_path(structure[1])]
    grows = ["tokens" in path for path in paths]
    sizes = [len(keras.tree.flatten(part)) for part in structure]
    names = [
        f"{kind}_{n:03}"
        for kind, size in zip(("context", "state"), sizes, strict=True)
        for n in range(size)
    ]

    def encode(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(names, keras.tree.flatten(steps.encode(inputs["source"])), strict=True))

    def step(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        flat = [inputs[name] for name in names]
        context, state = keras.tree.pack_sequence_as(structure, flat)
        logits, state = steps.step(inputs["ids"], inputs["position"], context, state)
        new = {f"next_{n:03}": x for n, x in enumerate(keras.tree.flatten(state))}
        return {"logits": logits, **new}

    def step_inputs(source: np.ndarray, beams: int, position: int) -> dict[str, Any]:
        context, state = steps.encode(source)
        state = steps.with_room(state, position + 1)
        flat = [
            *keras.tree.flatten(context),
            *(keras.ops.repeat(x, beams, axis=0) for x in keras.tree.flatten(state)),
        ]
        arrays = map(keras.ops.convert_to_numpy, flat)
        ids = np.zeros((len(source) * beams, position + 2), "int32")
        ids[:, 0] = 2
        ids[:, 1 : position + 1] = 4
        place = np.array(position, "int32")
        return {"ids": ids, "position": place, **dict(zip(names, arrays, strict=True))}

    sources = [{"source": source}, {"source": wider}]
    examples = [step_inputs(source, 1, 0), step_inputs(wider, 3, 2)]
    return (
        Computation(model, encode, common_specs(sources), sources),
        Computation(model, step, common_specs(examples), examples),
        grows,
    )


def pieces_of(tokenizer: Any) -> dict[str, Any]:
    """Returns the arguments of `reader.Pieces`."""
    return {
        "vocabulary": tokenizer.vocabulary,
        "kind": tokenizer.options.get("tokenizer", "joined"),
        "case": tokenizer.case,
        "keep_accents": tokenizer.keep_accents,
        "form": tokenizer.form,
    }


def _sentences(tokenizer: Any) -> list[str]:
    """Returns sentences of known and of unknown words."""
    words = [piece for piece in tokenizer.vocabulary[4:] if not piece.startswith("##")]
    rng = np.random.default_rng(0)
    return ["", *(" ".join(rng.choice(words or ["?"], size)) for size in (1, 7, 20))]
