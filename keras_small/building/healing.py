"""Fine-tunes a compressed model with the original model's outputs as targets."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.asked.data import (
    are_arrays,
    as_arrays,
    inputs_and_labels,
    iterate,
    number_of_batches,
)
from keras_small.asked.errors import data_errors
from keras_small.asked.inputs import number_of_inputs
from keras_small.asked.progress import tell
from keras_small.asked.renumbering import Renumbering
from keras_small.building.rounding import AnyRounding, rounded_values
from keras_small.survey.running import are_probabilities, numbers_of
from keras_tnattn.checks import check_int
from keras_tnattn.typing import Tensor


@dataclasses.dataclass(frozen=True)
class Healing:
    """How a small model is trained; the attributes are arguments of `CompressionResult.heal`."""

    epochs: int
    learning_rate: float
    batch_size: int
    label_weight: float
    loss: Any
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.outputs and self.label_weight:
            raise ValueError(
                "Expected either outputs of layers as targets or labels. "
                f"Received: outputs={list(self.outputs)}, label_weight={self.label_weight}"
            )
        check_int("epochs", self.epochs)
        check_int("batch_size", self.batch_size)
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(
                f"Expected a positive number. Received: learning_rate={self.learning_rate}"
            )

    @property
    def imitates_outputs(self) -> bool:
        """Whether the targets are the original's outputs, and no labels or loss of one's own."""
        return self.loss is None and self.label_weight <= 0


class _Student(keras.Model):
    """Trains a model without dropout, and leaves it uncompiled, without an optimizer's state."""

    def __init__(self, model: keras.Model, kernels: Sequence[AnyRounding] = ()) -> None:
        super().__init__(name="student")  # TensorFlow refuses the default, _student
        self.model = model
        # Not by `setattr`, which would track the layers of integers.
        self.__dict__["kernels"] = tuple(kernels)

    def call(self, inputs: Any) -> Any:
        from keras_small.survey.graph_names import rename_for_graphs

        with rename_for_graphs(self.model), contextlib.ExitStack() as stack:
            if kernels := self.__dict__["kernels"]:
                stack.enter_context(keras.StatelessScope(rounded_values(self.model, kernels)))
            return self.model(inputs, training=False)


def logits_divergence(targets: Tensor, outputs: Tensor) -> Tensor:
    """Kullback-Leibler divergence of the distributions that two tensors of logits stand for.

    A loss for `heal` and a model that returns logits:
    `sum_c p_c (log p_c - log q_c)` with `p = softmax(targets)` and `q = softmax(outputs)`.

    Args:
        targets: Tensor `(..., C)`, the logits of the original.
        outputs: Tensor `(..., C)`, the logits of the small model.

    Returns:
        Tensor `(...)`.

    Example:
        >>> import numpy as np
        >>> from keras_small import logits_divergence
        >>> float(logits_divergence(np.zeros((1, 3), "float32"), np.ones((1, 3), "float32"))[0])
        0.0
    """
    log_p, log_q = (ops.log_softmax(ops.convert_to_tensor(x)) for x in (targets, outputs))
    return ops.sum(ops.exp(log_p) * (log_p - log_q), axis=-1)


def heal(
    model: keras.Model,
    teacher: keras.Model,
    dataset: Any,
    how: Healing,
    renumbering: Renumbering,
    kernels: Sequence[AnyRounding] = (),
) -> list[float]:
    """Trains `model` towards the outputs of `teacher`, both as at inference, without dropout.

    The targets are `(1 - w) teacher(x) + w onehot(y)`; with outputs that are probabilities (none
    negative, rows of sum 1) the loss is the Kullback-Leibler divergence, otherwise the mean squared
    error. The learning rate of Adam rises over the first twentieth of the steps, then falls to 0.
    For an iterable without `len`, whose end is not known, it is constant in an epoch and decreases
    in the second half of the epochs.

    Returns the mean loss of each epoch; arguments and errors are those of `CompressionResult.heal`.
    `renumbering` converts the teacher's inputs to those of `model`; `kernels` are trained as
    integers.
    """
    if how.epochs > 1 and isinstance(dataset, Iterator):
        raise ValueError(
            "Expected a dataset that can be iterated over in every epoch, such as arrays or a data "
            f"set. Received: a {type(dataset).__name__}, which can be iterated over only once, and "
            f"epochs={how.epochs}"
        )
    if how.outputs:
        model, teacher = (_with_outputs(x, how.outputs) for x in (model, teacher))
    rate = how.learning_rate
    hint = f"Look for NaN in the data, or choose a smaller learning_rate than {rate}"
    start = time.perf_counter()
    losses = []
    optimizer = keras.optimizers.Adam(rate)
    rng = np.random.default_rng(0)
    student = _Student(model, kernels)
    answers = _Teacher(teacher)
    if not student.trainable_variables:
        raise ValueError(f"Expected trainable weights. Received: {model.name}, which is frozen")
    num_inputs = number_of_inputs(teacher)
    steps = how.epochs * _number_of_batches(dataset, how.batch_size, num_inputs)
    step = 0
    for epoch in range(how.epochs):
        total = 0.0
        count = 0
        for inputs, labels in _batches(dataset, how, num_inputs, rng):
            with data_errors():
                targets = answers(inputs)
            probabilities = are_probabilities(targets)
            if how.label_weight:
                targets = _mix_labels(targets, labels, how.label_weight, probabilities)
            if not student.compiled:
                losses_of_outputs = _losses(how, targets)
                student.compile(optimizer, losses_of_outputs)
                # Or TensorFlow traces the first step twice.
                optimizer.build(student.trainable_variables)
            if steps:
                rise = (step + 1) / (0.05 * steps)
                fall = (steps - step) / (0.95 * steps)
                optimizer.learning_rate = rate * min(1.0, rise, fall)
                step += 1
            value = float(np.ravel(student.train_on_batch(renumbering(inputs), targets))[0])
            if not np.isfinite(value):
                raise ValueError(f"The loss became {value} in epoch {epoch + 1} of healing. {hint}")
            total += value
            count += 1
        if not count:
            raise ValueError("Expected a dataset of at least one batch. Received: none")
        if not all(bool(ops.all(ops.isfinite(weight))) for weight in model.trainable_weights):
            raise ValueError(
                f"Weights became infinite or NaN in epoch {epoch + 1} of healing. {hint}"
            )
        losses.append(total / count)
        seconds = time.perf_counter() - start
        tell(
            "healing, epoch %d of %d: loss %.5f (%.0f s)",
            epoch + 1,
            how.epochs,
            losses[-1],
            seconds,
        )
        if not steps:
            remaining_share = 1 - (epoch + 1) / (how.epochs + 1)
            optimizer.learning_rate = rate * min(1.0, 2 * remaining_share)
    return losses


def _with_outputs(model: keras.Model, names: Sequence[str]) -> keras.Model:
    """Returns a model of the same layers that also returns the outputs of some of them."""
    known = [layer.name for layer in model.layers]
    missing = [name for name in names if name not in known]
    if missing or not getattr(model, "inputs", None):
        raise ValueError(
            "Expected names of layers of a functional or sequential model, which has "
            f"{', '.join(known)}. Received: outputs={list(names)}"
        )
    hidden = [keras.tree.flatten(model.get_layer(name).output)[0] for name in names]
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    return keras.Model(inputs, [*model.outputs, *hidden])


def _losses(how: Healing, targets: Any) -> Any:
    """Returns the loss, or one for each output of the model and of each hidden layer."""

    def loss_of(target: Any) -> Any:
        if not numbers_of(target):
            return None  # there is none of texts
        if how.loss is logits_divergence and are_probabilities(target):
            raise ValueError(
                "Expected a model that returns logits. Received: loss=logits_divergence, and "
                "outputs that are probabilities. Leave the loss out: for them it is the "
                "Kullback-Leibler divergence"
            )
        return how.loss or ("kl_divergence" if are_probabilities(target) else "mse")

    if not how.outputs:
        if len(numbers_of(targets)) == len(keras.tree.flatten(targets)):
            return loss_of(targets)
        return keras.tree.map_structure(loss_of, targets)
    count = len(targets) - len(how.outputs)
    losses = [loss_of(target) for target in targets[:count]]
    return losses + [_relative_error for _ in how.outputs]


def _relative_error(targets: Tensor, outputs: Tensor) -> Tensor:
    """Returns the squared errors relative to the mean square of the targets."""
    squares = ops.mean(ops.square(targets)) + keras.config.epsilon()
    return ops.mean(ops.square(targets - outputs), axis=-1) / squares


class _Teacher:
    """Computes the outputs of a model without a change of the model."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.compiled = _Student(model)
        self.has_state: bool | None = None

    def __call__(self, inputs: Any) -> Any:
        if self.has_state is False:
            return self.compiled.predict_on_batch(inputs)
        with keras.StatelessScope() as scope:
            outputs = self.model(inputs, training=False)
        # Such as a stateful recurrent layer, whose state a compiled call would change.
        self.has_state = bool(scope.state_mapping)
        return keras.tree.map_structure(ops.convert_to_numpy, outputs)


def _number_of_batches(dataset: Any, batch_size: int, num_inputs: int | None) -> int:
    """Returns the number of batches of an epoch, or 0 if it is not known."""
    if are_arrays(dataset):
        inputs, _ = inputs_and_labels(dataset, num_inputs)
        return math.ceil(len(keras.tree.flatten(inputs)[0]) / batch_size)
    return number_of_batches(dataset)


def _batches(
    dataset: Any, how: Healing, num_inputs: int | None, rng: np.random.Generator
) -> Iterator[tuple[Any, np.ndarray | None]]:
    """Yields inputs and, if they count, labels, which can otherwise have any structure."""
    if not are_arrays(dataset):
        for batch in iterate(dataset):
            inputs, labels = inputs_and_labels(as_arrays(batch), num_inputs)
            to_numpy = ops.convert_to_numpy
            yield (
                keras.tree.map_structure(to_numpy, inputs),
                None if labels is None or not how.label_weight else to_numpy(labels),
            )
        return
    inputs, labels = inputs_and_labels(dataset, num_inputs)
    inputs = keras.tree.map_structure(np.asarray, inputs)
    labels = None if labels is None or not how.label_weight else np.asarray(labels)
    order = rng.permutation(len(keras.tree.flatten(inputs)[0]))
    for start in range(0, len(order), how.batch_size):
        rows = order[start : start + how.batch_size]
        chosen = keras.tree.map_structure(lambda a, rows=rows: a[rows], inputs)
        yield chosen, None if labels is None else labels[rows]


def _mix_labels(
    targets: np.ndarray, labels: np.ndarray | None, weight: float, probabilities: bool
) -> np.ndarray:
    if labels is None or not probabilities:
        raise ValueError(
            "Expected labels, and a model whose outputs are probabilities, for "
            f"label_weight={weight}"
        )
    one_hot = np.eye(targets.shape[-1], dtype=targets.dtype)[np.asarray(labels).astype(int)]
    return (1 - weight) * targets + weight * one_hot.reshape(targets.shape)
