"""What an attention keeps of earlier tokens, so that later ones can be computed by themselves.

A state is a dict of two dicts of tensors, whose first axis is that of the sequences, `N`:

    tokens      one entry for each token so far, `(N, ..., L, F)`: keys, values; `L` is the room
                for tokens, and grows with `with_room`
    context     what does not grow: a recurrent state, a window, a metric, `(N, ...)`
"""

from typing import NamedTuple

from keras import ops
from keras.tree import map_structure

from keras_tnattn.typing import Tensor

State = dict[str, dict[str, Tensor]]


class Chunk(NamedTuple):
    """The new tokens of `N` sequences: a prompt, or the token that was just chosen.

    Attributes:
        start: Scalar integer, the place of the first new token in the room for tokens.
        positions: Integers `(N, T)`, the positions of the new tokens in their sequences.
        mask: Booleans `(N, T)`, `True` for a real token.
        prefix_mask: Booleans `(N, L)`, `True` for the real tokens up to the last new one.
        is_prompt: Whether these are the first tokens of the sequences. A state has room for these
            alone then.

    Example:
        >>> from keras import ops
        >>> mask = ops.ones((1, 2), "bool")
        >>> Chunk(0, ops.arange(2)[None], mask, mask, is_prompt=True).is_prompt
        True
    """

    start: Tensor
    positions: Tensor
    mask: Tensor
    prefix_mask: Tensor
    is_prompt: bool


def empty(
    tokens: dict[str, Tensor] | None = None, context: dict[str, Tensor] | None = None
) -> State:
    """Returns a state with the given tensors.

    Example:
        >>> empty()
        {'tokens': {}, 'context': {}}
    """
    return {"tokens": tokens or {}, "context": context or {}}


def with_room(state: State, num_tokens: Tensor) -> State:
    """Returns a state with room for more tokens.

    Example:
        >>> import keras
        >>> state = with_room(empty({"keys": keras.ops.ones((1, 2, 5, 4))}), 3)
        >>> tuple(state["tokens"]["keys"].shape)
        (1, 2, 8, 4)
    """

    def pad(x: Tensor) -> Tensor:
        widths = [(0, 0)] * len(x.shape)
        widths[-2] = (0, num_tokens)
        return ops.pad(x, widths)

    return {**state, "tokens": map_structure(pad, state["tokens"])}


def write(old: dict[str, Tensor], chunk: Chunk, new: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns `tokens` with the entries `(N, ..., T, F)` of new tokens.

    Example:
        >>> import keras
        >>> old, mask = {"keys": keras.ops.zeros((1, 3, 1))}, keras.ops.ones((1, 1), "bool")
        >>> chunk = Chunk(1, None, mask, mask, is_prompt=False)
        >>> new = write(old, chunk, {"keys": keras.ops.ones((1, 1, 1))})
        >>> keras.ops.convert_to_numpy(new["keys"])[0, :, 0].tolist()
        [0.0, 1.0, 0.0]
    """

    def update(name: str) -> Tensor:
        x = old[name]
        entries = ops.cast(new[name], x.dtype)
        if chunk.is_prompt:
            return entries
        place = [0] * len(x.shape)
        place[-2] = chunk.start
        return ops.slice_update(x, place, entries)

    return {name: update(name) for name in old}


def visible(chunk: Chunk) -> Tensor:
    """Returns which of the `L` places each new token may attend to, `(N, T, L)`.

    Example:
        >>> from keras import ops
        >>> mask = ops.ones((1, 2), "bool")
        >>> ops.convert_to_numpy(visible(Chunk(0, None, mask, mask, True)))[0].tolist()
        [[True, False], [True, True]]
    """
    length, count = ops.shape(chunk.prefix_mask)[1], ops.shape(chunk.mask)[1]
    last = chunk.start + ops.arange(count)
    earlier = ops.arange(length)[None, :] <= last[:, None]
    return ops.logical_and(chunk.prefix_mask[:, None, :], earlier[None])
