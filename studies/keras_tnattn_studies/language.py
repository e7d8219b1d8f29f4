"""The study `language`: attentions in language models of the same size, and the fixed metric."""

from pathlib import Path
from typing import Any

from keras_tnattn_studies import alone
from keras_tnattn_studies.language_config import MODELS, NGRAMS, LanguageTraining
from keras_tnattn_studies.measuring import Columns, Measurements, measure_missing
from keras_tnattn_train.commands import Command, pop_options
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import RUN, Options, Seeds, option
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.system.files import save_text

ALL = (*MODELS, *NGRAMS)
GIGABYTES = 16.0  # that a training may allocate
_SHOWN = {
    "bits_per_byte": ("bits per byte", ".3f"),
    "live_bits_per_byte": ("with the live metric", ".3f"),
    "identity_bits_per_byte": ("with G = I", ".3f"),
    "metric_spread": ("spread", ".3f"),
    "window_bits": ("bits per token, windows", ".3f"),
    "prefix_bits": ("bits per token, prefixes", ".3f"),
    "order_parameter": ("order parameter", ".3f"),
    "tokens_per_second": ("tokens/s, training", ",.0f"),
    "milliseconds_per_token": ("ms/token, generation", ".2f"),
    "mebibytes": ("MiB, training", ",.0f"),
    "learning_rate": ("learning rate", ".4g"),
}
# The columns of results.csv, with their types.
KEYS: Columns = {"model": str, "seed": int}
MEASURED: Columns = {"weights": int, **dict.fromkeys(_SHOWN, float)}


class LanguageStudyOptions(Options):
    """The options that say what to train."""

    models: tuple[str, ...] = option(ALL, RUN, "models to compare", choices=ALL)
    seeds: Seeds = option((0, 1, 2), RUN, "seeds; every model is trained once for each seed")
    run_dir: str = option("runs/language-study", RUN, "folder of the runs", metavar="DIR")


def table(rows: Measurements) -> str:
    """Returns a table with a line for each model: means over its seeds, and deviations."""
    from keras_tnattn_train.runs.tables import mean_and_deviation, table_of

    lines: list[tuple[str, ...]] = [
        ("model", "weights", *(title for title, _ in _SHOWN.values()), "seeds")
    ]
    for model in ALL:
        of_model = {seed: row for (name, seed), row in rows.items() if name == model}
        if not of_model:
            continue
        cells = []
        for column, (_, form) in _SHOWN.items():
            values = [row[column] for row in of_model.values() if column in row]
            cells.append(mean_and_deviation(values, form) if values else "-")
        weights = next(iter(of_model.values())).get("weights")
        shown = "-" if weights is None else f"{weights:,}"
        lines.append((model, shown, *cells, " ".join(map(str, sorted(of_model)))))
    return table_of(lines)


def _place(key: tuple[str, int]) -> tuple[int, int]:
    return ALL.index(key[0]), key[1]


def start(values: dict[str, Any]) -> None:
    """Runs the study with the options that the user typed."""
    alone.check_platform()
    options = LanguageStudyOptions(**pop_options(values, LanguageStudyOptions))
    common = LanguageTraining(**values)
    folder = Path(options.run_dir)
    Run(folder).start_study(common, {})
    # One seed after the other, so that an interrupted study has measured every model once.
    wanted = [(model, seed) for seed in options.seeds for model in options.models]

    def measure(model: str, seed: int) -> dict[str, Any]:
        from keras_tnattn_studies.language_training import (
            count_ngrams,
            train_and_measure,
            training_costs,
        )

        if model in NGRAMS:
            return {"bits_per_byte": count_ngrams(common, seed)[NGRAMS.index(model)]}
        results: dict[str, Any] = {}
        for function in (train_and_measure, training_costs):
            part = alone.run_alone(function, common, model, seed, str(folder), gigabytes=GIGABYTES)
            if part is None:
                raise InputError(f"{model} needs more than {GIGABYTES} GB. Choose other --models")
            results |= part
        print(f"{model}, seed {seed}: {results['bits_per_byte']:.3f} bits per byte", flush=True)
        return results

    def report(rows: Measurements) -> None:
        save_text(folder / "table.md", table(rows))

    path = folder / "results.csv"
    rows = measure_missing(path, KEYS, MEASURED, wanted, measure, _place, report, blanks=True)
    print(f"\n{table(rows)}\n")


COMMAND = Command(
    "language",
    "Compare attentions in language models of the same size",
    "Four layers of bytes, 1.04 million weights. plga: power law attention as published, whose "
    "metric is frozen after training, in all layers; plga-frozen: the same after --frozen-after "
    "epochs, and training goes on, also of the metric; plga-causal: the metric of each token is "
    "that of the tokens up to it, which takes twenty times as long; lstm: two layers of "
    "keras.layers.LSTM; 0-gram to 6-gram: interpolated counts, after so many previous bytes, of "
    "what the models are trained on. Bits per byte are those of the test part; of plga with the "
    "frozen metric, and beside it with the live one, "
    "which reads ahead, and with the identity. The spread is the largest of a head on validation "
    "rows at the end of training; metrics.csv of the runs has it for each layer and epoch. The "
    "order parameter is the root mean square over all heads. Bits per token of 16 rows of the "
    "test part, as whole windows and as prefixes that grow by a token, say what the live metric "
    "reads ahead. "
    "The times are those of the processor, of one text in generation; the memory is that of some "
    "steps of training, compilation included. Writes results.csv, with a row for each finished "
    "training, and table.md. Linux only.",
    {**LanguageStudyOptions.model_fields, **LanguageTraining.model_fields},
    start,
    """\
example, the figures of docs/studies/language.md:
    keras-tnattn reproduce language --corpus gcide.txt
Run the same command again to continue an interrupted study, or with more models or seeds.
""",
)
