"""Writes folders that hold all that continues a text."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_small.runtimes.computation import Computation
from keras_small.runtimes.examples import common_specs
from keras_small.runtimes.exporting import write_computation
from keras_tnattn.export.signatures import check_backend
from keras_tnattn.models import LanguageModel
from keras_tnattn.search.model_steps import LanguageModelSteps
from keras_tnattn.typing import Tensor
from keras_tnattn_runtime import reader
from keras_tnattn_train.exports.portable import SUFFIXES, check_runtime, new_folder, write_text

# How many tokens of each text are compared with those of the model.
_COMPARED = 20


def export_portable_language_model(
    model: LanguageModel,
    tokens: Mapping[str, Any],
    folder: str | os.PathLike,
    runtime: str = "onnxruntime",
    texts: Sequence[str] = (),
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a language model as a folder for a runtime; completely or not at all.

    The folder has a file of the runtime, `prompt`, from ids to the logits of the next one and a
    state, which is what `keras_tnattn.search.model_steps.LanguageModelSteps` keeps of earlier
    tokens; and, if it keeps any, a second one with the same weights, `step`, from the ids so far
    and the state to logits and the new state. Besides, as that of `export_portable`, the folder has
    `text.json` and `reader.py`, which searches with NumPy:

    ```python notest
    from reader import load  # or: from keras_tnattn_runtime.reader import load

    generate = load("tales")
    generate("Once upon ", temperature=0.8, seed=1)  # the continuation
    for text in generate.stream("Once upon "):  # each token as soon as it is chosen
        print(text, end="")
    ```

    Args:
        model: A model of `keras_tnattn.models.language_model`.
        tokens: The arguments of `keras_tnattn_runtime.reader.Tokens`: `kind`, and `characters` or
            `merges`.
        folder: The new folder.
        runtime: `"onnxruntime"` (default) or `"litert"`.
        texts: Prompts with which the folder is tried.
        card: Further entries of the model card.

    Returns:
        The folder.

    Raises:
        FileExistsError: If the folder exists.
        ImportError: If the runtime or a converter is not installed.
        RuntimeError: If Keras does not run on TensorFlow, or the folder continues a text in another
            way than the model.
        ValueError: If the runtime is unknown, or the model has another number of tokens.

    Example:
        ```python notest
        tokens = {"kind": "characters", "characters": " etaoin"}
        export_portable_language_model(model, tokens, "portable/tales")
        ```
    """
    check_backend()
    check_runtime(runtime)
    size = reader.Tokens(**tokens).size
    if model.vocabulary_size != size:
        raise ValueError(
            f"Expected a model of {size} ids, those of the tokens. "
            f"Received: vocabulary_size={model.vocabulary_size}"
        )
    steps = LanguageModelSteps(model)
    prompt, step, grows = _computations(steps)
    content = {
        "format": reader.FORMAT,
        "task": "language",
        "tokens": dict(tokens),
        "max_length": model.max_length,
        "grows": grows,
    }
    with new_folder(folder) as whole:
        files = {"prompt": f"prompt{SUFFIXES[runtime]}"}
        write_computation(prompt, whole / files["prompt"])
        if steps.keeps_state:
            files["step"] = f"step{SUFFIXES[runtime]}"
            write_computation(step, whole / files["step"])
        write_text(whole, content, files, card)
        loaded = reader.load(whole)
        for text in ("", *texts):
            _compare(loaded, steps, text, runtime)
    return Path(folder)


def _compare(loaded: reader.LanguageModel, steps: LanguageModelSteps, text: str, name: str) -> None:
    """Compares the logits after a prompt and after what the folder chooses next."""
    ids = loaded.prompt(text)
    count = min(_COMPARED, loaded.room(ids))
    for n, logits in enumerate(loaded.logits(ids, count)):
        expected = keras.ops.convert_to_numpy(steps.start(np.array([ids])).logits)[0]
        error = np.abs(logits - expected).max() / max(1, np.abs(expected).max())
        if not error <= 0.02:  # of a model that Keras quantized, which rounds its inputs
            raise RuntimeError(
                f"The folder for {name} continues {text!r} in another way than the model: after "
                f"{n} tokens its logits are off by {error:.2g} of the largest"
            )
        ids = [*ids, int(np.argmax(logits[1:])) + 1]


def _computations(steps: LanguageModelSteps) -> tuple[Computation, Computation, list[bool]]:
    """Returns what the files compute, and which states have room for ids.

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
