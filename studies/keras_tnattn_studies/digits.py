"""The study `digits`: classifiers of scikit-learn's digits on several splits."""

from pathlib import Path
from typing import Any

from keras_tnattn_studies.digits_data import load_images
from keras_tnattn_studies.measuring import Columns, Measurements, measure_missing
from keras_tnattn_train.commands import Command
from keras_tnattn_train.options.options import RUN, Options, Seeds, option
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.system.files import save_text

CLASSIFIERS = ("tn-rows", "tn-patches", "svm", "logistic-regression", "cnn")
# The columns of splits.csv, with their types.
KEYS: Columns = {"classifier": str, "seed": int}
MEASUREMENTS: Columns = {
    "weights": int,
    **dict.fromkeys(("train_accuracy", "test_accuracy", "seconds"), float),
}


class DigitsStudyOptions(Options):
    """The options of the study."""

    classifiers: tuple[str, ...] = option(
        CLASSIFIERS, RUN, "classifiers to compare", choices=CLASSIFIERS
    )
    seeds: Seeds = option(tuple(range(10)), RUN, "seeds of the splits and of the initial weights")
    run_dir: str = option("runs/study-digits", RUN, "folder of the study", metavar="DIR")


def table(rows: Measurements, shared: float) -> str:
    """Returns a table with a line for each classifier: means and 95 % confidence intervals."""
    from keras_tnattn_studies.paired_splits import paired_table

    return paired_table(rows, CLASSIFIERS, shared)


def _place(key: tuple[str, int]) -> tuple[int, int]:
    return CLASSIFIERS.index(key[0]), key[1]


def start(values: dict[str, Any]) -> None:
    """Runs the study with the options that the user typed."""
    options = DigitsStudyOptions(**values)
    folder = Path(options.run_dir)
    start_backend()  # takes seconds, so invalid input is reported first
    from keras_tnattn_studies.digits_classifiers import CLASSIFIERS as FUNCTIONS

    def measure(classifier: str, seed: int) -> dict[str, Any]:
        results = FUNCTIONS[classifier](load_images(seed), seed)
        print(f"{classifier}, split {seed}: {results['test_accuracy']:.2%}", flush=True)
        return results

    wanted = [(classifier, seed) for seed in options.seeds for classifier in options.classifiers]
    rows = measure_missing(folder / "splits.csv", KEYS, MEASUREMENTS, wanted, measure, _place)
    data = load_images(options.seeds[0])
    text = table(rows, len(data.test_labels) / len(data.labels))
    save_text(folder / "table.md", text)
    print(f"\n{text}\n")


COMMAND = Command(
    "digits",
    "Compare classifiers of scikit-learn's digits on several splits",
    "Tensor networks of rows and of patches of pixels; a support vector machine with an RBF kernel "
    "and a logistic regression, whose options cross-validation chooses in each training part; a "
    "small convolutional network. Writes splits.csv, with a row for each finished classifier and "
    "split, and table.md, with means and 95 % confidence intervals. A classifier and split in "
    "splits.csv is not trained again, so that the command can add splits to a finished table.",
    DigitsStudyOptions.model_fields,
    start,
    """\
example:
    keras-tnattn reproduce digits --classifiers tn-rows svm --seeds 0 1 2
""",
)
