"""The time graphs of a layer: its argument, its weights, and the state of a filter on them.

The state has the last tokens within the bandwidth of the graphs, or all tokens.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tnattn.layers.base_attention import State, new_state, write_tokens
from keras_tnattn.ops.time_graph import Geometric, TimeGraph, as_time_graph
from keras_tnattn.typing import Chunk, Tensor


def check_time_graphs(damping: Any, time_graph: Any, num_heads: int) -> tuple[TimeGraph, ...]:
    """Returns the time graph of each head.

    Args:
        damping: Short for `time_graph=Geometric(damping)`, or `None`.
        time_graph: A time graph or one for each head, as `as_time_graph` reads them, or `None`.
        num_heads: The number of heads.

    Raises:
        ValueError: If both arguments are given, their number is not that of the heads, or only
            some of the graphs are trained or they are of several kinds.
    """
    if damping is not None and time_graph is not None:
        raise ValueError(
            "Expected damping, which is short for time_graph=Geometric(damping), or time_graph. "
            f"Received: damping={damping}, time_graph={time_graph}"
        )
    name, given = ("damping", damping) if time_graph is None else ("time_graph", time_graph)
    if given is None:
        given = Geometric()
    if isinstance(given, (str, dict, TimeGraph)) or not hasattr(given, "__len__"):
        return (as_time_graph(given),) * num_heads
    graphs = tuple(as_time_graph(graph) for graph in given)
    if len(graphs) != num_heads:
        raise ValueError(
            f"Expected one value or one for each head. Received: {name}={given}, "
            f"num_heads={num_heads}"
        )
    kinds = {(type(graph), graph.trainable) for graph in graphs}
    if len(kinds) > 1 and any(graph.trainable for graph in graphs):
        raise ValueError(
            f"Expected graphs of one kind, if they are trained. Received: time_graph={given}"
        )
    return graphs


def serialize_time_graphs(graphs: Sequence[TimeGraph]) -> Any:
    """Returns the config of a graph or, if the heads have different ones, of each."""
    graphs = graphs[:1] if len(set(graphs)) == 1 else graphs
    configs = [keras.saving.serialize_keras_object(graph) for graph in graphs]
    return configs if len(configs) > 1 else configs[0]


def add_graph_weights(layer: keras.layers.Layer) -> None:
    """Adds the weights of the trained graphs in `layer.time_graphs`."""
    starts = [graph.start_values() if graph.trainable else {} for graph in layer.time_graphs]
    layer.graph_weights = {
        # Powers of distances need the precision of float32, under mixed precision, too.
        name: layer.add_weight(
            shape=(len(starts),),
            initializer=lambda shape, dtype, name=name: ops.convert_to_tensor(
                [start[name] for start in starts], dtype
            ),
            autocast=False,
            name=name,
        )
        for name in starts[0]
    }


def current_graphs(layer: keras.layers.Layer) -> list[TimeGraph]:
    """Returns the time graph of each head of a built layer, or a single one for all heads."""
    graphs = list(layer.time_graphs)
    if graphs[0].trainable:
        return [
            graph.from_values(**{name: weight[h] for name, weight in layer.graph_weights.items()})
            for h, graph in enumerate(graphs)
        ]
    return graphs[:1] if len(set(graphs)) == 1 else graphs


def common_bandwidth(graphs: Sequence[TimeGraph]) -> int | None:
    """Returns the largest bandwidth, or `None` if a graph has none."""
    widths = [graph.bandwidth for graph in graphs]
    return None if None in widths else max(width for width in widths if width is not None)


def empty_past(
    names: Sequence[str],
    bandwidth: int | None,
    lead: Sequence,
    length: Tensor,
    dim: int,
    dtype: str,
) -> State:
    """Returns a state of zeros `(*lead, bandwidth, dim)`, or with room for `length` tokens."""
    if bandwidth is None:
        zeros = {name: ops.zeros((*lead, length, dim), dtype) for name in names}
        return new_state(tokens=zeros)
    zeros = {name: ops.zeros((*lead, bandwidth, dim), dtype) for name in names}
    return new_state(context=zeros)


def append(
    state: State, name: str, new: Tensor, chunk: Chunk, bandwidth: int | None
) -> tuple[Tensor, State]:
    """Appends new tokens.

    Args:
        state: A state of `empty_past`.
        name: The name of its entry.
        new: Tensor `(*lead, T, dim)`.
        chunk: Where the new tokens are.
        bandwidth: That of the state.

    Returns:
        The tokens `(*lead, L, dim)` that the new ones can receive from, and the new state.
    """
    if bandwidth is None:
        tokens = write_tokens({name: state["tokens"][name]}, chunk, {name: new})
        return tokens[name], {**state, "tokens": {**state["tokens"], **tokens}}
    past = state["context"][name]
    tokens = ops.concatenate([past, ops.cast(new, past.dtype)], axis=-2)
    count = ops.shape(new)[-2]
    window = tokens[..., count:, :]
    return tokens, {**state, "context": {**state["context"], name: window}}


def weights(graphs: Sequence[TimeGraph], chunk: Chunk, bandwidth: int | None, dtype: str) -> Tensor:
    """Returns the weights `(graphs, T, L)` of what new tokens receive of what `append` returns."""
    count = ops.shape(chunk.mask)[1]
    if bandwidth is None:
        first, length = chunk.start, ops.shape(chunk.prefix_mask)[1]
    else:
        first, length = bandwidth, bandwidth + count
    distance = first + ops.arange(count)[:, None] - ops.arange(length)[None, :]
    steps = ops.cast(ops.maximum(distance, 1), dtype)
    received = ops.stack([graph.weights(steps) for graph in graphs])
    return ops.where(distance > 0, received, ops.zeros_like(received))
