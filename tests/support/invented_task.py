"""A third task of texts, as a stranger would add it: tells questions from statements."""

from typing import ClassVar

import numpy as np

from keras_tnattn_train.commands import training_command
from keras_tnattn_train.options.apps import Program
from keras_tnattn_train.options.options import (
    FitConfig,
    Options,
    argument,
    batch_size_option,
    epochs_option,
    name_option,
    option,
)
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.trained import TrainedRun

TEXTS = [f"{a} {b}" for a in ("is it", "it is") for b in ("late", "early", "far", "near", "ours")]
TEXTS = [f"{text}{'?' if text.startswith('is') else '.'}" for text in TEXTS]
NAMES = ["statement", "question"]


class QuestionsConfig(FitConfig):
    command: ClassVar[str] = "questions"

    epochs: int = epochs_option(30)
    batch_size: int = batch_size_option(5)
    learning_rate: float = option(0.05, "training", "learning rate", gt=0)
    name: str = name_option(lambda values: "questions", "questions")


def characters(texts):
    return np.stack([np.bincount([ord(c) % 64 for c in text], minlength=64) for text in texts]) / 9


def train(config, run):
    start_backend()
    import keras

    from keras_tnattn.estimator.batches import ArrayBatches
    from keras_tnattn_train.runs.finishing import finish
    from keras_tnattn_train.runs.plots import learning_curves
    from keras_tnattn_train.runs.training import fit, start_session

    start_session(config)
    layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(2, "softmax")]
    model = keras.Sequential([keras.Input((64,)), *layers])
    optimizer = keras.optimizers.Adam(config.learning_rate)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    run.start_or_check(config, {"texts": len(TEXTS)})
    classes = np.array([text.endswith("?") for text in TEXTS], "int32")
    batches = ArrayBatches(characters(TEXTS), classes, config.batch_size, config.seed)
    log = fit(model, batches, config, run)
    learning_curves(log.rows, None, run.folder / "learning_curves.png")
    finish(config, run, log.model, {"epochs": len(log.rows)})


class QuestionsRun(TrainedRun):
    def __init__(self, folder):
        from keras_tnattn_train.runs.saved_models import load_model

        self.model = load_model(folder / "model.keras", "Train again")

    def predictor(self, batch_size, beam, n_best):
        from keras_tnattn_train.runs.predictions import Predictor, label_columns, labels

        return Predictor(
            lambda texts: labels(self.model.predict_on_batch(characters(texts)), NAMES),
            label_columns(NAMES),
        )

    def inputs(self):
        return characters(TEXTS).astype("float32")

    def description(self, result):
        return {"texts": len(TEXTS)}

    def export(self, result, scores, folder):
        path = folder / "1"
        result.model.export(path, verbose=False)
        return path


class CountOptions(Options):
    run: str = argument("the folder of a run")


def count(options):
    print(f"{len(TEXTS)} texts")


COMMAND = training_command(
    QuestionsConfig,
    train,
    "Tell questions from statements",
    "Writes the run folder.",
    examples="",
    several_devices=False,
    loading=QuestionsRun,
    evaluating=Program("evaluate", "Counts texts.", "", CountOptions, count),
)
