"""Time graphs: the weights of edges between time-steps, and products with their adjacency.

The `L` time-steps of a sequence are the nodes of a graph, and the weight `g(d)` of an edge depends
on the distance `d` in time (sections 2.2 to 2.4 of Xu et al., "A Tensorized Spectral Attention
Mechanism for Efficient Natural Language Processing"):

    Geometric      g(d) = c^d                  the papers' graph, with damping 0 <= c < 1
    Exponential    g(d) = exp(-s d^q)          of a distance s d^q whose s and q can be trained
    Window         g(d) = 1 for d <= w, else 0
    PowerLaw       g(d) = d^-p

A node receives from later nodes (`A[i, j] = g(j - i)` for `j > i`), from earlier nodes (`A^T`,
which is causal), or from both (`Omega = (A + A^T) / 2`).

With geometric weights the product with the adjacency is a first-order linear recurrence: the sums
over all later time-steps obey `h[i] = x[i+1] + c h[i+1]`. `time_filter` cuts the sequence into
blocks of `b = 32` steps. Within a block, the sums are a product with a triangular `(b, b)` matrix.
What a block receives from the blocks after it is the same recurrence over the totals of the blocks,
with damping `c^b`; it is repeated until one block is left or the damping is 0 in float32.
"""

import dataclasses
import math
import numbers
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.ops.blocks import BlockBand
from keras_tnattn.ops.precision import at_least_float32, matmul
from keras_tnattn.typing import Tensor

_FLOAT32_HALF_ULP = 2.0**-24
_FLOAT32_SMALLEST = 2.0**-149
_BLOCK = 32
_DIRECTIONS = {"later": ("later",), "earlier": ("earlier",), "both": ("later", "earlier")}
# Larger exponents are clipped: exp(-100) changes no sum in floating point.
_LARGEST_EXPONENT = 100.0
# The upper limit of a trained damping; a sigmoid alone would reach 1 in float32.
_LARGEST_DAMPING = 1 - 2.0**-12


class TimeGraph:
    """A graph over time: the weight `g(d)` of an edge depends on the distance `d`.

    Attributes:
        trainable: Whether a layer trains the numbers of the graph, which start from those given.
        bandwidth: Largest distance that matters in float32; `None` if there is none, or if it
            changes in training.

    Example:
        >>> [float(g) for g in Geometric(0.5).weights(ops.arange(1.0, 4.0))]
        [0.5, 0.25, 0.125]
    """

    trainable = False
    bandwidth: int | None = None

    def weights(self, distance: Tensor) -> Tensor:
        """Returns `g` of a float tensor of distances, all at least 1."""
        raise NotImplementedError

    def start_values(self) -> dict[str, float]:
        """Returns the unbounded numbers from which training starts, by the names of the weights."""
        return {}

    @classmethod
    def from_values(cls, **values: Tensor) -> "TimeGraph":
        """Returns the graph of scalar tensors such as `start_values` returns."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "TimeGraph":
        return cls(**config)


@keras.saving.register_keras_serializable(package="keras_tnattn")
@dataclasses.dataclass(frozen=True)
class Geometric(TimeGraph):
    """Time graph with weights `g(d) = c^d`.

    Attributes:
        damping: The damping `c`: a float in [0, 1), or a scalar tensor. Defaults to 0.9 (the papers
            give no number).
        trainable: Whether a layer trains the damping, within (0, 1). Defaults to `False`.

    Example:
        >>> Geometric(0.5).bandwidth, Geometric(0.5, trainable=True).bandwidth
        (25, None)
    """

    damping: Tensor = 0.9
    trainable: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.damping, numbers.Real):
            damping = check_damping(float(self.damping))
            object.__setattr__(self, "damping", damping)
            if self.trainable and not 0 < damping < _LARGEST_DAMPING:
                raise ValueError(
                    f"Expected a damping in (0, {_LARGEST_DAMPING:.5f}) to start training from. "
                    f"Received: damping={damping}"
                )

    @property
    def bandwidth(self) -> int | None:  # type: ignore[override]
        """Largest distance that matters in float32; `None` if the damping is trained."""
        fixed = isinstance(self.damping, numbers.Real) and not self.trainable
        return bandwidth(float(self.damping)) if fixed else None

    def weights(self, distance: Tensor) -> Tensor:
        """Returns `g` of a float tensor of distances, all at least 1."""
        return ops.power(_like(self.damping, distance), distance)

    def start_values(self) -> dict[str, float]:
        share = self.damping / _LARGEST_DAMPING
        return {"damping_logits": math.log(share / (1 - share))}

    @classmethod
    def from_values(cls, **values: Tensor) -> "Geometric":
        return cls(_LARGEST_DAMPING * ops.sigmoid(values["damping_logits"]))


@keras.saving.register_keras_serializable(package="keras_tnattn")
@dataclasses.dataclass(frozen=True)
class Exponential(TimeGraph):
    """Time graph with weights `g(d) = exp(-s d^q)`, `s, q > 0`.

    `q = 1` is `Geometric(exp(-s))`; below 1 the weights have a longer tail, above 1 a shorter one.

    Attributes:
        rate: The rate `s`: a positive number or scalar tensor.
        power: The power `q` of the distance: a positive number or scalar tensor. Defaults to 1.
        trainable: Whether a layer trains both. Defaults to `False`.

    Example:
        >>> tuple(Exponential(0.5).weights(keras.ops.ones(1)).shape)
        (1,)
    """

    rate: Tensor
    power: Tensor = 1.0
    trainable: bool = False

    def __post_init__(self) -> None:
        _check_positive(self, "rate", "power")

    def weights(self, distance: Tensor) -> Tensor:
        """Returns `g` of a float tensor of distances, all at least 1."""
        grown = ops.power(distance, _like(self.power, distance))
        exponent = _like(self.rate, distance) * grown
        # Without the minimum, the gradient could be 0 times infinity.
        return ops.exp(-ops.minimum(exponent, ops.full_like(exponent, _LARGEST_EXPONENT)))

    def start_values(self) -> dict[str, float]:
        return {"log_rate": math.log(self.rate), "log_power": math.log(self.power)}

    @classmethod
    def from_values(cls, **values: Tensor) -> "Exponential":
        return cls(ops.exp(values["log_rate"]), ops.exp(values["log_power"]))


@keras.saving.register_keras_serializable(package="keras_tnattn")
@dataclasses.dataclass(frozen=True)
class Window(TimeGraph):
    """Time graph with weights `g(d) = 1` for `d <= w`, else 0.

    Attributes:
        size: The size `w` of the window, a positive int.

    Example:
        >>> Window(3).bandwidth
        3
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", check_int("window", self.size))

    @property
    def bandwidth(self) -> int:  # type: ignore[override]
        """Largest distance with a weight."""
        return self.size

    def weights(self, distance: Tensor) -> Tensor:
        """Returns `g` of a float tensor of distances, all at least 1."""
        return ops.cast(distance <= self.size, distance.dtype)


@keras.saving.register_keras_serializable(package="keras_tnattn")
@dataclasses.dataclass(frozen=True)
class PowerLaw(TimeGraph):
    """Time graph with weights `g(d) = d^-p`.

    Attributes:
        exponent: The exponent `p`, a positive float.

    Example:
        >>> PowerLaw(1.5).bandwidth is None
        True
    """

    exponent: float

    def __post_init__(self) -> None:
        _check_positive(self, "exponent")

    def weights(self, distance: Tensor) -> Tensor:
        """Returns `g` of a float tensor of distances, all at least 1."""
        return ops.power(distance, _like(-self.exponent, distance))


def _check_positive(graph: TimeGraph, *names: str) -> None:
    """Refuses values that are neither tensors nor positive numbers, and makes numbers floats."""
    for name in names:
        value = getattr(graph, name)
        if isinstance(value, numbers.Real) and float(value) > 0:
            object.__setattr__(graph, name, float(value))
        elif not ops.is_tensor(value):
            raise ValueError(f"Expected a positive number. Received: {name}={value!r}")


def as_time_graph(graph: Any) -> TimeGraph:
    """Returns a time graph as it is, one of a saved config, and `Geometric` of a damping.

    Args:
        graph: A time graph, what `keras.saving.serialize_keras_object` returned for one, or a
            damping: a number or scalar tensor.

    Raises:
        TypeError: If `graph` is none of these.

    Example:
        >>> as_time_graph(0.5)
        Geometric(damping=0.5, trainable=False)
    """
    if isinstance(graph, dict):
        graph = keras.saving.deserialize_keras_object(graph)
    if isinstance(graph, TimeGraph):
        return graph
    if isinstance(graph, numbers.Real) or getattr(graph, "shape", None) == ():
        return Geometric(graph)
    raise TypeError(
        "Expected a damping or a graph of keras_tnattn.ops.time_graph, such as Window(3). "
        f"Received: time_graph={graph!r}"
    )


def time_adjacency(
    length: Tensor,
    graph: Any,
    receive_from: str = "later",
    dtype: str = "float32",
    offset: Tensor = 0,
) -> Tensor:
    """Returns the adjacency of a time graph.

    Args:
        length: Number of time-steps `L`; an int or a scalar int tensor.
        graph: A time graph, or the damping of a geometric one.
        receive_from: `"later"` (default) for `A[i, j] = g(j - i)`, `j > i`; `"earlier"` for its
            transpose; `"both"` for `Omega = (A + A^T) / 2`. The diagonal is 0.
        dtype: The dtype of the result. Defaults to `"float32"`.
        offset: Row `i` stands for time-step `offset + i`, which gives a block off the diagonal.
            Defaults to 0.

    Returns:
        Tensor `(L, L)`.

    Example:
        >>> keras.ops.convert_to_numpy(time_adjacency(3, 0.5))[0].tolist()
        [0.0, 0.5, 0.25]
    """
    graph = as_time_graph(graph)
    if ops.is_tensor(length):
        length = ops.cast(length, "int32")
    elif isinstance(length, np.integer):
        length = int(length)
    # What each row has from its first to its last time-step is the row below, a place further on.
    distance = offset + length - ops.arange(2 * length + 1, dtype="int32")
    distance = {"later": -distance, "earlier": distance, "both": ops.abs(distance)}[
        check_receive_from(receive_from)
    ]
    # Compute powers in float32: those of a damping rounded to half precision would be far off.
    compute = at_least_float32(dtype)
    # Compute each distinct weight once and copy it: a power costs many times more than the product
    # that it damps.
    weights = graph.weights(ops.cast(ops.maximum(distance, 1), compute))
    weights = ops.where(distance > 0, weights, ops.zeros_like(weights))
    weights = ops.cast(0.5 * weights if receive_from == "both" else weights, dtype)
    if keras.backend.backend() == "jax":
        # XLA makes the copy anew wherever it is used, for each sequence of a batch: looking weights
        # up is then several times cheaper than the divisions that a reshaped tile needs.
        steps = ops.arange(length, dtype="int32")
        return ops.take(weights, length + steps[None, :] - steps[:, None], axis=0)
    rows = ops.tile(weights, (length,))[length:]
    return ops.reshape(rows, (length, 2 * length))[:, :length]


def _like(value: Tensor, x: Tensor) -> Tensor:
    """Converts a number or scalar tensor directly to the dtype of `x`, not through float32."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    if isinstance(value, numbers.Real):
        return ops.convert_to_tensor(float(value), dtype)
    return ops.cast(value, dtype)


def bandwidth(damping: float) -> int:
    """Returns the distance beyond which `c^distance` is below half a float32 rounding error.

    `w = 1 + ceil(ln(2^-24) / ln(c))`.

    Example:
        >>> bandwidth(0.5), bandwidth(0.9), bandwidth(0.97)
        (25, 159, 548)
    """
    check_damping(damping)
    if damping == 0:
        return 1
    return 1 + math.ceil(math.log(_FLOAT32_HALF_ULP) / math.log(damping))


def check_damping(damping: float) -> float:
    """Returns `damping` as a float if it is in [0, 1), and raises a `ValueError` otherwise.

    Example:
        >>> check_damping(0)
        0.0
    """
    if not 0 <= damping < 1:
        raise ValueError(f"Expected a damping in [0, 1). Received: damping={damping}")
    return float(damping)


def check_receive_from(receive_from: str) -> str:
    """Returns `receive_from` if it is valid, and raises a `ValueError` otherwise.

    Example:
        >>> check_receive_from("both")
        'both'
    """
    if receive_from not in _DIRECTIONS:
        raise ValueError(
            f"Expected one of {tuple(_DIRECTIONS)}. Received: receive_from={receive_from!r}"
        )
    return receive_from


def time_filter(x: Tensor, graph: Any, receive_from: str = "later") -> Tensor:
    """Multiplies by the adjacency of a time graph.

    For a geometric graph with a fixed damping the adjacency is never formed, and the cost is
    `2 b + 4` FLOPs for each entry of `x` with `b = 32`, for any `L`. A window is evaluated as a
    band, for about `3 w` FLOPs per entry; any other graph costs `2 L` FLOPs per entry. Inputs in
    half precision are computed in float32.

    Args:
        x: Float tensor `(B, L, J)`; `B` and `L` may be unknown.
        graph: A time graph, or the damping of a geometric one, `0 <= c < 1`.
        receive_from: `"later"` (default) for `A X`: time-step `i` receives `g(j - i) x[j]` from
            every `j > i`; `"earlier"` for `A^T X`; `"both"` for `Omega X = (A + A^T) X / 2`.

    Returns:
        Tensor of the shape and dtype of `x`.

    Raises:
        ValueError: For a damping outside [0, 1) or an unknown `receive_from`.

    Example:
        >>> tuple(time_filter(keras.ops.ones((1, 3, 1)), 0.5).shape)
        (1, 3, 1)
    """
    graph = as_time_graph(graph)
    directions = _DIRECTIONS[check_receive_from(receive_from)]
    dtype = keras.backend.standardize_dtype(x.dtype)
    precise = at_least_float32(dtype)
    x = ops.cast(x, precise)
    if isinstance(graph, Geometric) and graph.bandwidth is not None:
        # c^d = c c^(d - 1): the sums start from the power 0, so that nothing is divided by c.
        damping = float(graph.damping)
        y = _damped_sums(x, damping, damping / len(directions), directions)
    elif graph.bandwidth is None:
        y = matmul(time_adjacency(ops.shape(x)[1], graph, receive_from, precise), x)
    else:
        y = _band_product(x, graph, graph.bandwidth, receive_from, precise)
    return ops.cast(y, dtype)


def _band_product(
    x: Tensor, graph: TimeGraph, bandwidth: int, receive_from: str, dtype: str
) -> Tensor:
    block, num_offsets = max(bandwidth, _BLOCK), 1
    band = BlockBand(ops.shape(x), block, num_offsets)
    side = "both" if receive_from == "both" else "earlier"
    part = {"both": "symmetric", "earlier": "lower", "later": "upper"}[receive_from]
    diagonals = [
        time_adjacency(block, graph, side, dtype, o * block) for o in range(num_offsets + 1)
    ]
    return band.join(band.multiply(diagonals, band.split(x), part))


def _damped_sums(x: Tensor, damping: float, scale: float, directions: tuple[str, ...]) -> Tensor:
    """Returns `scale` times the sums of `c^(distance - 1) x` over the given directions."""
    batch, length, width = ops.shape(x)
    if damping < _FLOAT32_SMALLEST:
        # Only the nearest neighbor contributes.
        neighbors = {
            "later": lambda: ops.pad(x, [(0, 0), (0, 1), (0, 0)])[:, 1:],
            "earlier": lambda: ops.pad(x, [(0, 0), (1, 0), (0, 0)])[:, :-1],
        }
        return scale * sum(neighbors[direction]() for direction in directions)
    known = isinstance(length, int)
    block = max(min(_BLOCK, length), 1) if known else _BLOCK
    count = -(-length // block)
    if not known or count * block > length:
        x = ops.pad(x, [(0, 0), (0, count * block - length), (0, 0)])
    blocks = ops.reshape(x, (batch, count, block, width))

    steps = np.arange(block)
    distance = steps[None, :] - steps[:, None]
    later = np.where(distance > 0, damping ** np.maximum(distance - 1, 0), 0.0)
    powers = damping**steps
    # Within a block; from a block to its total; from the totals to each step of a block.
    maps = {"later": (later, powers, powers[::-1]), "earlier": (later.T, powers[::-1], powers)}
    within, gather, spread = zip(*(maps[direction] for direction in directions), strict=True)

    def constant(matrix: Tensor) -> Tensor:
        return ops.convert_to_tensor(matrix, x.dtype)

    sums = matmul(constant(scale * sum(within)), blocks)
    if not known or count > 1:
        totals = matmul(constant(np.stack(gather)), blocks)
        received = [
            _damped_sums(totals[:, :, n], damping**block, 1.0, (direction,))
            for n, direction in enumerate(directions)
        ]
        spread = constant(scale * np.stack(spread, axis=1))
        sums = sums + matmul(spread, ops.stack(received, axis=2))
    return ops.reshape(sums, (batch, count * block, width))[:, :length]
