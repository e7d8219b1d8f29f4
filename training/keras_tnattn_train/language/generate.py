"""The command line: `training/generate.py RUN "prompt"`."""

import itertools
from collections.abc import Iterator
from pathlib import Path

from keras_tnattn_runtime.layout import portable_folder
from keras_tnattn_train.options.apps import Program
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import LARGEST_SEED, SEARCH, Options, argument, option
from keras_tnattn_train.processes.backend import start_backend

EXAMPLES = """\
examples:
  continue a text with the most probable characters:
    python training/generate.py runs/language-sdpa-0 "Returns the "
  sample, twice as long, and stop at the end of a line:
    python training/generate.py runs/language-sdpa-0 "Returns the " --max-tokens 100 \\
        --temperature 0.8 --top-p 0.9 --seed 1 --stop $'\\n'
"""


class GenerateOptions(Options):
    """The options of `training/generate.py`."""

    model: str = argument(
        "the folder of a finished run of language, or of an exported language model"
    )
    prompt: str = argument("the text to continue; an empty one begins a document")
    max_tokens: int | None = option(
        None,
        SEARCH,
        "tokens to write at most (default: 50, or what the model still reads)",
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
    names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    try:
        model = load(folder)
        if not isinstance(model, LanguageModel):
            raise InputError(
                f"Expected a language model. Received: model={options.model}, a "
                f"{type(model).__name__}, which predicts with: python {folder / 'reader.py'} TEXT"
            )
        chosen = {name: getattr(options, name) for name in (*names, "stop", "seed")}
        yield from model.stream(options.prompt, **chosen)
    except (ImportError, OSError, ValueError) as error:
        raise InputError(str(error)) from error


def _from_run(folder: Path, options: GenerateOptions) -> Iterator[str]:
    start_backend()
    from keras_tnattn_train.language.loading import LanguageRun

    return LanguageRun(folder).stream(
        options.prompt,
        options.stop,
        max_new_tokens=options.max_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
        key_value_cache=True if options.metric_cache else None,
        metric_cache=options.metric_cache,
    )


main = Program(
    "generate",
    "Continues a text with a language model, and writes each token as it is chosen.",
    EXAMPLES,
    GenerateOptions,
    generate,
)
