"""Gathers the moments of a shard of the rows, so that several processes share the work."""

from typing import Any

import keras

from keras_small.asked.data import as_data
from keras_small.asked.inputs import check_model, check_shapes
from keras_small.survey.calibration import observe
from keras_small.survey.copying import check_lambdas, known_objects
from keras_small.survey.inventory import Inventory
from keras_small.survey.moments import Moments, SecondMoment
from keras_small.survey.survey import survey_of
from keras_tnattn.checks import check_int


def gather_moments(model: keras.Model, data: Any, shards: int = 1) -> Moments:
    """Returns what the layers of a model read in a shard of the rows, for `Data(moments=...)`.

    Each of several processes, on this machine or others, loads the model and gathers the moments of
    its shard; their sum is that of all rows. Of each shard about 1,024 rows are drawn, as
    `compress` does; ids of arrays are counted in all rows. The sum is equal, but for rounding, to
    the moments of one process if each shard has the same number of whole batches.

    Args:
        model: As for `compress`; the same in all processes.
        data: The rows of the shard, as for `compress`.
        shards: The number of shards, of equal size. Of long inputs, fewer positions are drawn the
            more shards there are. Defaults to 1.

    Returns:
        The moments, which can be pickled, and added by `+`.

    Raises:
        ValueError: If the model or the data cannot be used, as in `compress`.

    Example:
        >>> import keras, numpy as np
        >>> from keras_small import Data, compress, gather_moments
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> rows = np.random.default_rng(0).normal(size=(2, 512, 64)).astype("float32")
        >>> moments = gather_moments(model, rows[0], 2) + gather_moments(model, rows[1], 2)
        >>> result = compress(model, 3, data=Data(rows[0], moments=moments), verbose=0)
        >>> result.report.ratio >= 3
        True
    """
    check_int("shards", shards)
    check_model(model)
    given = as_data(data)
    if given is None:
        raise ValueError("Expected rows to gather moments from. Received: data=None")
    check_shapes(model, given)
    original = Inventory.of(model)
    check_lambdas(original)
    with known_objects(original):
        survey = survey_of(original, given, None, lambda layer: True, shards)
        read: Any = survey.data
        copy = survey.copy
        layers = copy.replaceable_layers
        notes, _ = observe(
            copy.model, layers, read.batches, read.arrays, survey.sample, shards=shards
        )
    paths_of: dict[SecondMoment, list[str]] = {}
    for path, note in notes.items():
        if note.second_moment is not None:
            paths_of.setdefault(note.second_moment, []).append(path)
    return Moments(
        {tuple(paths): moment for moment, paths in paths_of.items()},
        {path: note.counts for path, note in notes.items() if note.counts is not None},
    )
