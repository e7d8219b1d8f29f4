"""A finished run of `images`, which predicts the classes of pictures."""

from pathlib import Path

import numpy as np
from scipy.special import softmax

from keras_tnattn_train.data.images import read_picture
from keras_tnattn_train.runs.predictions import (
    Prediction,
    Predictor,
    Problem,
    label_columns,
    labels,
)
from keras_tnattn_train.runs.saved_models import load_model
from keras_tnattn_train.runs.trained import PredictingRun
from keras_tnattn_train.system.files import read_object


class ImagesRun(PredictingRun):
    """The finished run of a classifier of images."""

    def __init__(self, folder: Path) -> None:
        self.class_names = read_object(folder / "data.json", "Train the run again")["class_names"]
        self.model = load_model(folder / "model.keras", "Finish the run with --resume")

    def predictor(self, batch_size: int, beam: int, n_best: int | None) -> Predictor:
        size = self.model.input_shape[1:3]

        def predict(paths: list[str]) -> list[list[Prediction] | Problem]:
            images: dict[int, np.ndarray] = {}
            answers: list[list[Prediction] | Problem] = []
            for place, path in enumerate(paths):
                try:
                    images[place] = read_picture(Path(path), size)
                    answers.append([])
                except ValueError as error:
                    answers.append(Problem(f"{path}: {error}"))
            if images:
                batch = np.stack(list(images.values()))
                logits = np.asarray(self.model.predict_on_batch(batch), "float64")
                predictions = labels(softmax(logits, axis=-1), self.class_names)
                for place, prediction in zip(images, predictions, strict=True):
                    answers[place] = prediction
            return answers

        return Predictor(predict, label_columns(self.class_names))
