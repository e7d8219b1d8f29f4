"""The study `compare`: several attentions over several seeds, in one table."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from keras_tnattn_studies.many import finish_all
from keras_tnattn_train.classify.baseline import (
    MOST_FREQUENT,
    SVM,
    linear_svms,
    most_frequent_class,
)
from keras_tnattn_train.classify.config import TABLE_DIMS, ClassifyConfig, recipe_option
from keras_tnattn_train.classify.texts import read_texts
from keras_tnattn_train.commands import Command, pop_options
from keras_tnattn_train.data.texts.labeled import LabeledTexts
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import RUN, Options, Seeds, option
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.processes.workers import replaced_process
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.system.files import save_text

HEADER = (
    "attention",
    "dim",
    "attention weights",
    "embedding weights",
    "all weights",
    "kB, 4 bytes a weight",
    "train %",
    "test %",
    "ms/step",
)


# Options that the table varies, options that not all of its layers have, and one with another
# default.
OMISSIONS = {"attention", "embedding_dim", "seed", "name", "export", "saved_models", "recipe"}
OMISSIONS |= {"time_graph", "window", "exponent"}
OMISSIONS |= {"tt_ranks", "damping", "filter_order", "residual_units", "residual_dim"}


class CompareOptions(Options):
    """The options that only `compare` has."""

    attentions: tuple[str, ...] = option(
        ("tsa", "dpa", "ada"), RUN, "attentions to compare", choices=tuple(TABLE_DIMS)
    )
    seeds: Seeds = option((0, 1, 2), RUN, "seeds; every model is trained once for each seed")
    run_dir: str | None = option(
        None, RUN, "folder of the runs (default: runs/compare-DATASET)", metavar="DIR"
    )
    recipe: str = recipe_option("paper")


def table_configs(
    options: dict[str, Any], attentions: Iterable[str], seeds: Iterable[int]
) -> list[ClassifyConfig]:
    """Returns the configs of a table: every attention, with its size, and every seed."""
    seeds = list(seeds)
    return [
        ClassifyConfig(**options, attention=name, embedding_dim=TABLE_DIMS[name], seed=seed)
        for name in attentions
        for seed in seeds
    ]


def train_all(
    configs: Sequence[ClassifyConfig], folder: Path, data: LabeledTexts, call: Callable[..., Any]
) -> list[dict[str, Any]]:
    """Trains each config in `folder/NAME/` unless it is finished; returns the results of all."""
    start_backend()  # takes seconds, so it comes after the checks
    from keras_tnattn_train.classify.train import train_classifier

    return finish_all(
        configs,
        folder,
        lambda config, run: call(train_classifier, config, run, data),
        {"fingerprint": data.fingerprint()},
    )


def table(
    configs: Sequence[ClassifyConfig],
    results: Sequence[dict[str, Any]],
    baselines: dict[str, dict[int, dict[str, Any]]],
) -> str:
    """Returns a table with means and standard deviations over the seeds for each attention."""
    from keras_tnattn_train.runs.tables import attention_title, spread, table_of

    lines: list[tuple[str, ...]] = [HEADER]
    for name in dict.fromkeys(config.attention for config in configs):
        runs = [r for c, r in zip(configs, results, strict=True) if c.attention == name]
        counts = runs[0]["parameters"]
        lines.append(
            (
                attention_title(name),
                str(TABLE_DIMS[name]),
                *(f"{counts[part]:,}" for part in ("attention", "embedding", "all")),
                _kilobytes(counts["all"]),
                spread([100 * r["train_accuracy"] for r in runs]),
                spread([100 * r["test_accuracy"] for r in runs]),
                spread([1000 * r["seconds_per_step"] for r in runs]),
            )
        )
    for name, by_seed in baselines.items():
        fits = by_seed.values()
        weights = round(fmean(r["parameters"] for r in fits))
        parts = ("train", "test")
        accuracies = (spread([100 * r[f"{part}_accuracy"] for r in fits]) for part in parts)
        numbers = (f"{weights:,}", _kilobytes(weights)) if weights else ("-", "-")
        lines.append((name, "-", "-", "-", *numbers, *accuracies, "-"))
    return table_of(lines)


def _kilobytes(weights: int) -> str:
    return f"{4 * weights / 1000:,.0f}"


def compare(
    configs: Sequence[ClassifyConfig], folder: Path, data: LabeledTexts
) -> list[dict[str, Any]]:
    """Trains each config, then prints the table and writes it to `folder/table.md`."""
    print(f"fitting the baseline, {SVM}", flush=True)
    baselines = {}
    try:
        baselines[SVM] = linear_svms(configs, data)
    except InputError as error:  # our models may learn from texts in which it finds no words
        print(error, flush=True)
    baselines[MOST_FREQUENT] = most_frequent_class(configs, data)
    with replaced_process(len(configs)) as call:
        results = train_all(configs, folder, data, call)
    text = table(configs, results, baselines)
    with Run(folder).waited_for():
        save_text(folder / "table.md", text)
    print(f"\n{text}\n")
    return results


def start(values: dict[str, Any]) -> None:
    """Runs `compare` with the options that the user typed."""
    options = CompareOptions(**pop_options(values, CompareOptions))
    values["recipe"] = options.recipe
    common = ClassifyConfig(**values)
    configs = table_configs(values, options.attentions, options.seeds)
    compare(configs, Path(options.run_dir or f"runs/compare-{common.source}"), read_texts(common))


COMMAND = Command(
    "compare",
    "Train several attentions with several seeds, and print one table",
    "The table has the parameters, accuracies and times of each attention. The tensorized ones "
    "have 64 embedding dimensions and the others 6, so that each has about 300 parameters; without "
    "an attention there are 64. The last lines are those of TF-IDF with a linear support vector "
    "machine on the same splits, and of always answering with the most frequent class. "
    "Finished runs are not trained again.",
    {
        **CompareOptions.model_fields,
        **{n: f for n, f in ClassifyConfig.model_fields.items() if n not in OMISSIONS},
    },
    start,
    """\
example:
    keras-tnattn reproduce compare --dataset reuters --attentions tsa dpa ada --seeds 0 1 2
Run the same command again to continue an interrupted comparison.
""",
    first=(
        *("attentions", "seeds", "run_dir", "dataset", "data_dir", "text_column"),
        *("label_column", "recipe", "epochs", "early_stopping"),
    ),
)
