"""The study `long-texts`: what reads long texts, how well, how fast and with how much memory."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from keras_tnattn_studies import alone
from keras_tnattn_studies.measuring import Columns, Measurements, measure_missing
from keras_tnattn_studies.recall import SECTION
from keras_tnattn_train.commands import Command, pop_options
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import RUN, TRAINING, Options, Seeds, option
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.system.files import read_object, save_text, write_json

# The settings among which each model's are chosen.
LEARNING_RATES = (0.003, 0.01)
NUM_HEADS = (2, 8)
PEER = "mha"
MODELS = ("tsa", PEER, "window", "convolution", "gru", "none", "tsa_symmetric")
PEER_NAME = PEER.upper()
HEADER = (
    *("tokens", "model", "test %", "steps", "s/step", "MiB in training"),
    *(f"of {PEER_NAME}'s time", f"of {PEER_NAME}'s memory"),
)
# The columns of cells.csv, with their types.
KEYS: Columns = {"model": str, "length": int, "seed": int}
MEASUREMENTS: Columns = {
    "accuracy": float,
    "steps": int,
    "seconds": float,
    "seconds_per_step": float,
    "megabytes": float,
}
COLUMNS: Columns = {"outcome": str, **MEASUREMENTS}
TRAINED, TIMED_OUT, TOO_LARGE = "trained", "out of time", "out of memory"
# Texts in a batch with which settings are chosen.
SEARCH_TEXTS = 16


class RecallOptions(Options):
    """The options that all trainings of the study share."""

    steps: int = option(200, TRAINING, "training steps", ge=1, le=1_000_000)
    step_tokens: int = option(
        16_384, TRAINING, "tokens in a batch, at every length", ge=SECTION, le=2**24
    )
    max_seconds: float = option(
        100.0, TRAINING, "processor seconds after which a training ends early", gt=0
    )
    gigabytes: float = option(8.0, TRAINING, "memory that a training may allocate", gt=0)
    search_length: int = option(
        256,
        TRAINING,
        f"tokens in the texts on which settings are chosen; {SEARCH_TEXTS} texts are a batch",
        ge=SECTION,
        le=2**20,
    )

    def check_together(self) -> None:
        if self.search_length % SECTION:
            raise ValueError(
                f"Expected a search_length that is a multiple of {SECTION}. "
                f"Received: search_length={self.search_length}"
            )


class LongTextsOptions(Options):
    """The options that say what to measure."""

    lengths: tuple[int, ...] = option((1024, 4096, 16_384), RUN, "tokens in a text")
    models: tuple[str, ...] = option(MODELS, RUN, "models to compare", choices=MODELS)
    seeds: Seeds = option((0, 1, 2), RUN, "seeds; every model is trained once for each seed")
    run_dir: str = option("runs/long-texts", RUN, "folder of the tables", metavar="DIR")


def check_length(length: int, step_tokens: int) -> None:
    """Raises `ValueError` unless texts of a length consist of sections and fill a batch."""
    if length < SECTION or length % SECTION or step_tokens % length:
        raise ValueError(
            f"Expected lengths that are multiples of {SECTION} and divide step_tokens. "
            f"Received: lengths={length} with step_tokens={step_tokens}"
        )


def choices(model: str) -> list[dict[str, Any]]:
    """Returns the settings among which those of a model are chosen."""
    if model in ("convolution", "gru", "none"):
        return [{"learning_rate": rate} for rate in LEARNING_RATES]
    return [{"learning_rate": r, "num_heads": h} for h in NUM_HEADS for r in LEARNING_RATES]


def _place(key: tuple[str, int, int]) -> tuple[int, int, int]:
    model, length, seed = key
    return length, MODELS.index(model), seed


def table(cells: Measurements) -> str:
    """Returns a table with a line for each length and model: means over its seeds.

    The last two columns are shares of the time per step and of the memory that
    `MultiHeadAttention` takes.
    """
    from keras_tnattn_train.runs.tables import attention_title, spread, table_of

    lines: list[Sequence[str]] = [HEADER]
    for length in sorted({length for _, length, _ in cells}):
        peer = means(cells, PEER, length)
        for model in MODELS:
            of_model = of(cells, model, length)
            if not of_model:
                continue
            mean = means(cells, model, length)
            done = [cell for cell in of_model if "accuracy" in cell]
            if not done:
                lines.append((f"{length:,}", attention_title(model), TOO_LARGE, *5 * ("-",)))
                continue
            ratios = [
                f"{mean[name] / peer[name]:.3f}" if peer else "-"
                for name in ("seconds_per_step", "megabytes")
            ]
            count = "" if len(done) == len(of_model) else f" ({len(done)} of {len(of_model)} seeds)"
            early = any(cell["outcome"] == TIMED_OUT for cell in done)
            accuracy = spread([100 * cell["accuracy"] for cell in done])
            lines.append(
                (
                    f"{length:,}",
                    attention_title(model),
                    f"{accuracy}{count} ({TIMED_OUT})" if early else f"{accuracy}{count}",
                    " ".join(map(str, sorted({cell["steps"] for cell in done}))),
                    f"{mean['seconds_per_step']:.3f}",
                    f"{mean['megabytes']:,.0f}",
                    *ratios,
                )
            )
    return table_of(lines)


def of(cells: Measurements, model: str, length: int) -> list[dict[str, Any]]:
    """Returns the measurements of a model at a length, one for each seed."""
    return [cell for (m, n, _), cell in cells.items() if (m, n) == (model, length)]


def means(cells: Measurements, model: str, length: int) -> dict[str, float]:
    """Returns the means over the seeds; nothing if no training of the model ended."""
    done = [cell for cell in of(cells, model, length) if "accuracy" in cell]
    return {name: statistics.fmean(cell[name] for cell in done) for name in MEASUREMENTS if done}


def draw(cells: Measurements, path: Path) -> None:
    """Draws accuracy, seconds per step and memory against the length."""
    from matplotlib.figure import Figure

    from keras_tnattn_train.runs.plots import save

    figure = Figure(figsize=(12, 3.5), layout="constrained")
    names = {
        "accuracy": "accuracy",
        "seconds_per_step": "seconds per step",
        "megabytes": "MiB in training",
    }
    lengths = sorted({length for _, length, _ in cells})
    for axes, (name, label) in zip(figure.subplots(1, 3), names.items(), strict=True):
        for model in MODELS:
            points = {n: mean[name] for n in lengths if (mean := means(cells, model, n))}
            if points:
                axes.plot(list(points), list(points.values()), marker="o", label=model.upper())
        axes.set(xlabel="tokens in a text", ylabel=label, xscale="log")
        if name != "accuracy":
            axes.set(yscale="log")
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths], minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    axes.legend()
    save(figure, path)


def settings_of(
    models: Iterable[str], common: RecallOptions, path: Path
) -> dict[str, dict[str, Any]]:
    """Chooses the settings of each model by its accuracy on validation texts."""
    from keras_tnattn_studies.recall_training import choose_settings

    settings_of = (
        read_object(path, "Delete it and cells.csv to start again") if path.exists() else {}
    )
    for model in models:
        if model in settings_of:
            continue
        candidates = choices(model)
        length = common.search_length
        arguments = (length, common.steps, SEARCH_TEXTS * length)
        result = alone.run_alone(
            choose_settings,
            model,
            candidates,
            *arguments,
            common.max_seconds,
            gigabytes=common.gigabytes,
        )
        if result is None:
            raise InputError(
                f"Expected enough memory to choose the settings of {model}. Received: "
                f"gigabytes={common.gigabytes}, search_length={common.search_length}. Start a "
                "study in another --run-dir with more --gigabytes or a shorter --search-length"
            )
        accuracies = result["accuracies"]
        best = candidates[accuracies.index(max(accuracies))]
        settings_of[model] = {"settings": best, "choices": candidates, "accuracies": accuracies}
        write_json(path, settings_of)
        print(f"{model}: {best} ({max(accuracies):.1%} of the validation texts)", flush=True)
    return {model: settings_of[model]["settings"] for model in models}


def start(values: dict[str, Any]) -> None:
    """Runs the study with the options that the user typed."""
    alone.check_platform()
    options = LongTextsOptions(**pop_options(values, LongTextsOptions))
    common = RecallOptions(**values)
    try:
        for length in options.lengths:
            check_length(length, common.step_tokens)
    except ValueError as error:
        raise InputError(str(error)) from error
    start_backend()  # takes seconds, so invalid input is reported first
    from keras_tnattn_studies.recall_training import train_recall

    run = Run(options.run_dir)
    run.start_study(common, {})
    settings = settings_of(options.models, common, run.folder / "settings.json")
    path = run.folder / "cells.csv"
    # One seed after the other, so that an interrupted study has measured every model once.
    wanted = [(m, n, s) for s in options.seeds for n in options.lengths for m in options.models]

    def measure(model: str, length: int, seed: int) -> dict[str, Any]:
        arguments = (model, settings[model], length, seed, common.steps, common.step_tokens)
        result = alone.run_alone(
            train_recall, *arguments, common.max_seconds, gigabytes=common.gigabytes
        )
        cell = {"outcome": TOO_LARGE, **(result or {})}
        if result:
            cell["outcome"] = TRAINED if result["steps"] == common.steps else TIMED_OUT
        score = f", {cell['accuracy']:.1%} after {cell['steps']} steps" if result else ""
        number = wanted.index((model, length, seed)) + 1
        print(
            f"{number} of {len(wanted)}: {model}, {length:,} tokens, seed {seed}: "
            f"{cell['outcome']}{score}",
            flush=True,
        )
        return cell

    def report(cells: Measurements) -> None:
        save_text(run.folder / "table.md", table(cells))
        draw(cells, run.folder / "long_texts.png")

    cells = measure_missing(path, KEYS, COLUMNS, wanted, measure, _place, report, blanks=True)
    print(f"\n{table(cells)}\n")


COMMAND = Command(
    "long-texts",
    "Compare models on long texts of known answers: accuracy, time and memory",
    "Each text asks for the last letter before each of many questions, a few tokens back. tsa: "
    "tensorized spectral attention whose graph is one-sided; tsa_symmetric: with the paper's "
    "symmetric graph; mha: keras.layers.MultiHeadAttention with a causal mask and positions; "
    "window: the same to the 64 tokens before alone, computed in blocks; convolution: a causal one "
    "of nine tokens; gru: a recurrent layer; none: no mixing of tokens. Each training has a "
    "process of its own. Writes settings.json, the settings that were chosen on validation texts; "
    "cells.csv, with a row for each training; table.md; and long_texts.png. A training that needs "
    "more memory than --gigabytes is a result, too; to train it again, delete its row in "
    "cells.csv. The table has "
    "the peak of the memory in training less the memory before, when the model is compiled. Linux "
    "only.",
    {**LongTextsOptions.model_fields, **RecallOptions.model_fields},
    start,
    """\
example:
    keras-tnattn reproduce long-texts --lengths 1024 4096 --models tsa mha --seeds 0 1 2
Run the same command again to continue an interrupted study, or with more lengths, models or seeds.
""",
)
