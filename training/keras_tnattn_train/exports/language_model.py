"""Exports language models, which continue texts."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_small.asked.inputs import common_specs
from keras_small.runtimes.computation import Computation
from keras_small.runtimes.exporting import write_computation
from keras_tnattn import models
from keras_tnattn.search.model_steps import LanguageModelSteps
from keras_tnattn.typing import Tensor
from keras_tnattn_runtime import reader
from keras_tnattn_train.exports.task import Task

# Maximum tokens of each text that are compared with those of the model.
_COMPARED_TOKENS = 20
# Maximum error of logits, as a share of the largest: Keras' int8 rounds inputs, and files do not.
_MAXIMUM_LOGIT_ERROR = 0.02


@dataclasses.dataclass(frozen=True)
class LanguageModel(Task):
    """A language model.

    A portable folder has a file of the runtime, `prompt`, from ids to the logits of the next one
    and a state, in which `keras_tnattn.search.model_steps.LanguageModelSteps` keeps earlier tokens;
    and, if it keeps any, a second one with the same weights, `step`, from the ids so far
    and the state to logits and the new state. It is a function from a prompt to its continuation,
    whose `stream` yields each token as soon as it is chosen. A version is no SavedModel:
    `keras_tnattn_serving` generates with its engines, of which it needs at least one.

    Args:
        model: A model of `keras_tnattn.models.language_model`.
        tokens: The arguments of `keras_tnattn_runtime.reader.Tokens`: `kind`, and `characters` or
            `merges`.
        card: Entries of the model card. Default: none.
    """

    model: models.LanguageModel
    tokens: Mapping[str, Any]
    card: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    kind = "a language model"
    forms = ("Version", "Portable")

    def content(self) -> dict[str, Any]:
        size = reader.Tokens(**self.tokens).size
        if self.model.vocabulary_size != size:
            raise ValueError(
                f"Expected a model of {size} ids, those of the tokens. "
                f"Received: vocabulary_size={self.model.vocabulary_size}"
            )
        return {
            "format": reader.FORMAT,
            "task": "language",
            "tokens": dict(self.tokens),
            "max_length": self.model.max_length,
            "grows": self._computations[2],
        }

    def write_files(self, folder: Path, suffix: str) -> dict[str, str]:
        prompt, step, _ = self._computations
        files = {"prompt": f"prompt{suffix}"}
        write_computation(prompt, folder / files["prompt"])
        if self._steps.keeps_state:
            files["step"] = f"step{suffix}"
            write_computation(step, folder / files["step"])
        return files

    def compare(self, folder: Path) -> None:
        loaded = reader.load(folder)
        for text in ("", *self.examples):
            _compare(loaded, self._steps, text)

    @functools.cached_property
    def _steps(self) -> LanguageModelSteps:
        return LanguageModelSteps(self.model)

    @functools.cached_property
    def _computations(self) -> tuple[Computation, Computation, list[bool]]:
        return _computations(self._steps)

    def version_card(self) -> dict[str, Any]:
        sizes = {
            "parameters": self.model.count_params(),
            "vocabulary": self.model.vocabulary_size,
        }
        return {"task": "language", "sizes": sizes, "max_length": self.model.max_length}


def _compare(loaded: reader.LanguageModel, steps: LanguageModelSteps, text: str) -> None:
    """Compares the logits after a prompt, and after each token that the folder chooses next."""
    ids = loaded.prompt(text)
    count = min(_COMPARED_TOKENS, loaded.room(ids))
    for n, logits in enumerate(loaded.logits(ids, count)):
        expected = keras.ops.convert_to_numpy(steps.start(np.array([ids])).logits)[0]
        error = np.abs(logits - expected).max() / max(1, np.abs(expected).max())
        if not error <= _MAXIMUM_LOGIT_ERROR:
            raise RuntimeError(
                f"it continues {text!r} in another way than the model: after {n} tokens its logits "
                f"are off by {error:.2g} of the largest"
            )
        ids = [*ids, int(np.argmax(logits[1:])) + 1]


def _computations(steps: LanguageModelSteps) -> tuple[Computation, Computation, list[bool]]:
    """Returns the computations of the files, and which states have room for ids.

    The first computation is from `ids`, `(B, P)`, 0 for padding on the left, to `logits` `(B, V)`
    and `next_000` and so on, `(B, ...)`, a state with places for the `P` ids; the second one from
    these states as `state_000` and so on, with room for `L` ids, `position`, and `ids` `(B, L)`, to
    logits and the new state.
    """
    size = steps.vocabulary_size
    ids = np.array([[0, 1, 4, 5], [1, 5, 4, 3]], "int32") % size
    wider = np.pad(ids, ((1, 0), (0, 2)), constant_values=min(4, size - 1))
    structure = steps.start(ids).state
    grows = ["tokens" in path for path, _ in keras.tree.flatten_with_path(structure)]

    def name_outputs(logits: Tensor, state: Any) -> dict[str, Tensor]:
        parts = {f"next_{n:03}": x for n, x in enumerate(keras.tree.flatten(state))}
        return {"logits": logits, **parts}

    def prompt(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        start = steps.start(inputs["ids"])
        return name_outputs(start.logits, start.state)

    def step(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        flat = [inputs[f"state_{n:03}"] for n in range(len(grows))]
        state = keras.tree.pack_sequence_as(structure, flat)
        return name_outputs(*steps.step(inputs["ids"], inputs["position"], {}, state))

    def step_inputs(ids: np.ndarray, room: int) -> dict[str, np.ndarray]:
        state = steps.with_room(steps.start(ids).state, room)
        arrays = map(keras.ops.convert_to_numpy, keras.tree.flatten(state))
        longer = np.pad(ids, ((0, 0), (0, room)))
        longer[:, ids.shape[1]] = min(3, size - 1)
        return {
            "ids": longer,
            "position": np.array(ids.shape[1], "int32"),
            **{f"state_{n:03}": x for n, x in enumerate(arrays)},
        }

    prompts = [{"ids": ids}, {"ids": wider}]
    examples = [step_inputs(ids, 1), step_inputs(wider, 3)]
    return (
        Computation(steps.model, prompt, common_specs(prompts), prompts),
        Computation(steps.model, step, common_specs(examples), examples),
        grows,
    )
