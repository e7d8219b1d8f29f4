"""The command line `keras-tnattn generate RUN "prompt"`."""

import itertools
import sys
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any

from keras_tnattn_runtime.layout import portable_folder
from keras_tnattn_train.options.apps import Program
from keras_tnattn_train.options.errors import InputError, input_errors
from keras_tnattn_train.options.options import LARGEST_SEED, SEARCH, Options, argument, option
from keras_tnattn_train.processes.backend import start_backend

EXAMPLES = """\
examples:
  continue a text with the most probable characters:
    keras-tnattn generate runs/language-sdpa-0 "Returns the "
  sample, twice as long, and stop at the end of a line:
    keras-tnattn generate runs/language-sdpa-0 "Returns the " --max-tokens 100 \\
        --temperature 0.8 --top-p 0.9 --seed 1 --stop $'\\n'
"""


class GenerateOptions(Options):
    """The options of `keras-tnattn generate`."""

    model: str = argument(
        "the folder of a finished run of language, or of an exported language model"
    )
    prompt: str = argument("the text to continue; an empty one begins a document")
    max_tokens: int | None = option(
        None,
        SEARCH,
        "tokens to write at most; beyond the model's length each is computed from the last ones "
        "that it reads (default: 50, or what the model still reads)",
        ge=1,
        le=1_000_000,
    )
    temperature: float = option(
        0.0, SEARCH, "divides the logits; 0 takes the most probable token", ge=0
    )
    top_k: int | None = option(None, SEARCH, "sample from the K most probable tokens", ge=1)
    top_p: float | None = option(
        None, SEARCH, "sample from the most probable tokens of probability P together", gt=0, le=1
    )
    min_p: float | None = option(
        None, SEARCH, "sample from tokens of P times the largest probability or more", ge=0, le=1
    )
    repetition_penalty: float = option(
        1.0, SEARCH, "makes tokens that were used less probable; 1: no penalty", gt=0
    )
    stop: str | None = option(None, SEARCH, "end after this text", metavar="TEXT")
    seed: int = option(0, SEARCH, "seed of the sampling", ge=0, le=LARGEST_SEED)
    metric_cache: bool = option(False, SEARCH, "keep the metric of the prompt (plga as published)")


def generate(options: GenerateOptions) -> None:
    """Writes prompt and continuation to the standard output."""
    folder = Path(options.model)
    if (folder / "config.json").is_file():
        texts = _from_run(folder, options)
    elif portable := portable_folder(folder):
        texts = _from_export(portable, options)
    else:
        raise InputError(
            "Expected the folder of a run of language, or of an exported language model with files "
            f"for a runtime. Received: model={options.model}"
        )
    first = next(texts, "")  # errors of the prompt come before it is written
    print(options.prompt, end="", flush=True)
    for text in itertools.chain([first], texts):
        print(text, end="", flush=True)
    print()


def _from_export(folder: Path, options: GenerateOptions) -> Iterator[str]:
    from keras_tnattn_runtime.reader import LanguageModel, load

    if options.metric_cache:
        raise InputError(
            "Expected no metric_cache with an exported model. Received: metric_cache=True, "
            f"model={options.model}. Leave it out, or name the run"
        )
    with input_errors((ImportError, OSError, ValueError)):
        model = load(folder)
        if not isinstance(model, LanguageModel):
            raise InputError(
                f"Expected a language model. Received: model={options.model}, a "
                f"{type(model).__name__}, which predicts with: python {folder / 'reader.py'} TEXT"
            )
        yield from _continuation(model, model.tokens.ids, options)


def _from_run(folder: Path, options: GenerateOptions) -> Iterator[str]:
    start_backend()
    from keras_tnattn_train.language.predicting import PredictingLanguageModel

    run = PredictingLanguageModel(folder)
    caches = {"key_value_cache": True, "metric_cache": True} if options.metric_cache else {}
    return _continuation(run, run.tokens.encode, options, **caches)


def _continuation(
    model: Any, ids: Callable[[str], Sized], options: GenerateOptions, **caches: bool
) -> Iterator[str]:
    """Yields the text of each token; beyond the model's length it reads its last tokens anew."""
    from keras_tnattn_runtime.reader import up_to

    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    chosen = {name: getattr(options, name) for name in names} | caches
    length = model.max_length
    total = options.max_tokens

    def texts() -> Iterator[str]:
        text = options.prompt
        written = 0
        seed = options.seed
        if total is None or length is None or max(1, len(ids(text))) + total <= length:
            yield from model.stream(text, total, seed=seed, **chosen)
            return
        print(
            f"note: the model reads {length} tokens (--length of language), fewer than the prompt "
            f"and --max-tokens {total} together; it continues its last {length // 2} tokens",
            file=sys.stderr,
        )
        while written < total:
            if len(ids(text)) >= length:
                text = _end(text, ids, length // 2)
            count = min(total - written, length - max(1, len(ids(text))))
            expected = written + count
            for new in model.stream(text, count, seed=seed, **chosen):
                yield new
                text += new
                written += 1
            if written < expected:  # the end of the document
                return
            seed += 1

    return up_to(texts(), options.stop)


def _end(text: str, ids: Callable[[str], Sized], most: int) -> str:
    """Returns the end of a text: at most so many tokens, at least one character."""
    text = text[-most:]
    while len(ids(text)) > most and len(text) > 1:
        text = text[len(text) // 8 + 1 :]
    return text


main = Program(
    "generate",
    "Continues a text with a language model, and writes each token as it is chosen.",
    EXAMPLES,
    GenerateOptions,
    generate,
)
