"""The command `language`."""

from keras_tnattn_train.commands import loader, training_command
from keras_tnattn_train.language.config import LanguageConfig
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.run import Run


def language(config: LanguageConfig, run: Run) -> None:
    """Trains a language model, and prints its bits per byte."""
    start_backend()  # takes seconds
    from keras_tnattn_train.language.corpus import read_corpus
    from keras_tnattn_train.language.train import summary, train_language_model

    corpus = read_corpus(config)
    print(summary(train_language_model(config, run, corpus), config))


COMMAND = training_command(
    LanguageConfig,
    language,
    "Train a language model of characters, bytes or pieces of words",
    "A decoder-only transformer with any causal attention learns to continue texts, and is "
    "measured in bits per byte. Writes the run folder: config.json, data.json, metrics.csv, "
    "results.json, learning_curves.png, model.keras and checkpoints; live.keras, the model before "
    "its metric was frozen.",
    examples="""\
examples:
  learn from the docstrings of the installed libraries, and continue a text:
    keras-tnattn language --epochs 3
    keras-tnattn generate runs/language-sdpa-0 "Returns the " --temperature 0.8
  learn from your own files, with power law attention whose metric is frozen after training:
    keras-tnattn language --corpus a.txt b.jsonl --attention plga --freeze-metric
  learn from your own files, and export the model for the server, which streams texts:
    keras-tnattn language --corpus a.txt --name tales --export
    python -m keras_tnattn_serving saved_models
  continue an interrupted run:
    keras-tnattn language --name mine --resume
""",
    several_devices=False,
    loading=loader("keras_tnattn_train.language.loading", "LanguageRun"),
    predicting=loader("keras_tnattn_train.language.predicting", "PredictingLanguageModel"),
    runs_on_numpy=True,
    first=(
        "resume",
        "corpus",
        "tokens",
        "length",
        "attention",
        "num_layers",
        "model_dim",
        "epochs",
        "export",
        "name",
    ),
)
