"""The study `tensorized`: the comparison of the tensorized attention papers, and fair ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_tnattn_studies.compare import train_all
from keras_tnattn_studies.measuring import (
    Columns,
    Measurements,
    read_measurements,
    write_measurements,
)
from keras_tnattn_train.classify.baseline import (
    BASELINES,
    MOST_FREQUENT,
    SVM,
    linear_svms,
    most_frequent_class,
)
from keras_tnattn_train.classify.config import ATTENTIONS, TABLE_DIMS, ClassifyConfig
from keras_tnattn_train.classify.texts import read_texts
from keras_tnattn_train.commands import Command
from keras_tnattn_train.options.options import DATA, RUN, Options, Seeds, option
from keras_tnattn_train.processes.workers import replaced_process
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.system.files import save_text

DATASETS = ("reuters", "newsgroups", "spooky_authors", "drug_review", "ohsumed")
# Other forms of the same texts, which the study takes if they are named.
_FORMS = ("newsgroups_raw", "drug_review_two")
_NAMES = (*ATTENTIONS, *BASELINES)  # in the order of the tables
# What the rows of a table have in common. The papers' attentions differ in their dimensions, so
# that their attention weights are about equal in number; elsewhere all have the same.
# As in the papers, 40 % of the rows are for the test, and the first 200 words of a text are read.
_SHARED = {"test_fraction": 0.4, "max_words": 200}
_ALL_ROWS = {"recipe": "tuned", "validation_fraction": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {"recipe": "paper"},
    "stopped": {"recipe": "paper", "epochs": 50, "early_stopping": 5, "monitor": "accuracy"},
    "tuned": {**_ALL_ROWS, "initial_weights": "random"},
    "svm_start": {**_ALL_ROWS, "initial_weights": "svm"},
    # The same dropout with and without an attention.
    "small": {
        **_ALL_ROWS,
        "embedding": "tensor_train",
        "word_dropout": 0.5,
        "dropout": 0.1,
    },
}
# The columns of results.csv, with their types.
KEYS: Columns = {"setting": str, "dataset": str, "attention": str, "dim": int, "seed": int}
MEASUREMENTS: Columns = {
    **dict.fromkeys(("attention_weights", "weights"), int),
    **dict.fromkeys(("train_accuracy", "test_accuracy", "seconds"), float),
}
SETTINGS = {name: _SHARED | options for name, options in SETTINGS.items()}
# Test rows to a training row.
TEST_ROW_RATIO = _SHARED["test_fraction"] / (1 - _SHARED["test_fraction"])


class TensorizedOptions(Options):
    """The options of the study."""

    data_dir: str | None = option(
        None, DATA, "folder that holds the files of the data sets", metavar="DIR"
    )
    datasets: tuple[str, ...] = option(DATASETS, DATA, "data sets", choices=(*DATASETS, *_FORMS))
    settings: tuple[str, ...] = option(
        tuple(SETTINGS),
        RUN,
        "paper: the papers' layers, 6 dimensions for dpa and ada, 64 for all others; stopped: "
        "the same with one number of dimensions for all, and the best of up to 50 epochs of each "
        "model; tuned: the tuned recipe with random initial weights, and one number of dimensions "
        "for all; svm_start: the tuned recipe, whose weights start from a linear support vector "
        "machine; small: as tuned, with tensor-train embeddings, so that all weights are few, and "
        "with the dropout of no attention",
        choices=tuple(SETTINGS),
    )
    attentions: tuple[str, ...] = option(
        tuple(ATTENTIONS), RUN, "attentions to compare", choices=tuple(ATTENTIONS)
    )
    embedding_dims: tuple[int, ...] = option(
        (), RUN, "embedding dimensions (default: those of the setting)"
    )
    seeds: Seeds = option((0, 1, 2, 3, 4), RUN, "seeds of the split and of the weights")
    run_dir: str = option("runs/tensorized", RUN, "folder of the runs and tables", metavar="DIR")


def configs_of(options: TensorizedOptions, setting: str, dataset: str) -> list[ClassifyConfig]:
    """Returns the configs of one setting on one data set: attentions, dimensions and seeds."""
    configs = []
    for attention in options.attentions:
        default_dim = TABLE_DIMS.get(attention, 64) if setting == "paper" else 64
        for dim in options.embedding_dims or (default_dim,):
            for seed in options.seeds:
                config = ClassifyConfig(
                    dataset=dataset,
                    data_dir=options.data_dir,
                    attention=attention,
                    embedding_dim=dim,
                    seed=seed,
                    name=f"{setting}-{dataset}-{attention}-{dim}-{seed}",
                    **SETTINGS[setting],
                )
                configs.append(config)
    return configs


def finished_runs(folder: Path) -> Measurements:
    """Returns the measurements of the finished runs in the folder of a study.

    Runs of an earlier version with other options of their setting are left out.
    """
    measurements: Measurements = {}
    paths = [(name, path) for name in SETTINGS for path in folder.glob(f"{name}-*/results.json")]
    for setting, path in paths:
        run = Run(path.parent)
        config, results = run.read_config(ClassifyConfig, {}), run.results or {}
        names = ("dataset", "data_dir", "attention", "embedding_dim", "seed", "name")
        varied = {name: getattr(config, name) for name in names}
        if config != ClassifyConfig(**varied, **SETTINGS[setting]):
            continue
        key = (setting, config.dataset, config.attention, config.embedding_dim, config.seed)
        counts = results["parameters"]
        measurements[key] = {
            "attention_weights": counts["attention"],
            "weights": counts["all"],
            **{name: results[name] for name in ("train_accuracy", "test_accuracy", "seconds")},
        }
    return measurements


def baseline_rows(
    setting: str, dataset: str, baselines: dict[str, dict[int, dict[str, Any]]]
) -> Measurements:
    """Returns the measurements of the baselines, one for each seed."""
    return {
        (setting, dataset, name, 0, seed): {
            "attention_weights": 0,
            "weights": results["parameters"],
            **{part: results[part] for part in ("train_accuracy", "test_accuracy", "seconds")},
        }
        for name, by_seed in baselines.items()
        for seed, results in by_seed.items()
    }


def _place(key: tuple[str, str, str, int, int]) -> tuple[int, ...]:
    """Returns a row's place in the tables: the order of the options, the baselines last."""
    setting, dataset, attention, dim, seed = key
    places = (
        list(SETTINGS).index(setting),
        (*DATASETS, *_FORMS).index(dataset),
        _NAMES.index(attention),
    )
    return (*places, dim, seed)


def _title(name: str) -> str:
    from keras_tnattn_train.runs.tables import attention_title

    return name if name in BASELINES else attention_title(name)


def accuracy_table(rows: Sequence[dict[str, Any]], part: str) -> str:
    """Returns accuracies in percent on the part `test` or `train`: attentions by data sets."""
    from keras_tnattn_train.runs.tables import spread, table_of

    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    lines: list[tuple[str, ...]] = [(f"{part} %", "dim", "weights (largest)", *datasets)]
    models = {(row["attention"], row["dim"]) for row in rows}
    for name, dim in sorted(models, key=lambda model: (_NAMES.index(model[0]), model[1])):
        group = [row for row in rows if (row["attention"], row["dim"]) == (name, dim)]
        cells = []
        for dataset in datasets:
            accuracies = [100 * r[f"{part}_accuracy"] for r in group if r["dataset"] == dataset]
            cells.append(spread(accuracies) if accuracies else "-")
        heaviest = max(row["weights"] for row in group)
        sizes = (f"{size:,}" if size else "-" for size in (dim, heaviest))
        lines.append((_title(name), *sizes, *cells))
    return table_of(lines)


def differences(rows: Sequence[dict[str, Any]], one: str, other: str) -> dict[str, str]:
    """Returns by how many points `one` is better than `other` on the same splits.

    Returns:
        For each data set the mean difference over the seeds and, if there are several, its 95 %
        confidence interval, which allows for splits of the same texts.
    """
    from keras_tnattn_train.runs.tables import interval

    gain_of = {}
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        accuracies: dict[str, dict[int, float]] = {one: {}, other: {}}
        for row in rows:
            if row["dataset"] == dataset and row["attention"] in accuracies:
                accuracies[row["attention"]][row["seed"]] = 100 * row["test_accuracy"]
        seeds = sorted(accuracies[one].keys() & accuracies[other].keys())
        if not seeds:
            continue
        gains = [accuracies[one][seed] - accuracies[other][seed] for seed in seeds]
        gain_of[dataset] = interval(gains, "+.1f", TEST_ROW_RATIO)
    return gain_of


def difference_table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the differences from no attention, from the SVM, and of TSA from the others."""
    from keras_tnattn_train.runs.tables import table_of

    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    names = list(dict.fromkeys(row["attention"] for row in rows))
    lines: list[tuple[str, ...]] = [("difference", *datasets)]
    trained = [name for name in names if name not in BASELINES]
    attentions = [name for name in trained if name != "none"]
    pairs = [(name, "none") for name in attentions if "none" in names]
    pairs += [(name, SVM) for name in trained if SVM in names]
    pairs += [("tsa", other) for other in attentions if other != "tsa" and "tsa" in attentions]
    for one, other in pairs:
        gain_of = differences(rows, one, other)
        cells = (gain_of.get(dataset, "-") for dataset in datasets)
        lines.append((f"{_title(one)} - {_title(other)}", *cells))
    return table_of(lines)


def study(options: TensorizedOptions) -> None:
    """Trains what is not trained yet, and writes tables and pictures after each data set."""
    folder = Path(options.run_dir)
    table = folder / "results.csv"
    read_measurements(table, KEYS, MEASUREMENTS)  # reports a damaged table first
    configs = {
        dataset: {setting: configs_of(options, setting, dataset) for setting in options.settings}
        for dataset in options.datasets
    }
    for by_setting in configs.values():
        read_texts(by_setting[options.settings[0]][0])  # reports invalid data first
    trainings = sum(len(group) for by_setting in configs.values() for group in by_setting.values())
    with replaced_process(trainings) as call:
        for dataset, by_setting in configs.items():
            group = by_setting[options.settings[0]]
            data = read_texts(group[0])
            print(f"fitting the baseline, {SVM}", flush=True)
            baselines = {
                SVM: linear_svms(group, data),
                MOST_FREQUENT: most_frequent_class(group, data),
            }
            fits: Measurements = {}
            for setting, group in by_setting.items():
                train_all(group, folder, data, call)
                fits |= baseline_rows(setting, dataset, baselines)
            with Run(folder).waited_for():
                # Runs are read from their folders; only the table has the scores of the baselines.
                before = read_measurements(table, KEYS, MEASUREMENTS)
                of_baselines = {key: row for key, row in before.items() if key[2] in BASELINES}
                report(finished_runs(folder) | of_baselines | fits, folder)


def report(measurements: Measurements, folder: Path) -> None:
    """Writes `results.csv`, `cost.png`, and for each setting a table and perhaps a picture."""
    from keras_tnattn_studies import plots

    ordered = {key: measurements[key] for key in sorted(measurements, key=_place)}
    write_measurements(folder / "results.csv", ordered, KEYS, MEASUREMENTS)
    rows = [dict(zip(KEYS, key, strict=True)) | row for key, row in ordered.items()]
    plots.by_cost([row for row in rows if row["attention"] != MOST_FREQUENT], folder / "cost.png")
    for setting in dict.fromkeys(row["setting"] for row in rows):
        group = [row for row in rows if row["setting"] == setting]
        tables = [accuracy_table(group, part) for part in ("test", "train")]
        if len({(row["attention"], row["dim"]) for row in group}) == len(
            {row["attention"] for row in group}
        ):
            tables.append(difference_table(group))
        else:
            plots.by_dimension(group, folder / f"{setting}-dimensions.png")
        text = "\n\n".join(tables)
        save_text(folder / f"{setting}.md", text)
        print(f"\n{setting}:\n{text}\n", flush=True)


def start(values: dict[str, Any]) -> None:
    """Runs the study with the options that the user typed."""
    options = TensorizedOptions(**values)
    study(options)
    print(f"tables and pictures: {options.run_dir}")


COMMAND = Command(
    "tensorized",
    "Compare attentions on the five data sets of the tensorized attention papers",
    "Ohsumed stands in for the papers' Research Articles. The tables have the mean and standard "
    "deviation of the test and of the training accuracy over the seeds, and the differences of "
    "each attention from no attention, from TF-IDF with a linear support vector machine, and from "
    "tsa on the same splits, with their 95 % confidence intervals. The tables are those of all "
    "runs that are finished in DIR; these are not trained again.",
    dict(TensorizedOptions.model_fields),
    start,
    """\
examples:
  a part of the tables; all of them take, by our estimate, days on two cores:
    keras-tnattn reproduce tensorized --data-dir DIR --settings svm_start --seeds 0 1 2 \\
        --attentions tsa none
  weights and accuracies against the embedding dimension, as the papers draw them:
    keras-tnattn reproduce tensorized --data-dir DIR --settings paper \\
        --attentions tsa tga dpa ada --embedding-dims 4 8 16 32 64 128 --run-dir runs/dimensions
Run the same command again to continue an interrupted study. Several processes
with the same --run-dir share the runs; the measured seconds are then longer.
""",
)
