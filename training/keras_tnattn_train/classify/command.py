"""The command `classify`."""

from keras_tnattn_train.classify import evaluate, explain
from keras_tnattn_train.classify.baseline import SVM, linear_svms
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.classify.texts import read_texts
from keras_tnattn_train.commands import loader, training_command
from keras_tnattn_train.data.texts.labeled import LabeledTexts
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.run import Run


def baseline(config: ClassifyConfig, data: LabeledTexts) -> str:
    """Returns what a linear SVM reaches on the same parts, to compare with."""
    try:
        svm = linear_svms([config], data)[config.seed]
    except InputError as error:
        return str(error)
    return (
        f"{SVM}: {svm['train_accuracy']:.1%} on the training part, {svm['test_accuracy']:.1%} on "
        f"the test part; training: {svm['seconds']:.1f} s"
    )


def classify(config: ClassifyConfig, run: Run) -> None:
    """Trains a text classifier, and prints its accuracy."""
    data = read_texts(config)
    start_backend()  # takes seconds, so it comes after the checks
    from keras_tnattn_train.classify.train import train_classifier

    results = train_classifier(config, run, data)
    counts = results["parameters"]
    print(
        f"accuracy: {results['train_accuracy']:.1%} on the training part, "
        f"{results['test_accuracy']:.1%} on the test part\n"
        f"parameters: {counts['all']:,}, {counts['attention']:,} of them in the attention; "
        f"training: {results['seconds']:.0f} s, compilation included\n{baseline(config, data)}"
    )


COMMAND = training_command(
    ClassifyConfig,
    classify,
    "Train a text classifier",
    "Writes the run folder: config.json, data.json, metrics.csv, results.json, "
    "learning_curves.png, confusion_matrix.png, psi.png (--attention tsa or tga), report.csv, "
    "mistakes.csv, model.keras and checkpoints.",
    examples="""\
examples:
  classify the docstrings of the installed libraries; no network needed:
    keras-tnattn classify
  classify Reuters newswires with the model of the paper on tensorized spectral attention:
    keras-tnattn classify --dataset reuters --recipe paper
  use your own table, keep the best epoch, and export to saved_models/mine/1/:
    keras-tnattn classify --dataset mine.csv --text-column body \\
        --label-column topic --early-stopping 3 --name mine --export
  continue an interrupted run:
    keras-tnattn classify --name mine --resume
""",
    loading=loader("keras_tnattn_train.classify.loading", "ClassifierRun"),
    evaluating=evaluate.PROGRAM,
    explaining=explain.PROGRAM,
    predicting=loader("keras_tnattn_train.classify.predicting", "PredictingClassifier"),
    runs_on_numpy=True,
    first=(
        "resume",
        "dataset",
        "text_column",
        "label_column",
        "recipe",
        "attention",
        "epochs",
        "early_stopping",
        "export",
        "name",
    ),
)
