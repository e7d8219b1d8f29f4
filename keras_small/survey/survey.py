"""Surveys a model before its layers are replaced: a copy, the data, and a comparison."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from keras_small.asked.batches import fixed_rows, number_of_inputs
from keras_small.asked.data import CalibrationData, Data
from keras_small.survey.comparing import Comparison, Metric
from keras_small.survey.copying import check_copy, copy_of, example_inputs
from keras_small.survey.inventory import Inventory
from keras_small.survey.running import cut_to_memory
from keras_small.survey.selection import select_layers


@dataclasses.dataclass(frozen=True)
class Survey:
    """A model, and the copy whose layers are replaced.

    Attributes:
        original: The model, which is only run.
        copy: Its copy, with the layers that can be replaced.
        comparison: Compares small models with the original.
        example: Inputs of one row, or as many as a batch must have: the first ones of the data, or
            random ones; `None` if the shapes of the inputs are not known.
    """

    original: Inventory
    copy: Inventory
    comparison: Comparison
    example: Any

    @property
    def data(self) -> CalibrationData | None:
        return self.comparison.data

    def without_metric(self) -> "Survey":
        """Returns a survey whose small models are compared by their outputs alone."""
        return dataclasses.replace(self, comparison=self.comparison.without_metric())

    def check_call(self, small: keras.Model) -> None:
        """Calls a small model that no data have shown to work, if its inputs are known."""
        if self.data is None and self.example is not None:
            with keras.StatelessScope():
                small(self.example, training=False)


def survey_of(
    original: Inventory,
    data: Data | None,
    metric: Metric | None,
    selects: Callable[[keras.layers.Layer], bool],
) -> Survey:
    """Copies a model, finds the layers that can be replaced, and reads the data.

    Args:
        original: The model.
        data: The data that `compress` got, or `None`.
        metric: The metric of the goal.
        selects: Whether a layer may be replaced.

    Raises:
        ValueError: If the model cannot be copied, has weights that are not finite, or the data do
            not fit it.
    """
    model = original.model
    read = None
    if data is not None:
        read = CalibrationData(data, number_of_inputs(model), fixed_rows(model))
    example = example_inputs(model) if read is None else read.example
    copy = copy_of(original, example)
    if read is not None:
        cut_to_memory(read, copy)
    if example is not None:
        check_copy(model, copy.model, example if read is None else read.small_batches[0])
    select_layers(original, copy, selects, example)
    return Survey(original, copy, Comparison(original, metric, read), example)
