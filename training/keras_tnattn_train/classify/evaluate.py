"""Measures a trained classifier on labeled texts, beside a linear SVM."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tnattn_train.classify.baseline import SVM, fitted_svm, texts_of
from keras_tnattn_train.data.reading import short_name
from keras_tnattn_train.data.tables import quantity
from keras_tnattn_train.data.texts import load_texts
from keras_tnattn_train.data.texts.labeled import LabeledTexts, split_rows
from keras_tnattn_train.options.apps import Program
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import (
    DATA,
    EITHER,
    Options,
    argument,
    option,
    skip_bad_rows_option,
)
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.tables import table_of
from keras_tnattn_train.system.files import read_object, write_json

if TYPE_CHECKING:
    from keras_tnattn_train.classify.loading import ClassifierRun

LARGEST_CONFUSION = 12  # classes of a table of confusions that is printed
EXAMPLES = """\
examples:
  measure a classifier on its test part, and its compressed model on a table of other texts:
    keras-tnattn evaluate runs/reuters-tsa-0
    keras-tnattn evaluate runs/reuters-tsa-0/compressed --dataset new.csv
"""


class EvaluateOptions(Options):
    """The options of `evaluate` for a classifier."""

    run: str = argument("the folder of a classifier's run, or of its compressed model")
    dataset: str | None = option(
        None,
        DATA,
        "labeled texts: a table, a folder or a name, as for classify (default: the test part of "
        "the data that the run was trained on)",
        given=EITHER,
    )
    data_dir: str | None = option(
        None, DATA, "folder that holds the named data sets, for --dataset", metavar="DIR"
    )
    text_column: str | None = option(
        None, DATA, "column with the texts of --dataset (default: as in the training)"
    )
    label_column: str | None = option(
        None, DATA, "column with the labels of --dataset (default: as in the training)"
    )
    skip_bad_rows: bool = skip_bad_rows_option()

    def check_together(self) -> None:
        for name in ("data_dir", "text_column", "label_column"):
            if self.dataset is None and getattr(self, name) is not None:
                raise ValueError(
                    f"Expected no {name} without a dataset: the run has its own. "
                    f"Received: {name}={getattr(self, name)!r}"
                )


def _evaluate(options: EvaluateOptions) -> None:
    results = evaluate_run(options)
    for note in results["notes"]:
        print(f"note: {note}")
    print(
        f"accuracy: {results['accuracy']:.1%} of {quantity(results['texts'], 'text')}, "
        f"macro F1: {results['macro_f1']:.3f}"
    )
    baseline = results["baseline"]
    if baseline:
        print(
            f"{SVM}: {baseline['accuracy']:.1%}, macro F1: {baseline['macro_f1']:.3f}, fitted to "
            "the run's training part"
        )
    header = ["class", "precision", "recall", "F1", *(["F1 of the SVM"] if baseline else []), ""]
    lines = [[*header[:-1], "texts"]]
    for name, scores in results["classes"].items():
        numbers = [scores["precision"], scores["recall"], scores["f1"]]
        numbers += [baseline["f1"][name]] if baseline else []
        lines.append([name, *(f"{number:.3f}" for number in numbers), f"{scores['texts']:,}"])
    print(f"\n{table_of(lines)}\n")
    if len(results["classes"]) <= LARGEST_CONFUSION:
        names = list(results["classes"])
        rows = zip(names, results["confusion"], strict=True)
        lines = [["label \\ predicted", *names], *([n, *map(str, row)] for n, row in rows)]
        print(f"{table_of(lines)}\n")
    for name in results["files"]:
        print(f"wrote {Path(options.run, name)}")


PROGRAM = Program(
    "evaluate",
    "Classifies the test part of the data that a run was trained on, or other labeled texts, "
    "beside a linear support vector machine of TF-IDF weights, fitted to the run's training part. "
    "Writes evaluation-NAME.json (accuracy, scores of each class, confusions), "
    "confusion_matrix-NAME.png and mistakes-NAME.csv into the run's folder.",
    EXAMPLES,
    EvaluateOptions,
    _evaluate,
)


def evaluate_run(options: EvaluateOptions) -> dict[str, Any]:
    """Classifies labeled texts with a run's model, and writes the scores to the run's folder.

    Returns:
        The content of `evaluation-NAME.json`: `accuracy`, `macro_f1`, the mean F1 of the classes
        that occur, `classes`, the scores of each, `confusion`, the number of texts by label and
        prediction, `baseline`, the same of a linear SVM, and `files`, the files that were written.
        NAME is `test`, or `on-` and the name of the data set. Without the run's own data,
        `baseline` is `None`, and one of the `notes` says why.
    """
    other = None if options.dataset is None else _other_texts(options)
    start_backend()  # takes seconds, so invalid arguments are reported first
    from keras_tnattn_train.classify.loading import ClassifierRun
    from keras_tnattn_train.classify.reports import write_mistakes
    from keras_tnattn_train.runs.plots import confusion_matrix

    run = ClassifierRun(Path(options.run))
    if other:
        name = f"on-{short_name(str(options.dataset))}"
        data, rows, labels, notes = other
        print(f"{options.dataset}: {quantity(len(rows), 'text')}", flush=True)
        if data.fingerprint() == run.fingerprint:
            notes.append("most of these texts were trained on; leave out the table for the others")
    else:
        name = "test"
        data = _own_texts(run)
        rows = split_rows(data.labels, run.config.test_fraction, run.config.seed)[1]
        labels = data.labels[rows]
        notes = list[str]()
    probabilities = run.probabilities(data.texts, rows)
    predictions = probabilities.argmax(axis=-1)
    measured = _scores(labels, predictions, run.class_names)
    if other:
        print("for the baseline, the texts that the run was trained on:", flush=True)
    baseline, problem = _baseline(run, data, rows)
    results = {
        "run": options.run,
        "dataset": options.dataset,
        "texts": len(rows),
        "notes": [*notes, *([problem] if problem else [])],
        **measured,
        "baseline": None,
        "files": [
            f"evaluation-{name}.json",
            f"confusion_matrix-{name}.png",
            f"mistakes-{name}.csv",
        ],
    }
    if baseline is not None:
        scores = _scores(labels, baseline, run.class_names)
        results["baseline"] = {name: scores[name] for name in ("accuracy", "macro_f1")}
        results["baseline"]["f1"] = {name: x["f1"] for name, x in scores["classes"].items()}
    report, picture, mistakes = (Path(options.run, file) for file in results["files"])
    write_mistakes(data.texts, rows, labels, probabilities, run.class_names, mistakes)
    confusion_matrix(labels, predictions, run.class_names, picture)
    write_json(report, results)
    return results


def _other_texts(
    options: EvaluateOptions,
) -> tuple[LabeledTexts, np.ndarray, np.ndarray, list[str]]:
    """Reads other texts than those of the run, by default from the columns of its training."""
    hint = "Choose the folder of a run"
    columns = {"text_column": options.text_column, "label_column": options.label_column}
    if Path(str(options.dataset)).is_file():
        config = read_object(Path(options.run, "config.json"), hint)
        columns = {name: column or config.get(name) for name, column in columns.items()}
    data = load_texts(
        str(options.dataset), options.data_dir, **columns, skip_bad_rows=options.skip_bad_rows
    )
    class_names = read_object(Path(options.run, "data.json"), hint).get("class_names")
    if not isinstance(class_names, list):
        raise InputError(f"Expected class_names in {Path(options.run, 'data.json')}. {hint}")
    number = {name: i for i, name in enumerate(class_names)}
    numbers = np.array([number.get(name, -1) for name in data.class_names])[data.labels]
    rows = np.flatnonzero(numbers >= 0)
    notes = list(data.notes)
    if len(rows) < len(numbers):
        counts = np.bincount(data.labels)
        others = [i for i, name in enumerate(data.class_names) if name not in number]
        listed = ", ".join(f"{data.class_names[i]!r} ({counts[i]:,})" for i in others[:10])
        listed += ", ..." if len(others) > 10 else ""
        if not options.skip_bad_rows or not len(rows):
            raise InputError(
                f"Expected labels of the run's classes, {', '.join(class_names)}. Received: "
                f"{options.dataset} with {listed}. Correct them or, if this is another column, "
                "name that of the labels with --label-column; --skip-bad-rows leaves out such rows"
            )
        notes.append(f"texts of unknown classes left out: {listed}")
    return data, rows, numbers[rows], notes


def _own_texts(run: "ClassifierRun") -> LabeledTexts:
    try:
        return run.data
    except InputError as error:
        raise InputError(f"{error}. Or measure on other labeled texts, with --dataset") from error


def _baseline(
    run: "ClassifierRun", data: LabeledTexts, rows: np.ndarray
) -> tuple[np.ndarray | None, str | None]:
    """Returns what an SVM, fitted to the run's training part, predicts; or why it does not."""
    try:
        own = run.data
        train = split_rows(own.labels, run.config.test_fraction, run.config.seed)[0]
        return fitted_svm(run.config, own, train).predict(list(texts_of(data, rows))), None
    except InputError as error:
        return None, f"no baseline: {error}"


def _scores(
    labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str]
) -> dict[str, Any]:
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    numbers = range(len(class_names))
    columns = precision_recall_fscore_support(labels, predictions, labels=numbers, zero_division=0)
    occur = np.union1d(labels, predictions)
    return {
        "accuracy": float(np.mean(labels == predictions)),
        "macro_f1": float(columns[2][occur].mean()),
        "classes": {
            name: {"precision": float(p), "recall": float(r), "f1": float(f), "texts": int(n)}
            for name, p, r, f, n in zip(class_names, *columns, strict=True)
        },
        "confusion": confusion_matrix(labels, predictions, labels=numbers).tolist(),
    }
