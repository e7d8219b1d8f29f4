"""The command `translate`."""

from keras_tnattn_train.commands import loader, training_command
from keras_tnattn_train.data.pairs.loading import check_trainable
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.translate import evaluate, explain
from keras_tnattn_train.translate.config import PreparingOptions, TranslateConfig
from keras_tnattn_train.translate.layouts import layouts


def translate(config: TranslateConfig, run: Run, preparing: PreparingOptions) -> None:
    """Trains a translator, and prints its loss and accuracy."""
    if config.corpus is None and preparing.workers != 1:
        raise InputError(
            "Expected a corpus with workers, which prepare it. Received: "
            f"workers={preparing.workers}, prepared={config.prepared!r} alone"
        )
    if config.corpus is not None and not run.exists:
        check_trainable(config.corpus, config.data_dir)
    start_backend()  # takes seconds, so it comes after the checks
    from keras_tnattn_train.translate.train import train_translator

    results = train_translator(config, run, preparing.workers)
    measured = ", ".join(
        f"{name} {results[name]:.4f}"
        for name in ("loss", "accuracy", "val_loss", "val_accuracy")
        if name in results
    )
    print(
        f"best of {results['epochs']} epochs: {results['epoch']:.0f}, {measured}\n"
        f"parameters: {results['parameters']:,}; training: {results['seconds']:.0f} s, "
        f"compilation included; {results['tokens_per_second']:,.0f} tokens per second without it"
    )


COMMAND = training_command(
    TranslateConfig,
    translate,
    "Train a translator (of sentences: extra text)",
    "Trains an encoder-decoder model on a parallel corpus. Writes the run folder: config.json, "
    "data.json, metrics.csv, results.json, learning_curves.png, the tokenized corpus, model.keras "
    "and checkpoints.",
    examples="""\
examples:
  train a small model on CLDR's data in Portuguese and English; no network needed:
    keras-tnattn translate
  train the paper's model #2 on Multi30k, and scaled dot-product attention for comparison:
    keras-tnattn translate --corpus multi30k_pt_en --data-dir DIR \\
        --preset plga-2 --epochs 120
    keras-tnattn translate --corpus multi30k_pt_en --data-dir DIR \\
        --preset sdpa --epochs 120
  use your own files, English to Portuguese, and keep the best epoch:
    keras-tnattn translate --corpus train.pt,train.en --reverse \\
        --early-stopping 5 --name mine
  continue an interrupted run; export the finished one with 4 beams:
    keras-tnattn translate --name mine --resume
    keras-tnattn translate --name mine --resume --export --export-beam 4
""",
    layouts=layouts,
    others=PreparingOptions,
    loading=loader("keras_tnattn_train.translate.loading", "TranslatorRun"),
    predicting=loader("keras_tnattn_train.translate.predicting", "PredictingTranslator"),
    runs_on_numpy=True,
    searches=True,
    evaluating=evaluate.PROGRAM,
    explaining=explain.PROGRAM,
    first=(
        "resume",
        "corpus",
        "data_dir",
        "reverse",
        "preset",
        "epochs",
        "learning_rate",
        "early_stopping",
        "export",
        "name",
    ),
)
