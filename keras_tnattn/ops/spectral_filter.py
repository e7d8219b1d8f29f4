"""Attention as a polynomial filter on a graph over time.

With keys `K` and values `V`, both `(..., L, J)`, and the adjacency `Omega` of a time graph:

    Theta = relu(K K^T), diagonal 0        Psi = Omega * Theta, elementwise
    Y = (alpha_0 I + alpha_1 Psi + ... + alpha_{F-1} Psi^{F-1}) V

(equation 1 of Xu et al., "A Tensorized Spectral Attention Mechanism"). The caller applies the
equation's factor `1 / sqrt(J)` by scaling the keys by `J^(-1/4)`, which keeps the products in the
range of half precision. `Omega` is the bidirectional adjacency, the one-sided `A^T` for a causal
filter, or any given matrix.

Sequences are cut into blocks of `b` rows, and `Psi` is held as its block diagonals `0..m`, each
one batched product over all pairs of blocks, so that the number of operations in the graph is
`O(m)` for any `L`. The direct form has one block, `b = L` and `m = 0`. If the weights of `Omega`
vanish beyond a bandwidth `w <= m b` (in float32, for geometric weights), the banded form costs
`O(L w J)` FLOPs and `O(L w)` memory instead of `O(L^2 J)` and `O(L^2)`.

The gradient needs only products of the same kind as the forward pass. With the partial sums `U_k`
of Horner's rule (`U_{F-1} = alpha_{F-1} V`, `U_k = alpha_k V + Psi U_{k+1}`, `Y = U_0`) and with
`G_0 = dY`, `G_{k+1} = Psi^T G_k`:

    dV = sum_k alpha_k G_k                            d alpha_k = <G_k, V>
    P = sum_{k=0}^{F-2} G_k U_{k+1}^T                 D = Omega * (Theta > 0) * P
    dK = (D + D^T) K                                  d Omega = Theta * P
"""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_tnattn.ops.blocks import BlockBand, transpose
from keras_tnattn.ops.parts import count_parts, map_parts
from keras_tnattn.ops.precision import at_least_float32, matmul
from keras_tnattn.ops.time_graph import as_time_graph, time_adjacency
from keras_tnattn.typing import Tensor

_METHODS = ("auto", "direct", "banded")


def check_method(method: str, banded: bool = True) -> str:
    """Returns `method` if it is valid, and raises a `ValueError` otherwise.

    Args:
        method: `"auto"`, `"direct"` or `"banded"`.
        banded: Whether the graph has a bandwidth known beforehand, which `"banded"` needs.
            Defaults to `True`.

    Example:
        >>> check_method("auto")
        'auto'
    """
    if method not in _METHODS:
        raise ValueError(f"Expected one of {_METHODS}. Received: method={method!r}")
    if method == "banded" and not banded:
        raise ValueError(
            "Expected method='auto' or 'direct' for a graph without a fixed bandwidth (a trained "
            "damping, exponential or power law weights, a given adjacency). "
            f"Received: method={method!r}"
        )
    return method


def attention_graph(keys: Tensor, graph: Any, causal: bool = False) -> Tensor:
    """Returns the attention graph `Psi = Omega * relu(K K^T)` with a zero diagonal.

    Args:
        keys: Float tensor `(..., L, J)`, scaled by `J^(-1/4)`.
        graph: The time graph, as for `spectral_filter`.
        causal: Whether row `i` has entries for earlier time-steps `j < i` only. Defaults to
            `False`.

    Returns:
        Tensor `(..., L, L)` with a zero diagonal; symmetric and non-negative for a time graph that
        is not causal.

    Example:
        >>> tuple(attention_graph(keras.ops.ones((2, 5, 4)), 0.9).shape)
        (2, 5, 5)
    """
    scores = ops.relu(matmul(keys, transpose(keys)))
    if _is_adjacency(graph):
        adjacency = _given_adjacency(graph, keys, causal)
    else:
        side = "earlier" if causal else "both"
        adjacency = time_adjacency(ops.shape(keys)[-2], graph, side, _dtype(keys))
    return _damp(scores, ops.cast(adjacency, scores.dtype))


def spectral_filter(
    keys: Tensor,
    values: Tensor,
    graph: Any,
    coefficients: Tensor = None,
    method: str = "auto",
    causal: bool = False,
) -> Tensor:
    """Filters the values over the attention graph of the keys.

    Args:
        keys: Float tensor `(..., L, J)`, scaled by `J^(-1/4)`; `L` may be unknown.
        values: Float tensor `(..., L, M)`, the same leading sizes.
        graph: The time graph: a damping `c` (a float, `0 <= c < 1`, or a scalar tensor), a graph of
            `ops.time_graph`, or an adjacency `(L, L)` or `(B, L, L)`, of which the diagonal is
            ignored. A damping or adjacency given as a tensor is differentiated and needs the
            direct method.
        coefficients: Float tensor `(F,)`, `F >= 2`, the `alpha_k`. Default: `F = 2` and `(1, 1)`.
        method: `"direct"`, `"banded"`, or `"auto"` (default), which is banded for lengths at which
            that is faster.
        causal: Whether time-step `i` receives only from earlier ones. `Omega` is then the one-sided
            `A^T`, `g(i - j)` for `j < i`, or the lower triangle of a given adjacency. Defaults to
            `False`.

    Returns:
        Tensor `(..., L, M)`. For a geometric graph the banded method drops the weights beyond the
        bandwidth `w`. With `T = max(Theta)`, `rho = T c / (1 - c)` (a bound on the norm of `Psi`)
        and `eps = T c^(w+1) / (1 - c)` (a bound on the norm of what is dropped), the error of each
        output is at most `max(|V|) eps sum_{k=1}^{F-1} k |alpha_k| rho^(k-1)`; for scores of
        comparable size the two methods agree within float32. For a window they are equal.

    Raises:
        ValueError: For a damping outside [0, 1), fewer than two coefficients, an unknown method, or
            `method="banded"` for a graph without a fixed bandwidth.

    Example:
        >>> keys, values = keras.ops.ones((2, 5, 4)), keras.ops.ones((2, 5, 3))
        >>> tuple(spectral_filter(keys, values, 0.9, causal=True).shape)
        (2, 5, 3)
    """
    has_adjacency = _is_adjacency(graph)
    graph = graph if has_adjacency else as_time_graph(graph)
    width = None if has_adjacency else graph.bandwidth
    check_method(method, banded=width is not None)
    if coefficients is not None and coefficients.shape[0] < 2:
        raise ValueError(
            "Expected at least two coefficients. "
            f"Received: coefficients.shape={tuple(coefficients.shape)}"
        )
    length = ops.shape(keys)[-2]
    if width is None or method == "direct":
        return _blocked_filter(keys, values, graph, coefficients, length, 0, causal)
    features = (keys.shape[-1] + values.shape[-1]) / 2
    minimum_block, num_offsets, shortest = banded_plan(width, features)

    def plan(size: Tensor, banded: bool) -> tuple[Tensor, int]:
        if not banded:
            return size, 0
        # As many blocks as fit, slightly longer than the minimum, so that little padding is needed.
        block = -(-size // _at_least(size // minimum_block, 1))
        return _at_least(block, minimum_block), num_offsets

    if method == "auto" and not isinstance(length, int):
        return _filter_by_length(keys, values, graph, coefficients, plan, shortest, causal)
    banded = is_banded(width, method, features, length)
    return _blocked_filter(keys, values, graph, coefficients, *plan(length, banded), causal)


def banded_plan(width: int, features: float) -> tuple[int, int, int]:
    """Plans the banded form.

    With blocks of `b = w / m` rows, a row has `(m + 1) b = w (1 + 1 / m)` scores, and its `J`
    features are read and written `m + 1` times. Both together are least at `m = sqrt(r w / J)`;
    `r`, what a score costs relative to a feature, is about 1.1 on a CPU.

    Args:
        width: The bandwidth `w`.
        features: The number `J` of features of a key or value.

    Returns:
        `(b, m, shortest)`: the minimum block size, the number of block diagonals below the main
        one, and the shortest length at which the banded form is faster than the direct one. `m b`
        covers the bandwidth, with `b` of 12 to 128.

    Example:
        >>> banded_plan(159, features=64), banded_plan(159, features=8)
        ((80, 2, 718), (32, 5, 478))
    """
    balanced = round((1.1 * width / features) ** 0.5)
    num_offsets = max(-(-width // 128), min(balanced, width // 16), 1)
    block = max(-(-width // num_offsets), 12)
    return block, num_offsets, 2 * width + 5 * block


def is_banded(width: int | None, method: str, features: float, length: int) -> bool:
    """Returns whether `spectral_filter` computes a band only, instead of all pairs of time-steps.

    Args:
        width: The bandwidth of the graph, or `None`.
        method: `"auto"`, `"direct"` or `"banded"`.
        features: The number of features of a key or value.
        length: The number of time-steps.

    Example:
        >>> is_banded(159, "auto", 64, length=717), is_banded(159, "auto", 64, length=718)
        (False, True)
    """
    if width is None or method == "direct":
        return False
    return method == "banded" or length >= banded_plan(width, features)[2]


def _at_least(size: Tensor, minimum: int) -> Tensor:
    return max(size, minimum) if isinstance(size, int) else ops.maximum(size, minimum)


def _is_adjacency(graph: Any) -> bool:
    shape = getattr(graph, "shape", ())
    if len(shape) in (2, 3):
        return True
    if len(shape) > 0:
        raise ValueError(
            "Expected a scalar damping, a time graph, or an adjacency (L, L) or (B, L, L). "
            f"Received: graph.shape={tuple(shape)}"
        )
    return False


def _given_adjacency(adjacency: Tensor, keys: Tensor, causal: bool) -> Tensor:
    """Returns the adjacency without its diagonal: `(L, L)`, or `(B, 1, ..., L, L)` for the keys."""
    adjacency = ops.cast(adjacency, at_least_float32(_dtype(keys)))
    steps = ops.arange(ops.shape(adjacency)[-1], dtype="int32")
    rows, columns = steps[:, None], steps[None, :]
    mask = rows > columns if causal else ops.not_equal(rows, columns)
    adjacency = ops.where(mask, adjacency, ops.zeros_like(adjacency))
    if len(adjacency.shape) == 3:
        for _ in range(len(keys.shape) - 3):
            adjacency = ops.expand_dims(adjacency, 1)
    return adjacency


def _with_gradient(function: Callable) -> Callable:
    """As `keras.ops.custom_gradient`, which warns on NumPy that there is no gradient."""
    if keras.backend.backend() == "numpy":
        return lambda *tensors: function(*tensors)[0]
    return ops.custom_gradient(function)


def _blocked_filter(
    keys: Tensor,
    values: Tensor,
    graph: Any,
    coefficients: Tensor,
    block: Tensor,
    num_offsets: int,
    causal: bool,
) -> Tensor:
    """The filter in blocks of `block` rows, with `num_offsets` block diagonals below the main."""
    diagonals = _diagonals(graph, keys, block, num_offsets, causal)
    given = _is_adjacency(graph) or graph.bandwidth is None
    symmetric = not causal and not _is_adjacency(graph)

    def filtered(keys: Tensor, values: Tensor) -> Tensor:
        inputs = _inputs(keys, values, coefficients)
        if given:
            inputs["adjacency"] = diagonals[0]
        band = BlockBand(ops.shape(keys), block, num_offsets)

        @_with_gradient
        def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
            state = _Filter(band, symmetric, diagonals, **dict(zip(inputs, tensors, strict=True)))
            (outputs,) = _forward(state)
            return outputs, lambda *args, upstream=None: _backward(
                state, args[0] if upstream is None else upstream
            )

        return run(*inputs.values())

    if given:
        return filtered(keys, values)
    *lead, length, _ = ops.shape(keys)
    scores = (num_offsets + 1) * block
    numbers = length * (scores + 2 * keys.shape[-1] + values.shape[-1])
    return map_parts(filtered, keys, values, count_parts(math.prod(lead), numbers))


def _filter_by_length(
    keys: Tensor,
    values: Tensor,
    graph: Any,
    coefficients: Tensor,
    plan: Callable[[Tensor, bool], tuple[Tensor, int]],
    shortest: int,
    causal: bool,
) -> Tensor:
    """The filter of a length that is not known yet, banded from the length `shortest` on.

    Both passes choose by themselves, because XLA cannot pass tensors from a branch of one pass to
    that of the other: their shapes differ. (`keras.remat` of both branches also repeats the last
    product, and takes up to a fifth longer.)
    """
    inputs = _inputs(keys, values, coefficients)

    def evaluate(compute: Callable, *tensors: Tensor) -> tuple[Tensor, ...]:
        named, upstream = tensors[: len(inputs)], tensors[len(inputs) :]

        def branch(banded: bool) -> tuple[Tensor, ...]:
            keys = tensors[0]
            # Sizes are computed in the branch, where XLA knows them.
            block, num_offsets = plan(ops.shape(keys)[-2], banded)
            band = BlockBand(ops.shape(keys), block, num_offsets)
            diagonals = _diagonals(graph, keys, block, num_offsets, causal)
            return compute(_Filter(band, not causal, diagonals, *named), *upstream)

        short = ops.shape(tensors[0])[-2] < shortest
        return ops.cond(short, lambda: branch(banded=False), lambda: branch(banded=True))

    return _filter_anew(inputs, evaluate)


def _filter_anew(inputs: dict[str, Tensor], evaluate: Callable) -> Tensor:
    """The filter whose backward pass computes `Psi` anew.

    Args:
        inputs: Keys, values and, if there are any, coefficients.
        evaluate: Calls a function of a `_Filter`, and of the gradient of the outputs in the
            backward pass, given the function and these tensors. Returns what it returns.
    """

    @_with_gradient
    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        def grad(*args: Tensor, upstream: Tensor = None) -> tuple[Tensor, ...]:
            upstream = args[0] if upstream is None else upstream
            return evaluate(_forward_and_backward, *tensors, upstream)

        (outputs,) = evaluate(_forward, *tensors)
        return outputs, grad

    return run(*inputs.values())


def _inputs(keys: Tensor, values: Tensor, coefficients: Tensor) -> dict[str, Tensor]:
    """Returns what is differentiated, by the names of the arguments of `_Filter`."""
    inputs = {"keys": keys, "values": values}
    if coefficients is not None:
        # Their gradient sums too many terms for half precision.
        inputs["coefficients"] = ops.cast(coefficients, at_least_float32(_dtype(keys)))
    return inputs


def _diagonals(
    graph: Any, keys: Tensor, block: Tensor, num_offsets: int, causal: bool
) -> list[Tensor]:
    """Returns the block diagonals of `Omega`; in float32 if they are differentiated."""
    dtype = _dtype(keys)
    if _is_adjacency(graph):
        adjacency = _given_adjacency(graph, keys, causal)
        if len(adjacency.shape) > 2:
            *lead, length, _ = ops.shape(keys)
            adjacency = ops.broadcast_to(adjacency, (*lead, length, length))
            adjacency = ops.reshape(adjacency, (math.prod(lead), length, length))
        return [adjacency]
    side = "earlier" if causal else "both"
    dtype = at_least_float32(dtype) if graph.bandwidth is None else dtype
    offsets = range(num_offsets + 1)
    return [time_adjacency(block, graph, side, dtype, o * block) for o in offsets]


class _Filter:
    """The tensors of one forward pass, which the backward pass needs again."""

    def __init__(
        self,
        band: BlockBand,
        symmetric: bool,
        diagonals: list[Tensor],
        keys: Tensor,
        values: Tensor,
        coefficients: Tensor = None,
        adjacency: Tensor = None,
    ) -> None:
        self.band = band
        self.symmetric = symmetric
        self.keys, self.values = band.split(keys), band.split(values)
        self.coefficients = coefficients
        self.adjacency = adjacency
        self.order = 2 if coefficients is None else coefficients.shape[0]
        omega = diagonals if adjacency is None else [adjacency]
        self.omega = [ops.cast(diagonal, keys.dtype) for diagonal in omega]
        scores = band.products(self.keys, self.keys)
        self.psi = [
            _damp(ops.relu(score), diagonal)
            for score, diagonal in zip(scores, self.omega, strict=True)
        ]
        self.partial_sums: list[Tensor] = []  # set by `_forward`, used by `_backward`

    def multiply(self, x: Tensor, transposed: bool = False) -> Tensor:
        """Multiplies blocks by `Psi` or its transpose."""
        part = "symmetric" if self.symmetric else "upper" if transposed else "lower"
        return self.band.multiply(self.psi, x, part)

    def times_alpha(self, k: int, x: Tensor) -> Tensor:
        """Multiplies by `alpha_k`."""
        return x if self.coefficients is None else ops.cast(self.coefficients[k], x.dtype) * x


def _forward(state: _Filter) -> tuple[Tensor]:
    """Applies Horner's rule; stores the partial sums `U_0, ..., U_{F-1}` in the state."""
    last = state.order - 1
    sums = [state.times_alpha(last, state.values)]
    for k in reversed(range(last)):
        sums.insert(0, state.times_alpha(k, state.values) + state.multiply(sums[0]))
    state.partial_sums = sums
    return (state.band.join(sums[0]),)


def _forward_and_backward(state: _Filter, upstream: Tensor) -> tuple[Tensor, ...]:
    """Returns the gradients of the inputs of a state without partial sums."""
    _forward(state)
    return _backward(state, upstream)


def _backward(state: _Filter, upstream: Tensor) -> tuple[Tensor, ...]:
    """Returns the gradients of the inputs, in the order of the inputs."""
    band, keys = state.band, state.keys
    grads = [band.split(upstream)]
    for _ in range(state.order - 1):
        grads.append(state.multiply(grads[-1], transposed=True))
    d_values = sum(state.times_alpha(k, grad) for k, grad in enumerate(grads))
    left, right = _side_by_side(grads[:-1]), _side_by_side(state.partial_sums[1:])
    # (D + D^T) K: `multiply` covers both terms except for the transposed diagonal blocks, which
    # cost less as a sum than as a second product. If Omega is symmetric, the mean of P and P^T is
    # damped in its place, once.
    if state.symmetric:
        left = 0.5 * left
    products = band.products(left, right)
    if state.symmetric:
        mirrored = [transpose(products[0]), *band.products(right, left, first=1)]
        products = [product + other for product, other in zip(products, mirrored, strict=True)]
    # `|Omega| sign(Psi)` is `Omega` where the rectifier lets a score pass, else 0.
    slopes = [(2 if state.symmetric else 1) * ops.abs(omega) for omega in state.omega]
    d_scores = [
        _damp(product, slope * ops.sign(psi))
        for psi, product, slope in zip(state.psi, products, slopes, strict=True)
    ]
    if not state.symmetric:
        d_scores[0] = d_scores[0] + transpose(d_scores[0])
    d_keys = band.multiply(d_scores, keys)
    results = [band.join(d_keys), band.join(d_values)]
    if state.coefficients is not None:
        precise = state.coefficients.dtype
        values = ops.cast(state.values, precise)
        results.append(ops.stack([ops.sum(ops.cast(g, precise) * values) for g in grads]))
    if state.adjacency is not None:
        precise = state.adjacency.dtype
        scores = ops.relu(matmul(keys, transpose(keys)))
        slopes = ops.cast(products[0], precise) * ops.cast(scores, precise)
        shared = len(state.adjacency.shape) == 2
        results.append(ops.sum(slopes, axis=0) if shared else slopes)
    return tuple(results)


def _damp(scores: Tensor, adjacency: Tensor) -> Tensor:
    """Returns `scores * adjacency`, with 0 where the adjacency is 0 even if the score is inf."""
    damped = scores * adjacency
    if _dtype(scores) == "float16":
        damped = ops.where(adjacency != 0, damped, ops.zeros_like(damped))
    return damped


def _side_by_side(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-1)


def _dtype(x: Tensor) -> str:
    return keras.backend.standardize_dtype(x.dtype)
