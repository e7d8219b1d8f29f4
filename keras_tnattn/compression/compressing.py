"""Makes any Keras model smaller in one call."""

import dataclasses
import logging
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_tnattn.checks import check_int
from keras_tnattn.compression.batches import renumbered
from keras_tnattn.compression.candidates import FORMATS, Candidate, quantized_model
from keras_tnattn.compression.healing import heal
from keras_tnattn.compression.plan import Plan, measured
from keras_tnattn.compression.rebuilding import counterparts
from keras_tnattn.compression.report import Report
from keras_tnattn.ops import quantization

_log = logging.getLogger(__name__)


class CompressionResult:
    """A compressed model and its report.

    Attributes:
        model: The small model, a normal Keras model.
        report: A `Report` of the changes to each layer.
        healed_epochs: The number of epochs of healing, without those that were undone.
        id_orders: With `renumber`, a dict from the path of each embedding whose ids were renumbered
            to an array with the old id of each new id.

    Example:
        >>> import keras, numpy as np
        >>> from keras_tnattn import compress
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> inputs = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
        >>> result = compress(model, target=3.0, data=inputs)
        >>> losses = result.heal(inputs, epochs=2)
        >>> result.model.count_params() < model.count_params() / 3
        True
    """

    def __init__(
        self,
        original: keras.Model,
        floating: keras.Model,
        small: keras.Model,
        report: Report,
        layers: Mapping[str, keras.layers.Layer],
        choice: Mapping[str, Candidate],
        id_orders: Mapping[str, np.ndarray],
        metric: Callable[[keras.Model], float] | None,
        sample: Any,
    ) -> None:
        self._original, self._floating, self._choice = original, floating, choice
        self._layers, self._metric, self._sample = layers, metric, sample
        self.model, self.report, self.healed_epochs = small, report, 0
        self.id_orders = dict(id_orders)

    def heal(
        self,
        dataset: Any,
        epochs: int = 1,
        learning_rate: float = 1e-3,
        batch_size: int = 32,
        label_weight: float = 0.0,
        loss: Any = None,
    ) -> list[float]:
        """Trains the small model with the original's outputs as targets.

        Integers cannot be trained: with `bits` the model before quantization is trained, and then
        quantized again. Both models run as at inference, without dropout. If `compress` was given
        a metric and the healed model has a lower value, the small model stays as it was.

        Args:
            dataset: Inputs or `(inputs, labels)`, as arrays or as an iterable of batches; the same
                forms as for `data` of `compress`, but a generator works for one epoch only.
            epochs: Passes over the dataset. Defaults to 1.
            learning_rate: Peak learning rate of Adam, which falls to 0. Defaults to 1e-3.
            batch_size: Rows per batch, if `dataset` are arrays. Defaults to 32.
            label_weight: Weight of the labels in the targets, if there are labels. Defaults to 0.
            loss: Another loss, such as `logits_divergence` for a model that returns logits.
                Default: Kullback-Leibler divergence for probabilities, otherwise the mean squared
                error.

        Returns:
            The mean loss of each epoch.

        Raises:
            ValueError: If a number is not positive, the dataset does not fit the model, labels are
                missing for `label_weight`, or the loss, a weight or the metric becomes infinite or
                NaN. The model then keeps its weights.
        """
        before, kept = self._floating.get_weights(), self.report.metric_after
        try:
            losses = heal(
                self._floating,
                self._original,
                dataset,
                epochs,
                learning_rate,
                batch_size,
                label_weight,
                loss,
                self.renumbered,
            )
            healed = quantized_model(self._floating, self._layers, self._choice, self._sample)
            metric = None if self._metric is None else measured(self._metric, healed)
        except BaseException:  # also of Ctrl-C
            self._floating.set_weights(before)
            raise
        if metric is not None and kept is not None:
            if metric < kept:
                self._floating.set_weights(before)
                message = (
                    "healing would lower the metric from %.4f to %.4f: the model stays as it is"
                )
                _log.warning(message, kept, metric)
                return losses
            self.report = dataclasses.replace(self.report, metric_after=metric)
        self.model = healed
        self.healed_epochs += epochs
        return losses

    def renumbered(self, inputs: Any) -> Any:
        """Converts inputs of the original model to inputs of the small model, with renumbered ids.

        If an embedding was renumbered, every integer array of the inputs is.
        """
        if not self.id_orders:
            return inputs
        return renumbered(inputs, np.argsort(next(iter(self.id_orders.values()))))


def compress(
    model: keras.Model,
    target: float | None = None,
    tolerance: float | None = None,
    data: Any = None,
    metric: Callable[[keras.Model], float] | None = None,
    max_drop: float | None = None,
    formats: Sequence[str] = FORMATS,
    bits: int | None = None,
    filters: str | Sequence[str] | Callable[[keras.layers.Layer], bool] | None = None,
    min_speed: float | None = None,
    batch_size: int = 32,
    renumber: int | None = None,
) -> CompressionResult:
    """Makes a trained Keras model smaller.

    `Dense`, `EinsumDense` and `Embedding` layers anywhere in the model, including those inside
    `MultiHeadAttention` and other layers, are replaced by layers of low rank or tensor trains. For
    each layer the error of its outputs is computed for many ranks. With `data` this is the error on
    the inputs that the layer really gets: `||C^{1/2} (W - W')||` for a kernel `W` and inputs of
    second moment `C`. For a table, rows are weighted by the counts of their ids, and directions of
    rows by how much the model's outputs respond to them. The errors of each layer are weighted by
    the sensitivity of the model's outputs to them. One budget of bytes is divided among all layers
    so that each byte reduces the error most.

    This costs an SVD for each layer and, with `data`, one run of the model over at most 1,024 rows,
    one over a batch for each layer, and for each embedding one over a batch for each feature (of at
    most 256; more than these count alike) and three over the rows. For an embedding of `V` rows,
    500 or more, it also tries tensor trains of some hundred pairs of ranks. Rows move to where they
    fit best, which costs about `V^2 D` FLOPs: once for each of twelve ranks, and six times for each
    tensor train that is chosen or timed. A table of 20,000 rows of 64 features takes about a minute
    on one core. The logger `keras_tnattn.compression` reports the progress at level `INFO`.

    Args:
        model: A built functional, sequential or subclassed model. It is not changed.
        target: How many times smaller the model has to be, in bytes of all weights. With `metric`
            and `max_drop`, the maximum to try. Pass this or `tolerance`, or neither: then nothing
            is replaced, and the report shows errors against sizes.
        tolerance: The maximum relative error of the outputs of each layer, before its activation,
            as estimated before the layers are built. The report has the measured errors: those of
            tensor trains are smaller, because these are fitted, and those with `bits` can be a
            little larger.
        data: Inputs of the model: an array, or a list, tuple or dict with an array for each input;
            or an iterable of such batches, for instance a `tf.data.Dataset`, a `PyDataset` or a
            generator, but not a list. A tuple `(inputs, labels)`, as for `fit`, can stand for
            the inputs; labels are not used.
        metric: A function such that `metric(model)` is a float, higher is better. The report has
            its values before and after.
        max_drop: The maximum decrease of the metric; bisection finds the smallest such model.
        formats: The allowed formats, `"low_rank"` and `"tensor_train"`.
        bits: 8 or 4 to also quantize, with Keras' `quantize`, or row by row in `LowRankEmbedding`
            and `TTEmbedding`. With neither target nor tolerance, these are all dense and embedding
            layers that are selected and become smaller. With a target, a layer that is not replaced
            has 4, 8 or 32 bits, whichever the bytes are best spent on (with `bits=8`, 8 or 32);
            with `tolerance` or `max_drop`, what the bound allows. `TTDense` layers stay in floats.
        filters: A regular expression, a list of them or a function that selects layers by name, as
            in `keras.Model.quantize(filters=...)`; other layers are not changed.
        min_speed: Minimum speed of a replacement relative to the layer it replaces, measured on a
            batch of `data`. 1.0 rejects slower replacements.
        batch_size: Rows per batch, if `data` are arrays. Defaults to 32.
        renumber: The number of leading ids, such as padding and unknown, that do not change; less
            than all, and at least 1 for an embedding that masks padding (`mask_zero`). All other
            ids may be renumbered so that similar rows are neighbors, which saves the table of
            positions of a tensor-train embedding. The caller has to reorder the vocabulary by
            `result.id_orders`. Needs `data`, no `metric`, and one integer input that a single
            embedding reads; the ids of other models stay. Default: ids stay.

    Returns:
        A `CompressionResult` with `model`, `report` and `heal`.

    Raises:
        TypeError: If `model` is not a Keras model.
        ValueError: If the model is not built or cannot be copied, the target cannot be reached, the
            data do not match the model, the metric is not finite, or arguments contradict each
            other.

    Example:
        >>> import keras, numpy as np
        >>> from keras_tnattn import compress
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> result = compress(model, target=3.0, data=np.ones((8, 64), "float32"))
        >>> result.report.ratio >= 3
        True
    """
    check_int("batch_size", batch_size)
    _check_filters(filters)
    _check_arguments(
        model, target, tolerance, formats, bits, metric, max_drop, min_speed, renumber, data
    )
    before = None if metric is None else measured(metric, model)
    plan = Plan(model, data, formats, bits, filters, min_speed, batch_size, renumber)
    if max_drop is not None and metric is not None and before is not None:
        choice = plan.within_drop(before, max_drop, metric, target)
    elif tolerance is not None:
        choice = plan.within_tolerance(tolerance)
    else:
        choice = plan.for_target(target or 1)
    result = _result(plan, choice, metric)
    if metric is not None:
        result.report = dataclasses.replace(
            result.report, metric_before=before, metric_after=measured(metric, result.model)
        )
    return result


def _result(
    plan: Plan, choice: Mapping[str, Candidate], metric: Callable[[keras.Model], float] | None
) -> CompressionResult:
    if any(c.format != "dense" or c.bits for c in choice.values()):
        _log.info("building the small model")
    floating = plan.floating(choice)
    layers = counterparts(plan.model, floating, plan.layers)
    small = quantized_model(floating, layers, choice, plan.sample)
    orders = plan.id_orders(choice)
    report = plan.report(choice, small, orders)
    return CompressionResult(
        plan.model, floating, small, report, layers, choice, orders, metric, plan.sample
    )


def _check_filters(filters: Any) -> None:
    if filters is None or callable(filters):
        return
    for pattern in [filters] if isinstance(filters, str) else filters:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(
                f"Expected regular expressions. Received: filters={filters!r} ({error})"
            ) from error


def _check_arguments(
    model: Any,
    target: float | None,
    tolerance: float | None,
    formats: Sequence[str],
    bits: int | None,
    metric: Any,
    max_drop: float | None,
    min_speed: float | None,
    renumber: int | None,
    data: Any,
) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(f"Expected a keras.Model. Received: model={model!r}")
    if not model.built or not model.weights:
        raise ValueError(
            "Expected a built model with weights: call it on data, or give it an Input. "
            f"Received: model={model.name}"
        )
    numbers_given = {
        "target": target,
        "tolerance": tolerance,
        "max_drop": max_drop,
        "min_speed": min_speed,
    }
    for name, value in numbers_given.items():
        if value is not None and not isinstance(value, numbers.Real):
            raise ValueError(f"Expected a number. Received: {name}={value!r}")
    if target is not None and tolerance is not None:
        raise ValueError(
            "Expected either `target` or `tolerance`. "
            f"Received: target={target}, tolerance={tolerance}"
        )
    if target is not None and not 1 <= target < math.inf:
        raise ValueError(f"Expected a target of at least 1. Received: target={target}")
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise ValueError(f"Expected a tolerance of at least 0. Received: tolerance={tolerance}")
    formats = [formats] if isinstance(formats, str) else list(formats)
    if not formats or not set(formats) <= set(FORMATS):
        raise ValueError(f"Expected formats among {FORMATS}. Received: formats={formats}")
    quantization.check_bits(bits)
    if max_drop is not None and (metric is None or not 0 <= max_drop < math.inf):
        raise ValueError(
            "Expected a max_drop of at least 0 together with a metric. "
            f"Received: max_drop={max_drop}, metric={metric}"
        )
    if max_drop is not None and tolerance is not None:
        raise ValueError(
            "Expected either `tolerance` or `max_drop`. "
            f"Received: tolerance={tolerance}, max_drop={max_drop}"
        )
    if min_speed is not None and (data is None or min_speed <= 0):
        raise ValueError(
            "Expected a positive min_speed, and data to measure it on. "
            f"Received: min_speed={min_speed}, data={'none' if data is None else 'some'}"
        )
    if renumber is not None:
        check_int("renumber", renumber, at_least=0)
        if metric is not None:
            raise ValueError(
                "Expected renumber without a metric, which measures models of the original ids. "
                f"Received: renumber={renumber}, metric={metric}"
            )
        if data is None:
            raise ValueError(
                "Expected data, which show the embedding that reads the model's ids, together with "
                f"renumber. Received: renumber={renumber}, data=None"
            )
