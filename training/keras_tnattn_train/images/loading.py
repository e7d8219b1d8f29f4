"""A finished run of `images`, which predicts the classes of pictures."""

from pathlib import Path

import numpy as np
from scipy.special import softmax

from keras_tnattn_train.data.images import read_picture
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.predictions import Predictor, labels
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

        def predict(paths: list[str]) -> list:
            images = []
            for path in paths:
                try:
                    images.append(read_picture(Path(path), size))
                except ValueError as error:
                    raise InputError(f"Expected pictures. Received: {path}: {error}") from error
            logits = np.asarray(self.model.predict_on_batch(np.stack(images)), "float64")
            return labels(softmax(logits, axis=-1), self.class_names)

        return predict
