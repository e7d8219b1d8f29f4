"""Surveys a model before its layers are replaced: a copy, a comparison, and its layers on data."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_small.asked.data import CalibrationData, Data
from keras_small.asked.inputs import example_inputs, fixed_rows, number_of_inputs
from keras_small.asked.progress import tell
from keras_small.asked.renumbering import Renumbering
from keras_small.survey.calibration import Statistics, observe
from keras_small.survey.comparing import Comparison, Metric
from keras_small.survey.copying import check_copy, copy_of, share_weights
from keras_small.survey.freed_memory import give_back_memory
from keras_small.survey.inventory import Inventory
from keras_small.survey.kinds import is_plain_table
from keras_small.survey.moments import Moments
from keras_small.survey.running import are_equal, cut_to_memory, outputs_of
from keras_small.survey.selection import select_layers
from keras_small.survey.sensitivity import measure_sensitivity


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

    @functools.cached_property
    def sample(self) -> Any:
        """A batch of the data in whose run the outputs of all layers fit; `None` without data."""
        return None if self.data is None else self.data.small_batches[0]

    def with_data(self, data: CalibrationData) -> "Survey":
        """Returns the same with other data."""
        comparison = self.comparison.with_data(data)
        return dataclasses.replace(self, comparison=comparison, example=data.example)

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
    shards: int = 1,
) -> Survey:
    """Copies a model, finds the layers that can be replaced, and reads the data.

    Args:
        original: The model.
        data: The data that `compress` got, or `None`.
        metric: The metric of the goal.
        selects: Whether a layer may be replaced.
        shards: The number of shards of equal size of which the data are one. Defaults to 1.

    Raises:
        TypeError: If the data have moments that are none.
        ValueError: If the model cannot be copied, has weights that are not finite, or the data do
            not fit it.
    """
    model = original.model
    read = None
    if data is not None:
        _check_moments(data.moments)
        read = CalibrationData(data, number_of_inputs(model), fixed_rows(model))
    example = example_inputs(model) if read is None else read.example
    copy = copy_of(original, example)
    share_weights(original, copy)
    if read is not None:
        cut_to_memory(read, copy, shards)
    if example is not None:
        check_copy(model, copy.model, example if read is None else read.small_batches[0])
    select_layers(original, copy, selects, example)
    return Survey(original, copy, Comparison(original, metric, read), example)


def layer_statistics(survey: Survey) -> dict[str, Statistics]:
    """Observes the layers of the copy on the data, and keeps those that cannot be watched."""
    inventory = survey.copy
    data = survey.data
    layers = inventory.replaceable_layers
    if data is None or not layers:
        return {path: Statistics() for path in layers}
    tell("running the model on the data")
    model = inventory.model
    statistics, outputs = observe(
        model, layers, data.batches, data.arrays, survey.sample, inventory.normalizations
    )
    if data.moments is not None:
        _use_moments(statistics, data.moments)
    for batch, of_batch in zip(data.batches, outputs, strict=False):
        survey.comparison.remember(batch, of_batch)
    inventory.keep({path: statistics[path].failure for path in layers if statistics[path].failure})
    give_back_memory()
    measure_sensitivity(model, inventory.replaceable_layers, data, statistics, outputs)
    give_back_memory()
    if data.kept_ids is not None:
        _note_renumbering(survey, statistics, data.kept_ids)
    return statistics


def _check_moments(moments: Any) -> None:
    if moments is not None and not isinstance(moments, Moments):
        raise TypeError(
            "Expected what gather_moments returns, or a sum such as sum(others, first). "
            f"Received: moments of type {type(moments).__name__}"
        )


def _use_moments(statistics: Mapping[str, Statistics], moments: Moments) -> None:
    """Puts moments of more rows in the place of those that were observed.

    Raises:
        ValueError: If they are of another model.
    """
    second_moments = {path: x for paths, x in moments.second_moments.items() for path in paths}
    for path, note in statistics.items():
        second_moment = second_moments.get(path)
        counts = moments.counts.get(path)
        of_moment = [x and x.columns for x in (note.second_moment, second_moment)]
        of_counts = [None if x is None else len(x) for x in (note.counts, counts)]
        for expected, received in (of_moment, of_counts):
            if expected not in (None, received):
                raise ValueError(
                    "Expected moments of this model, loaded from the same file in each process: "
                    f"of {expected} numbers for the layer {path}. "
                    f"Received: {'none' if received is None else received}"
                )
        note.second_moment = second_moment
        note.counts = counts


def _note_renumbering(survey: Survey, statistics: Mapping[str, Statistics], kept_ids: int) -> None:
    """Notes in the statistics of an embedding that ids may be renumbered, if only it reads them.

    Raises:
        ValueError: If these leading ids cannot stay.
    """
    inventory = survey.copy
    sample = survey.sample
    readers = [path for path, note in statistics.items() if note.takes_model_input]
    integers = sum(np.asarray(x).dtype.kind in "iu" for x in keras.tree.flatten(sample))
    if len(readers) != 1 or integers != 1 or readers[0] not in inventory.replaceable:
        return
    (path,) = readers
    layer = inventory.places[path].layer
    if not is_plain_table(layer):
        return
    if not int(layer.mask_zero) <= kept_ids < layer.input_dim:
        raise ValueError(
            f"Expected kept_ids to keep {'id 0, the padding, and ' if layer.mask_zero else ''}"
            f"fewer ids than the {layer.input_dim} of {path}. Received: kept_ids={kept_ids}"
        )
    # The outputs must stay when the other ids and the table change alike.
    order = np.arange(layer.input_dim)
    order[kept_ids:] = order[kept_ids:][::-1]
    copy = copy_of(inventory, sample)
    table = copy.places[path].layer
    table.set_weights([weights[order] for weights in table.get_weights()])
    old = outputs_of(inventory.model, sample)
    new = outputs_of(copy.model, Renumbering(path, order)(sample))
    if all(map(are_equal, old, new)):
        statistics[path].kept_ids = kept_ids
