"""Which of the next ids are candidates, and how one of them is drawn."""

from keras import ops

from keras_tnattn.typing import Tensor


def penalize(logits: Tensor, used: Tensor, penalty: float) -> Tensor:
    """Divides the positive logits of used ids by a penalty, and multiplies the negative ones.

    (Keskar et al., "CTRL", section 4.1, https://arxiv.org/abs/1909.05858.)

    Args:
        logits: Floats `(B, V)`.
        used: Booleans `(B, V)`.
        penalty: Positive number; 1 changes nothing.

    Returns:
        Floats `(B, V)`.

    Example:
        >>> logits, used = ops.array([[2.0, -2.0, 2.0]]), ops.array([[True, True, False]])
        >>> ops.convert_to_numpy(penalize(logits, used, 2.0)).tolist()
        [[1.0, -4.0, 2.0]]
    """
    penalized = ops.where(logits > 0, logits / penalty, logits * penalty)
    return ops.where(used, penalized, logits)


def draw(
    logits: Tensor,
    noise: Tensor,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Tensor:
    """Draws an id from the softmax of some logits.

    Args:
        logits: Floats `(B, V)`.
        noise: Floats `(B,)`, uniform in [0, 1).
        top_k: Only the `k` most probable ids are candidates.
        top_p: Only the most probable ids are, up to the one with which their probabilities sum to
            `p` (Holtzman et al., section 3.1, https://arxiv.org/abs/1904.09751), of those that
            `top_k` leaves.
        min_p: Only ids are whose probability is at least `p` times the largest
            (https://arxiv.org/abs/2407.01082).

    Returns:
        Integers `(B,)`.

    Example:
        >>> logits = ops.log(ops.array([[0.5, 0.3, 0.2]]))
        >>> [int(draw(logits, ops.array([u]))[0]) for u in (0.1, 0.6, 0.9)]
        [0, 1, 2]
        >>> int(draw(logits, ops.array([0.9]), top_p=0.6)[0])
        1
    """
    size = logits.shape[-1]
    ordered, ids = ops.top_k(logits, size if top_k is None else min(top_k, size))
    # Keras warns about a softmax over a single entry.
    shares = ops.ones_like(ordered) if top_k == 1 else ops.softmax(ordered, axis=-1)
    candidates = ops.ones_like(shares, "bool")
    if top_p is not None:
        before = ops.cumsum(shares, axis=-1) - shares
        candidates = ops.logical_and(candidates, before < top_p)
    if min_p is not None:
        candidates = ops.logical_and(candidates, shares >= min_p * shares[:, :1])
    sums = ops.cumsum(ops.where(candidates, shares, ops.zeros_like(shares)), axis=-1)
    # The first id whose sum exceeds the noise; rounding must not lead behind the last candidate.
    below = ops.cast(sums <= noise[:, None] * sums[:, -1:], "int32")
    number = ops.sum(ops.cast(candidates, "int32"), axis=-1)
    rank = ops.minimum(ops.sum(below, axis=-1), number - 1)
    return ops.take_along_axis(ids, rank[:, None], axis=-1)[:, 0]
