"""Metrics of sequences of tokens."""

from typing import Any

import keras
from keras import ops

from keras_tnattn.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TokenAccuracy(keras.metrics.Metric):
    """Share of the tokens, without padding, whose most probable id is correct.

    Args:
        padding: The label of padding. Defaults to 0.

    Example:
        >>> metric = TokenAccuracy()
        >>> metric.update_state([[1, 2, 0]], keras.ops.one_hot([[1, 1, 1]], 3))
        >>> float(metric.result())  # one of two; the third is padding
        0.5
    """

    def __init__(self, padding: int = 0, name: str = "accuracy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.padding = padding
        self.right = self.add_weight(shape=(), initializer="zeros", name="right")
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        """Counts labels `(B, T)` and scores `(B, T, V)`; `sample_weight` is not used."""
        labels = ops.cast(y_true, "int32")
        real = labels != self.padding
        right = ops.logical_and(real, ops.argmax(y_pred, axis=-1) == labels)
        self.right.assign_add(ops.sum(ops.cast(right, self.right.dtype)))
        self.total.assign_add(ops.sum(ops.cast(real, self.total.dtype)))

    def result(self) -> Tensor:
        return self.right / ops.maximum(self.total, 1.0)

    def get_config(self) -> dict:
        return {**super().get_config(), "padding": self.padding}
