"""The study `power-law-data`: power law graph attention on data that are not texts."""

from pathlib import Path
from typing import Any

from keras_tnattn_studies.measuring import Columns, Measurements, measure_missing
from keras_tnattn_train.commands import Command
from keras_tnattn_train.data.graphs import load_graph
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import DATA, RUN, Options, Seeds, option
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.processes.workers import replaced_process
from keras_tnattn_train.system.files import save_text

NETWORKS = ("plga", "plga-epsilon", "sdpa", "none")
CLASSIFIERS = (*NETWORKS, "logistic-regression", "svm", "gradient-boosting")
# The classifiers of each data set.
TABLES = {"breast_cancer": CLASSIFIERS, "wine": CLASSIFIERS}
GRAPHS = {"cora": (*NETWORKS, "logistic-regression")}
DATASETS = {**TABLES, **GRAPHS}
# The columns of results.csv, with their types.
KEYS: Columns = {"dataset": str, "classifier": str, "seed": int}
MEASUREMENTS: Columns = {
    "weights": int,
    **dict.fromkeys(("train_accuracy", "test_accuracy", "seconds"), float),
}


class PowerLawDataOptions(Options):
    """The options of the study."""

    data_dir: str | None = option(
        None, DATA, "folder that holds the folder cora of the graph", metavar="DIR"
    )
    datasets: tuple[str, ...] = option(
        tuple(TABLES), RUN, "data sets; cora needs --data-dir", choices=tuple(DATASETS)
    )
    classifiers: tuple[str, ...] = option(
        CLASSIFIERS, RUN, "classifiers to compare, where they apply", choices=CLASSIFIERS
    )
    seeds: Seeds = option(
        tuple(range(10)),
        RUN,
        "seeds of the splits and of the initial weights; the split of cora is fixed",
    )
    run_dir: str = option("runs/study-power-law-data", RUN, "folder of the study", metavar="DIR")

    def check_together(self) -> None:
        graphs = [name for name in self.datasets if name in GRAPHS]
        if graphs and self.data_dir is None:
            raise InputError(
                f"Expected the folder of {graphs[0]}. Received: datasets={' '.join(self.datasets)} "
                "without data_dir. Name it with --data-dir, or leave the graph out"
            )


def tables(rows: Measurements, shared: float) -> str:
    """Returns a table for each data set, under its name."""
    from keras_tnattn_studies.paired_splits import paired_table

    texts = []
    for dataset, classifiers in DATASETS.items():
        of_dataset = {
            (name, seed): row for (source, name, seed), row in rows.items() if source == dataset
        }
        if of_dataset:
            # A graph has one split, so that only the initial weights vary.
            options = (0.0, "seeds") if dataset in GRAPHS else (shared, "splits")
            texts.append(f"{dataset}\n\n{paired_table(of_dataset, classifiers, *options)}")
    return "\n\n".join(texts)


def _place(key: tuple[str, str, int]) -> tuple[int, int, int]:
    dataset, classifier, seed = key
    return list(DATASETS).index(dataset), CLASSIFIERS.index(classifier), seed


def start(values: dict[str, Any]) -> None:
    """Runs the study with the options that the user typed."""
    options = PowerLawDataOptions(**values)
    wanted = [
        (dataset, classifier, seed)
        for dataset in options.datasets
        for seed in options.seeds
        for classifier in options.classifiers
        if classifier in DATASETS[dataset]
    ]
    for dataset in options.datasets:
        if dataset in GRAPHS:
            load_graph(dataset, options.data_dir)  # an error is reported before the trainings
    folder = Path(options.run_dir)
    start_backend()  # takes seconds, so invalid input is reported first
    from keras_tnattn_studies.power_law_graph import measure_graph
    from keras_tnattn_studies.power_law_tables import TEST_FRACTION, measure_table

    shared = TEST_FRACTION / (1 - TEST_FRACTION)

    def report(rows: Measurements) -> None:
        save_text(folder / "table.md", tables(rows, shared))

    with replaced_process(sum(dataset in GRAPHS for dataset, *_ in wanted)) as call:

        def measure(dataset: str, classifier: str, seed: int) -> dict[str, Any]:
            if dataset in GRAPHS:
                results = call(measure_graph, dataset, options.data_dir, classifier, seed)
            else:
                results = measure_table(dataset, classifier, seed)
            print(
                f"{dataset}, {classifier}, seed {seed}: {results['test_accuracy']:.2%}", flush=True
            )
            return results

        rows = measure_missing(
            folder / "results.csv", KEYS, MEASUREMENTS, wanted, measure, _place, report
        )
    print(f"\n{tables(rows, shared)}\n")


COMMAND = Command(
    "power-law-data",
    "Compare power law graph attention with others on tables of numbers and a graph",
    "Networks of power law graph attention (plga: as published; plga-epsilon: with epsilon=0.01), "
    "of dot-product attention (sdpa) and without attention, beside classifiers of scikit-learn "
    "with their default options. Nothing is tuned. Writes results.csv, with a row for each "
    "finished classifier and seed, and table.md, with means and 95 % confidence intervals. What is "
    "in results.csv is not trained again, so that the command can add seeds to a finished table.",
    PowerLawDataOptions.model_fields,
    start,
    """\
example:
    keras-tnattn reproduce power-law-data --datasets wine --seeds 0 1 2
""",
)
