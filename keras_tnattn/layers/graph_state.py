"""The state of filters on a time graph: the last tokens within its bandwidth, or all of them."""

from collections.abc import Sequence

from keras import ops

from keras_tnattn.layers import token_state
from keras_tnattn.layers.token_state import Chunk, State
from keras_tnattn.ops.time_graph import TimeGraph
from keras_tnattn.typing import Tensor


def common_bandwidth(graphs: Sequence[TimeGraph]) -> int | None:
    """Returns the largest bandwidth, or `None` if a graph has none.

    Example:
        >>> from keras_tnattn.ops.time_graph import PowerLaw, Window
        >>> common_bandwidth([Window(3), Window(5)]), common_bandwidth([Window(3), PowerLaw(1.0)])
        (5, None)
    """
    widths = [graph.bandwidth for graph in graphs]
    known = [width for width in widths if width is not None]
    return max(known) if len(known) == len(widths) else None


def empty_past(
    names: Sequence[str],
    bandwidth: int | None,
    lead: Sequence,
    length: Tensor,
    dim: int,
    dtype: str,
) -> State:
    """Returns a state of zeros `(*lead, bandwidth, dim)`, or with room for `length` tokens.

    Example:
        >>> state = empty_past(["keys"], 3, (1, 2), 8, 4, "float32")
        >>> tuple(state["context"]["keys"].shape)
        (1, 2, 3, 4)
    """
    if bandwidth is None:
        zeros = {name: ops.zeros((*lead, length, dim), dtype) for name in names}
        return token_state.empty(tokens=zeros)
    zeros = {name: ops.zeros((*lead, bandwidth, dim), dtype) for name in names}
    return token_state.empty(context=zeros)


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
        tokens = token_state.write({name: state["tokens"][name]}, chunk, {name: new})
        return tokens[name], {**state, "tokens": {**state["tokens"], **tokens}}
    past = state["context"][name]
    tokens = ops.concatenate([past, ops.cast(new, past.dtype)], axis=-2)
    count = ops.shape(new)[-2]
    window = tokens[..., count:, :]
    return tokens, {**state, "context": {**state["context"], name: window}}


def weights(graphs: Sequence[TimeGraph], chunk: Chunk, bandwidth: int | None, dtype: str) -> Tensor:
    """Returns the weights `(graphs, T, L)` of what new tokens receive from what `append` returns.

    Example:
        >>> from keras_tnattn.ops.time_graph import Geometric
        >>> mask = ops.ones((1, 1), "bool")
        >>> chunk = Chunk(0, None, mask, mask, False)
        >>> ops.convert_to_numpy(weights([Geometric(0.5)], chunk, 2, "float32")).tolist()
        [[[0.25, 0.5, 0.0]]]
    """
    count = ops.shape(chunk.mask)[1]
    if bandwidth is None:
        first, length = chunk.start, ops.shape(chunk.prefix_mask)[1]
    else:
        first, length = bandwidth, bandwidth + count
    distance = first + ops.arange(count)[:, None] - ops.arange(length)[None, :]
    steps = ops.cast(ops.maximum(distance, 1), dtype)
    received = ops.stack([graph.weights(steps) for graph in graphs])
    return ops.where(distance > 0, received, ops.zeros_like(received))
