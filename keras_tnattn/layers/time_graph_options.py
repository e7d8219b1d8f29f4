"""The options of a named time graph, shared by the layers that have one."""

import math
from collections.abc import Sequence

import keras
from keras import ops

from keras_tnattn.ops import time_graph
from keras_tnattn.typing import Tensor

TIME_GRAPHS = ("geometric", "exponential", "window", "power_law")


def check_time_graph(name: str, window: int | None, exponent: float | None) -> None:
    """Raises a `ValueError` unless `name` is a time graph and has exactly the options it needs."""
    if name not in TIME_GRAPHS:
        raise ValueError(f"Expected one of {TIME_GRAPHS}. Received: time_graph={name!r}")
    if (name == "window") != (window is not None) or (name == "power_law") != (
        exponent is not None
    ):
        raise ValueError(
            "Expected `window` for time_graph='window' only, and `exponent` for "
            f"time_graph='power_law' only. Received: time_graph={name!r}, window={window}, "
            f"exponent={exponent}"
        )


def fixed_time_graph(
    damping: float, window: int | None, exponent: float | None
) -> time_graph.TimeGraph:
    """Returns the graph of checked options, without trained weights."""
    if window is not None:
        return time_graph.Window(window)
    if exponent is not None:
        return time_graph.PowerLaw(exponent)
    return time_graph.Geometric(damping)


def add_exponential_weights(layer: keras.layers.Layer, dampings: Sequence[float]) -> None:
    """Adds weights for the logarithms of `s` and `q` in `exp(-s d^q)`, one of each per damping.

    The initial graph is the geometric graph with these dampings, which must be in (0, 1).
    """
    if not all(0 < c < 1 for c in dampings):
        raise ValueError(
            "Expected a damping in (0, 1) to start an exponential time graph from. "
            f"Received: damping={tuple(dampings)}"
        )

    def start(shape: Sequence[int], dtype: str) -> Tensor:
        return ops.convert_to_tensor([math.log(-math.log(c)) for c in dampings], dtype)

    # Powers of distances need the precision of float32, under mixed precision, too.
    layer.log_rate, layer.log_power = (
        layer.add_weight(shape=(len(dampings),), initializer=initializer, autocast=False, name=name)
        for name, initializer in (("log_rate", start), ("log_power", "zeros"))
    )


def exponential_graphs(layer: keras.layers.Layer) -> list[time_graph.TimeGraph]:
    """Returns the graphs for the weights that `add_exponential_weights` added."""
    rates, powers = ops.exp(layer.log_rate), ops.exp(layer.log_power)
    return [time_graph.Exponential(rates[h], powers[h]) for h in range(rates.shape[0])]
