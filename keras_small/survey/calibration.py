"""Observes a model's layers on real inputs: second moments, and counts of ids."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.asked.data import number_of_rows, spread_numbers
from keras_small.asked.progress import with_bar
from keras_small.survey.kinds import input_rows, is_table, row_size, rows_read
from keras_small.survey.moments import SecondMoment
from keras_small.survey.output_moments import bias_of, moments_of_outputs
from keras_small.survey.running import Runner, check_ids, numbers_of, outputs_of, returns_logits
from keras_small.survey.watching import Call, watch_calls

# Maximum entries of all outputs that are kept.
_KEPT_OUTPUTS = 2**23
# Maximum entries of the inputs of all layers that are kept, beside one row of each.
_KEPT_INPUTS = 2**23
# A second moment is the mean over at least this many rows, over one for each of its columns, and
# over all rows for which its matrix takes no more than this many products; or all of the data.
_MOMENT_ROWS = 4096
_MOMENT_PRODUCTS = 2**31
# Maximum entries of the rows that a run returns for one layer, beside one row of each sample.
_RETURNED_ENTRIES = 2**22


@dataclasses.dataclass
class Statistics:
    """A summary of the inputs that a layer was called with.

    Attributes:
        second_moment: Of the input rows that were drawn; for kernels of which `kinds` knows the
            rows, and for tables that are also called to return logits.
        counts: The number of occurrences of each id, int64 `(V,)`; only for embeddings.
        call: The first rows of the first call.
        sensitivity: Relative change of the model's outputs divided by the relative change of this
            layer's outputs, before its activation, that caused it.
        response: How the model's outputs respond to directions of an embedding's rows: float64
            `(D, D)`, the mean of `J^T J` for the Jacobian `J` of the outputs by a row, divided by
            its mean eigenvalue; `None` if all directions count alike.
        kept_ids: The number of leading ids of an embedding that stay if all others may be
            renumbered, or `None` if ids stay.
        inputs_read: Positions, among the flattened inputs of the model, of the inputs that an
            embedding was called with; `None` stands for ids that are no input of the model.
        output_moments: Of the outputs before the activation, for layers with a bias, in each call
            with some of the batches, as `spread_batches` chooses them.
        failure: Why the layer cannot be watched, or nothing.
        factors: The factors of a table, once `errors.factors_of` has computed them.
        rounding_share: The share of the errors of roundings that second moments leave, once
            `formats.dense` has measured it.
        moment_of_states: The second moment of the states of a recurrent layer, once
            `formats.recurrent` has computed it.
    """

    second_moment: SecondMoment | None = None
    counts: np.ndarray | None = None
    call: Call | None = None
    sensitivity: float = 1.0
    response: np.ndarray | None = None
    kept_ids: int | None = None
    inputs_read: set[int | None] = dataclasses.field(default_factory=set)
    output_moments: list[tuple[np.ndarray, int]] = dataclasses.field(default_factory=list)
    failure: str = ""
    factors: Any = dataclasses.field(default=None, init=False)
    rounding_share: float | None = dataclasses.field(default=None, init=False)
    moment_of_states: np.ndarray | None = dataclasses.field(default=None, init=False)

    @property
    def inputs(self) -> np.ndarray | None:
        """The first inputs of the first call."""
        return None if self.call is None else self.call.inputs

    @property
    def moment(self) -> np.ndarray | None:
        """The matrix of the second moment."""
        return None if self.second_moment is None else self.second_moment.matrix()

    @property
    def shrunk_moment(self) -> np.ndarray | None:
        """The moment, shrunk towards a multiple of the identity."""
        return None if self.second_moment is None else self.second_moment.shrunk()

    @property
    def takes_model_input(self) -> bool:
        """Whether the ids are, at least in one call, an input of the model itself."""
        return any(position is not None for position in self.inputs_read)


def observe(
    model: keras.layers.Layer,
    layers: Mapping[str, keras.layers.Layer],
    batches: Sequence[Any],
    all_inputs: Any = None,
    example: Any = None,
    normalizations: Mapping[str, keras.layers.Layer] | None = None,
    shards: int = 1,
) -> tuple[dict[str, Statistics], list[list[np.ndarray]]]:
    """Runs a copy of a model on data, and records the inputs of the layers at some paths.

    The layers are changed while it runs. The ids of embeddings that read inputs of the model are
    counted in `all_inputs`; default: in the batches. The calls are those of `example`, a few rows;
    default: of the first batch. Of `normalizations` only the outputs are read. The rows that are
    drawn for moments are as many as of all `shards` of as many batches each.

    Returns:
        The summary of each layer's inputs, and the flattened outputs of the first batches.
    """
    watched = {**layers, **(normalizations or {})}
    statistics = {path: Statistics() for path in watched}
    calls, failures = _first_calls(model, watched, batches[0] if example is None else example)
    for path, note in statistics.items():
        note.call = calls.get(path) if path in layers else None
        note.failure = failures.get(path, "" if path in calls else "never called on the data")
    watched = {path: layer for path, layer in watched.items() if not statistics[path].failure}
    reader = _Reader(model, watched, batches, shards)
    spread = set(spread_numbers(batches))
    moments: dict[str, SecondMoment] = {}
    first: list[list[np.ndarray]] = []
    ids_read: dict[str, list[np.ndarray]] = {}
    numbers = 0
    for number in with_bar(range(len(batches)), [1.0] * len(batches)):
        batch = batches[number]
        found = reader.run.nested(batch)
        outputs = keras.tree.flatten(found["outputs"])
        numbers += sum(array.size for array in outputs)
        if number == 0 or numbers <= _KEPT_OUTPUTS:
            first.append(outputs)
        for (path, *_), keys in reader.groups():
            for key in keys:
                moments.setdefault(path, SecondMoment()).add(found["rows"][key])
        for path, keys in reader.ids.items():
            for key in keys:
                ids = found["ids"][key]
                statistics[path].inputs_read.add(_position(ids, keras.tree.flatten(batch)))
                ids_read.setdefault(path, []).append(ids.ravel())
        if number in spread:
            rows = number_of_rows(batch)
            for path, of_calls in found["output_moments"].items():
                statistics[path].output_moments += [(moments, rows) for moments in of_calls]
    for path, parts in ids_read.items():
        ids = _ids_of_inputs(statistics[path], all_inputs)
        ids = np.concatenate(parts) if ids is None else ids
        statistics[path].counts = _counts(ids, layers[path].input_dim, path)
    for paths, _ in reader.groups():
        moment = moments[paths[0]]
        if not moment.is_finite():
            raise ValueError(
                "Expected data for which the inputs of every layer are finite. Received: "
                f"infinite or NaN inputs of the layer {paths[0]}; look for NaN in the data"
            )
        for path in paths:
            statistics[path].second_moment = moment
    for path, failure in reader.failures.items():
        statistics[path].failure = failure
    return statistics, first


def _first_calls(
    model: keras.layers.Layer, layers: Mapping[str, keras.layers.Layer], batch: Any
) -> tuple[dict[str, Call], dict[str, str]]:
    """Returns some rows of the first call of each layer, and the layers that cannot be watched."""
    calls: dict[str, Call] = {}
    entries = _KEPT_INPUTS // max(len(layers), 1)

    def watch(path: str, tensors: Call, outputs: Any) -> Any:
        if path in calls:
            return outputs
        call = Call.of_tensors(tensors.args, tensors.kwargs)
        if not returns_logits(layers[path], call):
            calls[path] = call.first_rows(max(1, entries * len(call.inputs) // call.inputs.size))
        return outputs

    with watch_calls(layers, watch) as failures:
        outputs_of(model, batch)
    return calls, failures


class _Reader:
    """Reads the inputs of a model's layers in a run that can be compiled.

    Args:
        model: The model.
        layers: The layers to watch.
        batches: The batches that will be run.
        shards: How many times as many batches moments are gathered from.

    Attributes:
        run: Returns the `outputs` of the model for a batch, `rows` and `ids` by their names, and
            `output_moments` of each call by path.
        keys: The names, for each layer, of the rows that its kernel multiplied in each call; layers
            that are called on one and the same tensor have them in common.
        ids: The names of the ids that each table looked up.
        failures: Why layers could not be watched, by path.
    """

    def __init__(
        self,
        model: keras.layers.Layer,
        layers: Mapping[str, keras.layers.Layer],
        batches: Sequence[Any],
        shards: int,
    ) -> None:
        self._model = model
        self._layers = layers
        self._rows = number_of_rows(batches[0])
        self._batches = shards * len(batches)
        self.run = Runner(model, self._read, runs=len(batches))
        self.keys: dict[str, list[str]] = {}
        self.ids: dict[str, list[str]] = {}
        self.failures: dict[str, str] = {}

    def groups(self) -> list[tuple[list[str], list[str]]]:
        """Returns the paths of the layers that read the same rows, and the names of these."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for path, keys in self.keys.items():
            groups.setdefault(tuple(keys), []).append(path)
        return [(paths, list(keys)) for keys, paths in groups.items()]

    def _read(self, inputs: Any) -> dict[str, Any]:
        self.keys = {}
        self.ids = {}
        rows: dict[str, Any] = {}
        ids: dict[str, Any] = {}
        output_moments: dict[str, list[Any]] = {}
        latest: tuple[Any, Any, str] = (None, None, "")

        def watch(path: str, tensors: Call, outputs: Any) -> Any:
            nonlocal latest
            layer = self._layers[path]
            if bias_of(layer) is not None:
                output_moments.setdefault(path, []).append(moments_of_outputs(outputs, layer))
            tensor = tensors.first_tensor
            reverse = returns_logits(layer, tensors)
            if is_table(layer) and not reverse:
                key = str(len(ids))
                ids[key] = tensor
                self.ids.setdefault(path, []).append(key)
                return outputs
            kind = "logits" if reverse else rows_read(layer)
            if kind is None:
                return outputs
            before, kind_before, key = latest
            if before is not tensor or kind_before != kind:
                key = str(len(rows))
                rows[key] = self._rows_of(layer, tensor, reverse)
                latest = (tensor, kind, key)
            self.keys.setdefault(path, []).append(key)
            return outputs

        with watch_calls(self._layers, watch, before_activation=True) as failures:
            outputs = self._model(inputs, training=False)
        self.run.check_failures(failures)
        self.failures |= failures
        read = {"rows": rows, "ids": ids, "output_moments": output_moments}
        return {"outputs": numbers_of(outputs), **read}

    def _rows_of(self, layer: keras.layers.Layer, tensor: Any, reverse: bool) -> Any:
        """Returns rows of one call: about as many for each sample, and at least one."""
        columns = int(tensor.shape[-1]) if reverse else row_size(layer)
        wanted = max(_MOMENT_ROWS, columns, _MOMENT_PRODUCTS // columns**2)
        of_batch = min(math.ceil(wanted / self._batches), max(1, _RETURNED_ENTRIES // columns))
        positions = math.ceil(of_batch / self._rows)
        if reverse:
            rows = ops.reshape(tensor, (-1, columns))
        else:
            rows = input_rows(layer, tensor, positions)
        return _at_most(rows, positions * self._rows)


def _at_most(rows: Any, maximum: int) -> Any:
    """Returns rows, or this many of them drawn at random: a reshaped input can have more."""
    if rows.shape[0] is None:
        raise ValueError("Expected sizes that are known")
    if rows.shape[0] <= maximum:
        return rows
    drawn = np.random.default_rng(0).choice(rows.shape[0], maximum, replace=False)
    return ops.take(rows, drawn, axis=0)


def _position(ids: np.ndarray, flat_inputs: Sequence[Any]) -> int | None:
    """Returns the position of the input of the model that ids are; `None` if they are none."""
    same = (i for i, x in enumerate(flat_inputs) if np.array_equal(x, ids))
    return next(same, None)


def _ids_of_inputs(note: Statistics, all_inputs: Any) -> np.ndarray | None:
    """Returns the ids in all inputs that a table reads; `None` if it also reads other ids."""
    if all_inputs is None or None in note.inputs_read:
        return None
    arrays = keras.tree.flatten(all_inputs)
    return np.concatenate([np.ravel(arrays[i]) for i in note.inputs_read if i is not None])


def _counts(ids: np.ndarray, num_rows: int, path: str) -> np.ndarray:
    """Returns the number of occurrences of each id of a table."""
    check_ids(ids, num_rows, path)
    return np.bincount(ids.astype("int64"), minlength=num_rows)
