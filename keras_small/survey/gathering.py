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

    Each of several processes, on this machine or others, loads the model from the same file and
    gathers the moments of its shard. About 1,024 rows of a shard are read, as `compress` reads
    them; ids of arrays are counted in all rows. The sum is equal, but for rounding, to the moments
    of one process that reads the same rows, if each shard has the same number of whole batches.
    That the weights of the models differ is not noticed.

    Args:
        model: As for `compress`; the same in all processes.
        data: The rows of the shard, as for `compress`.
        shards: The number of shards, which should have equally many rows. Of long inputs and of
            pictures, each then draws its part of the positions that one process would. Defaults
            to 1: all of them, which takes longer.

    Returns:
        The moments, which can be pickled, and added by `+`: half a matrix `(I, I)` of float32 for
        the `I` numbers of a row that each layer reads.

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
    if given is None or given.moments is not None:
        received = "data=None" if given is None else "a Data that has moments"
        raise ValueError(f"Expected rows to gather moments from. Received: {received}")
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
