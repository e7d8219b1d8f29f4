"""Replaces the net of the power law metric by its mean, where all inputs have the same metric."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.layers import MetricAttention, PowerLawGraphAttention
from keras_tnattn.layers.base_transformer import BaseTransformerLayer

_SHARED = (
    "num_heads",
    "key_dim",
    "dropout",
    "query_dropout",
    "key_dropout",
    "rotary",
    "negative_slope",
)
_DENSE = ("query", "key", "value", "output")


@dataclasses.dataclass(frozen=True)
class MetricSpread:
    """How much the metric of one layer depends on the input.

    Attributes:
        path: Where the layer is in the model.
        spreads: The relative spread of each head, `sqrt(mean ||G - M||^2) / ||M||` with the mean
            `M` of the metrics `G` of all inputs and Frobenius norms.
        mean: `M`, float32 `(H, k, k)`.
        frozen: Whether all heads are below the bound, so that the layer is frozen.
        folded: Whether it is now a `keras.layers.MultiHeadAttention`.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.models.freezing import MetricSpread
        >>> MetricSpread("decoder_0/self_attention", (0.05, 0.02), np.ones((2, 4, 4)), True).largest
        0.05
    """

    path: str
    spreads: tuple[float, ...]
    mean: np.ndarray = dataclasses.field(repr=False)
    frozen: bool
    folded: bool = False

    @property
    def largest(self) -> float:
        """The largest spread of a head."""
        return max(self.spreads)


@dataclasses.dataclass(frozen=True)
class FrozenMetrics:
    """A model with frozen metrics, and what was measured.

    Attributes:
        model: The model with frozen layers. It shares no weights with the original.
        original: The model before, unchanged: to undo the freezing, go on with it.
        layers: The spreads, for each layer with a metric.
        loss_before: The mean loss of the original on the data, or `None` without labels.
        loss_after: That of the model.

    Example:
        ```python notest
        frozen = keras_tnattn.freeze_metric(model, batches, loss=loss)
        print(frozen)
        frozen.model.save("frozen.keras")
        ```
    """

    model: keras.Model
    original: keras.Model
    layers: tuple[MetricSpread, ...]
    loss_before: float | None
    loss_after: float | None

    def __str__(self) -> str:
        lines = []
        for layer in self.layers:
            state = "folded" if layer.folded else "frozen" if layer.frozen else "kept"
            spreads = ", ".join(f"{spread:.3f}" for spread in layer.spreads)
            lines.append(f"{layer.path}: {state}, spread of the metric by head {spreads}")
        if self.loss_before is not None:
            change = f"{self.loss_before:.4f} before, {self.loss_after:.4f} after"
            lines.append(f"loss: {change}")
        return "\n".join(lines)


def metric_spreads(
    model: keras.Model, data: Any, bound: float = 0.2, batch_size: int = 32
) -> tuple[MetricSpread, ...]:
    """Measures how much the metric of each power law attention of a model depends on the input.

    Args:
        model: A built model with `PowerLawGraphAttention` layers.
        data: Inputs as arrays, or an iterable of batches; labels are ignored.
        bound: Up to which spread a layer counts as frozen. Defaults to 0.2.
        batch_size: Inputs that are computed together, if `data` are arrays. Defaults to 32.

    Returns:
        A `MetricSpread` for each layer. With `causal_metric` the metrics of all positions count.

    Raises:
        ValueError: If the model has no such layer, there are no data or fewer than two inputs, they
            do not fit the model, or a metric is not finite.

    Example:
        >>> import numpy as np
        >>> import keras_tnattn
        >>> from keras_tnattn.models.freezing import metric_spreads
        >>> model = keras_tnattn.models.language_model(
        ...     50, model_dim=8, num_heads=2, feedforward_dim=8, residual_units=1, residual_dim=4
        ... )
        >>> spreads = metric_spreads(model, np.random.default_rng(0).integers(1, 50, (8, 6)))
        >>> [layer.path for layer in spreads]
        ['decoder_0/self_attention', 'decoder_1/self_attention']
    """
    return _measure(model, (inputs for inputs, _ in _batches(data, batch_size)), bound)


def freeze_metric(
    model: keras.Model,
    data: Any,
    bound: float = 0.2,
    loss: Callable[[Any, Any], Any] | None = None,
    fold: bool = True,
    batch_size: int = 32,
) -> FrozenMetrics:
    """Replaces the net of the power law metric by its mean, where all inputs have the same metric.

    After training, the metric `G_LM` of power law attention is often almost the same for all inputs
    (Gokden, https://arxiv.org/abs/2502.13502, section 4). A layer whose metric spreads by at most
    `bound` in every head becomes a `MetricAttention` with the mean metric as a weight: it costs one
    product of matrices more than scaled dot-product attention, keeps keys and values when it
    generates, and does not read ahead. In a `PLDRAttention(rotary=None)`, which has no LeakyReLU,
    the metric is folded into the kernel of the query, `W_q G`, and a plain
    `keras.layers.MultiHeadAttention` remains, provided that a `TransformerEncoder` or
    `TransformerDecoder` calls the layer: other code may call it in ways that Keras' layer does not
    take, such as with one input. Layers above the bound are kept.

    The model itself is not changed, so nothing is lost. Compile the new one before you train it.

    Args:
        model: A built model: a language model, a translator, or any other with
            `PowerLawGraphAttention` layers.
        data: Inputs as arrays, or `(inputs, labels)`, or an iterable of such batches. A few hundred
            inputs are enough.
        bound: Up to which spread a layer is frozen; `math.inf` freezes all. Defaults to 0.2.
        loss: Function of `(labels, outputs)`, for data with labels, of which the mean over the
            batches is reported. Defaults to the loss that the model is compiled with, if there is
            one.
        fold: Whether metrics are folded into kernels where that is possible. Defaults to `True`.
        batch_size: Inputs that are computed together, if `data` are arrays. Defaults to 32.

    Returns:
        A `FrozenMetrics`.

    Raises:
        ValueError: If no layer is below the bound, or in the cases of `metric_spreads`.

    Example:
        ```python notest
        frozen = keras_tnattn.freeze_metric(model, validation_batches)
        print(frozen)  # the spread of each head, and the loss before and after
        ```
    """
    batches = list(_batches(data, batch_size))
    layers = _measure(model, (inputs for inputs, _ in batches), bound)
    if not any(layer.frozen for layer in layers):
        spreads = ", ".join(f"{layer.path} {layer.largest:.3f}" for layer in layers)
        raise ValueError(
            f"Expected a metric that spreads by at most bound={bound} in all heads of a layer. "
            f"Received: {spreads}. The metric depends on the input; train the model further, or "
            "raise the bound and see what the loss becomes"
        )
    attentions = power_law_layers(model)
    holders = _holders(model)
    replacements = []
    measured = []
    for layer in layers:
        if layer.frozen:
            attention = attentions[layer.path]
            folds = fold and _can_fold(attention, holders[id(attention)])
            make = _make_folded if folds else _make_frozen
            replacements.append((attention, make(attention, layer.mean)))
            layer = dataclasses.replace(layer, folded=folds)
        measured.append(layer)
    new = _with_replacements(model, replacements)
    loss = loss or _compiled_loss(model)
    labeled = loss is not None and batches[0][1] is not None
    before, after = (_mean_loss(each, batches, loss) if labeled else None for each in (model, new))
    return FrozenMetrics(new, model, tuple(measured), before, after)


def power_law_layers(model: keras.Model) -> dict[str, PowerLawGraphAttention]:
    """Returns the `PowerLawGraphAttention` layers of a model by their paths.

    Raises:
        ValueError: If it has none.

    Example:
        >>> import keras_tnattn
        >>> from keras_tnattn.models.freezing import power_law_layers
        >>> model = keras_tnattn.models.translator(9, 9, model_dim=8, num_heads=2)
        >>> list(power_law_layers(model))
        ['encoder_0/attention', 'decoder_0/self_attention', 'decoder_0/cross_attention']
    """
    layers: dict[str, PowerLawGraphAttention] = {}
    visited = set()

    def visit(path: str, layer: keras.layers.Layer) -> None:
        if id(layer) in visited:
            return
        visited.add(id(layer))
        if isinstance(layer, PowerLawGraphAttention):
            layers[path] = layer
            return
        for inner in _inner_layers(layer):
            visit(f"{path}/{inner.name}" if path else inner.name, inner)

    visit("", model)
    if not layers:
        raise ValueError(
            "Expected a model with PowerLawGraphAttention layers. "
            f"Received: model={model.name} without one"
        )
    return layers


def _holders(model: keras.Model) -> dict[int, list[keras.layers.Layer]]:
    """Returns the layers of a model that directly contain each layer, by the id of the latter."""
    holders: dict[int, list[keras.layers.Layer]] = {}

    def visit(layer: keras.layers.Layer) -> None:
        for inner in _inner_layers(layer):
            is_new = id(inner) not in holders
            holders.setdefault(id(inner), []).append(layer)
            if is_new:
                visit(inner)

    visit(model)
    return holders


def _can_fold(layer: PowerLawGraphAttention, holders: Sequence[keras.layers.Layer]) -> bool:
    """Whether Keras' `MultiHeadAttention` computes the same, and can be called in its place."""
    is_linear = layer.negative_slope == 1 and layer.rotary is None
    # These call every attention as it takes it.
    return is_linear and all(isinstance(holder, BaseTransformerLayer) for holder in holders)


def _inner_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """The layers directly inside a layer: those of a model, or its attributes."""
    if isinstance(layer, keras.Model):
        return list(layer.layers)
    values = [*vars(layer).values()]
    if keras.backend.backend() == "torch":  # where layers are modules, held apart
        values += list(layer.children())
    lists = [value for value in values if isinstance(value, list | tuple)]
    values += [entry for value in lists for entry in value]
    return [value for value in values if isinstance(value, keras.layers.Layer)]


def _batches(data: Any, batch_size: int) -> Iterator[tuple[Any, Any]]:
    """Yields inputs and labels, which may be `None`."""
    check_int("batch_size", batch_size)
    if not isinstance(data, np.ndarray | dict | tuple) and not ops.is_tensor(data):
        if isinstance(data, str | bytes) or not isinstance(data, Iterable):
            raise ValueError(f"Expected arrays or an iterable of batches. Received: data={data!r}")
        for batch in data:
            pair = isinstance(batch, tuple | list) and len(batch) > 1
            yield (batch[0], batch[1]) if pair else (batch, None)
        return
    inputs, labels = data[:2] if isinstance(data, tuple) else (data, None)
    for start in range(0, len(keras.tree.flatten(inputs)[0]), batch_size):

        def cut(array: Any, start: int = start) -> Any:
            return array[start : start + batch_size]

        part = None if labels is None else keras.tree.map_structure(cut, labels)
        yield keras.tree.map_structure(cut, inputs), part


class _Moments:
    """Sums of metrics and of their squares, for each head."""

    def __init__(self) -> None:
        self.count = 0
        self.sum: Any = 0.0
        self.squares: Any = 0.0

    def add(self, metrics: Any) -> None:
        """Adds metrics `(B, H, k, k)` or, of single positions, `(B, H, T, k, k)`."""
        values = ops.convert_to_numpy(metrics).astype("float64")
        if values.ndim == 5:
            values = np.moveaxis(values, 2, 1).reshape(-1, *values.shape[1:2], *values.shape[3:])
        self.count += len(values)
        self.sum = self.sum + values.sum(0)
        self.squares = self.squares + np.square(values).sum((0, 2, 3))

    @property
    def mean(self) -> np.ndarray:
        return self.sum / self.count

    @property
    def spreads(self) -> tuple[float, ...]:
        size = np.square(self.mean).sum((1, 2))
        variance = np.maximum(self.squares / self.count - size, 0)
        return tuple(float(s) for s in np.sqrt(variance / np.maximum(size, 1e-300)))


@contextlib.contextmanager
def _recording(moments: dict[str, _Moments], layers: dict[str, Any]) -> Iterator[None]:
    """Adds the metrics that the layers compute, as long as they run without compilation."""

    def recorder(path: str, compute: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compute)
        def record(*args: Any, **kwargs: Any) -> Any:
            deductive = compute(*args, **kwargs)
            moments[path].add(deductive["G_LM"])
            return deductive

        return record

    for path, layer in layers.items():
        layer.deductive = recorder(path, layer.deductive)
    try:
        yield
    finally:
        for layer in layers.values():
            del layer.deductive


def _measure(model: keras.Model, batches: Iterable[Any], bound: float) -> tuple[MetricSpread, ...]:
    if not bound > 0:  # nor NaN
        raise ValueError(f"Expected a positive bound. Received: bound={bound!r}")
    layers = power_law_layers(model)
    moments = {path: _Moments() for path in layers}
    with _recording(moments, layers):
        for inputs in batches:
            model(inputs, training=False)
    count = min(each.count for each in moments.values())
    if count < 2:
        raise ValueError(
            f"Expected data of at least two inputs, to compare their metrics. Received: {count}"
        )
    results = []
    for path, each in moments.items():
        spreads = each.spreads
        if not np.isfinite(spreads).all():
            raise ValueError(f"Expected finite metrics. Received: {path} with NaN or infinity")
        mean = each.mean.astype("float32")
        results.append(MetricSpread(path, spreads, mean, max(spreads) <= bound))
    return tuple(results)


def _with_replacements(
    model: keras.Model, replacements: Sequence[tuple[keras.layers.Layer, keras.layers.Layer]]
) -> keras.Model:
    """Returns a copy of a model in which some layers are others, with their weights."""
    serialized = {}
    with contextlib.ExitStack() as stack:
        for number, (old, new) in enumerate(replacements):
            # A name that is found again in the config of whatever holds the layer.
            tag = f"replaced_{number}_of_{id(model)}"
            serialized[tag] = keras.saving.serialize_keras_object(new)
            stack.enter_context(_named_in_config(old, tag))
        config = keras.saving.serialize_keras_object(model)
    places = dict.fromkeys(serialized, 0)

    def exchange(part: Any) -> Any:
        if isinstance(part, dict):
            inner = part.get("config")
            tag = inner.get("name") if isinstance(inner, dict) else None
            if tag in serialized:
                places[tag] += 1
                return {**part, **serialized[tag]}
            return {key: exchange(value) for key, value in part.items()}
        if isinstance(part, list | tuple):
            return type(part)(exchange(value) for value in part)
        return part

    config = exchange(config)
    config.pop("compile_config", None)
    if not all(places.values()):
        raise ValueError(
            f"Expected a model whose config has its attention layers. Received: {model.name} "
            f"({type(model).__name__}), which creates them in its own code"
        )
    if max(places.values()) > 1:
        raise ValueError(
            "Expected a model in which each attention is in one place: of a layer that several "
            f"layers share, Keras makes several. Received: {model.name} with a shared attention"
        )
    copy = keras.saving.deserialize_keras_object(config)
    attentions = power_law_layers(model)
    replaced = {id(old) for old, _ in replacements}
    ours = [layer for layer in attentions.values() if id(layer) in replaced]
    theirs = _at(copy, [path for path, layer in attentions.items() if id(layer) in replaced])
    new_of = {id(old): new for old, new in replacements}
    for old, layer in zip(ours, theirs, strict=True):
        layer.set_weights(new_of[id(old)].get_weights())
    for old, new in zip(_weights_outside(model, ours), _weights_outside(copy, theirs), strict=True):
        # A copy: variables of JAX that share an array lose it when one of them is used up.
        new.assign(np.array(ops.convert_to_numpy(old)))
    return copy


@contextlib.contextmanager
def _named_in_config(layer: keras.layers.Layer, name: str) -> Iterator[None]:
    config = {**layer.get_config(), "name": name}
    layer.get_config = lambda: config
    try:
        yield
    finally:
        del layer.get_config


def _at(model: keras.Model, paths: Sequence[str]) -> list[keras.layers.Layer]:
    """Returns the layers at some paths of `power_law_layers`, in a model with the same names."""
    layers = []
    for path in paths:
        layer: keras.layers.Layer = model
        for name in path.split("/"):
            layer = next(inner for inner in _inner_layers(layer) if inner.name == name)
        layers.append(layer)
    return layers


def _weights_outside(
    model: keras.Model, layers: Sequence[keras.layers.Layer]
) -> list[keras.Variable]:
    """Returns the weights of a model but those of some layers."""
    theirs = {id(weight) for layer in layers for weight in layer.weights}
    return [weight for weight in model.weights if id(weight) not in theirs]


def _input_shapes(layer: PowerLawGraphAttention) -> list[tuple[int | None, ...]]:
    """The shapes of query, value and key."""
    denses = (layer.query_dense, layer.value_dense, layer.key_dense)
    return [(None, None, dense.kernel.shape[0]) for dense in denses]


def _make_frozen(layer: PowerLawGraphAttention, mean: np.ndarray) -> MetricAttention:
    """Returns an attention with the weights of a layer and a fixed metric."""
    options = {name: getattr(layer, name) for name in _SHARED}
    dtype = layer.dtype_policy
    frozen = MetricAttention(**options, use_metric=True, dtype=dtype, name=layer.name)
    frozen.build(*_input_shapes(layer))
    for part in _DENSE:
        of_frozen, ours = (getattr(each, f"{part}_dense") for each in (frozen, layer))
        of_frozen.set_weights(ours.get_weights())
    frozen.set_metric(mean)
    return frozen


def _make_folded(
    layer: PowerLawGraphAttention, mean: np.ndarray
) -> keras.layers.MultiHeadAttention:
    """Returns Keras' attention with `W_q G` for the kernel of the query."""
    heads, dim = layer.num_heads, layer.head_dim
    folded = keras.layers.MultiHeadAttention(
        heads, dim, dropout=layer.dropout, dtype=layer.get_config()["dtype"], name=layer.name
    )
    folded.build(*_input_shapes(layer))
    kernels = {part: getattr(layer, f"{part}_dense").get_weights() for part in _DENSE}
    for part in ("query", "key", "value"):
        kernel, bias = kernels[part]
        kernel, bias = kernel.reshape(-1, heads, dim), bias.reshape(heads, dim)
        if part == "query":
            kernel = np.einsum("dhk,hkl->dhl", kernel.astype("float64"), mean)
            bias = np.einsum("hk,hkl->hl", bias.astype("float64"), mean)
        getattr(folded, f"{part}_dense").set_weights([kernel, bias])
    kernel, bias = kernels["output"]
    folded.output_dense.set_weights([kernel.reshape(heads, dim, -1), bias])
    return folded


def _compiled_loss(model: keras.Model) -> Callable[[Any, Any], Any] | None:
    loss = getattr(model, "loss", None) if getattr(model, "compiled", False) else None
    return keras.losses.get(loss) if isinstance(loss, str) else loss if callable(loss) else None


def _mean_loss(model: keras.Model, batches: list[tuple[Any, Any]], loss: Any) -> float:
    values = [
        float(np.mean(ops.convert_to_numpy(loss(labels, model(inputs, training=False)))))
        for inputs, labels in batches
    ]
    sizes = [len(keras.tree.flatten(inputs)[0]) for inputs, _ in batches]
    return float(np.average(values, weights=sizes))
