"""A finished run of `nodes`, which predicts the classes of nodes of its graph."""

from pathlib import Path

import numpy as np
from scipy.special import softmax

from keras_tnattn_train.data.graphs import canonical_name
from keras_tnattn_train.nodes.config import NodesConfig
from keras_tnattn_train.nodes.fitting import inputs_of
from keras_tnattn_train.runs.predictions import (
    Prediction,
    Predictor,
    Problem,
    label_columns,
    labels,
)
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.saved_models import load_model
from keras_tnattn_train.runs.trained import PredictingRun


class NodesRun(PredictingRun):
    """The finished run of a classifier of nodes."""

    def __init__(self, folder: Path) -> None:
        run = Run(folder)
        self.graph = run.read_config(NodesConfig, {}).read_graph()
        run.check_data({"fingerprint": self.graph.fingerprint()})
        self.model = load_model(folder / "model.keras", "Finish the run with --resume")

    def predictor(self, batch_size: int, beam: int, n_best: int | None) -> Predictor:
        logits = self.model.predict_on_batch(inputs_of(self.graph, self.model))[0]
        probabilities = softmax(np.asarray(logits), axis=-1)
        names = self.graph.names or map(str, range(len(probabilities)))
        number = {name: i for i, name in enumerate(names)}

        def predict(nodes: list[str]) -> list[list[Prediction] | Problem]:
            answers: list[list[Prediction] | Problem] = []
            for node in nodes:
                row = number.get(canonical_name(node))
                if row is None:
                    answers.append(
                        Problem(
                            f"{node!r}, which is no node of the graph that the run was trained "
                            f"on; they are called {next(iter(number))} and the like"
                        )
                    )
                else:
                    answers += labels(probabilities[[row]], self.graph.class_names)
            return answers

        return Predictor(predict, label_columns(self.graph.class_names))
