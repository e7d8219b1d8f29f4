"""Finished runs whose models read texts: what `predict` and `compress` ask of them."""

import abc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.predictions import Predictor

if TYPE_CHECKING:
    import keras

    from keras_tnattn_train.exports.task import Task


class PredictingRun(abc.ABC):
    """A finished run of a task, which predicts for texts or names."""

    @abc.abstractmethod
    def predictor(self, batch_size: int, beam: int, n_best: int | None) -> Predictor:
        """Returns what predicts, by default the best one for each text, else the `n_best`."""


class TrainedRun(PredictingRun):
    """A finished run of a task, which `Command.load` returns.

    Attributes:
        model: The trained model.
        loss: What the training of a small model minimizes, a function of the outputs of the
            original and of the small model. Default: see `CompressionResult.heal`.
        kept_ids: The number of leading ids that stay if `compress` may reorder the vocabulary.
            Default: it may not.
    """

    model: "keras.Model"
    loss: Callable[[Any, Any], Any] | None = None
    kept_ids: int | None = None

    @abc.abstractmethod
    def inputs(self) -> Any:
        """Returns the inputs of the training part, with which `compress` chooses ranks."""

    def new_inputs(self) -> Any:
        """Returns inputs that were not trained on, for a promise. Default: `None`, without any."""
        return None

    def healing_inputs(self) -> Any:
        """Returns the inputs on which a small model is trained. Default: `inputs()`."""
        return self.inputs()

    def accuracy(self) -> Callable[["keras.Model"], float] | None:
        """Returns what measures a model on held-out rows. Default: the task has no accuracy."""
        return None

    @abc.abstractmethod
    def description(self, result: Any) -> dict[str, Any]:
        """Returns the content of `data.json` beside the small model."""

    def scores(self, result: Any) -> dict[str, float]:
        """Measures original and small model. Default: neither is measured."""
        return {}

    def summary(self, scores: dict[str, float], folder: Path) -> str:
        """Returns what to print about a small model."""
        return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())

    @abc.abstractmethod
    def export(self, result: Any, scores: dict[str, float], folder: Path) -> Path:
        """Exports a small model to a new version in a folder, and returns its path."""

    def task(self) -> "Task":
        """Returns the model and its text, for `exports.export`. Default: refused."""
        raise InputError(
            f"Expected a run of classify, translate or language. Received: {self.model.name}, "
            "another model"
        )
