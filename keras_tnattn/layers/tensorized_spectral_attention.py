"""Tensorized spectral attention: a graph filter with tensor-train keys and values."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.initializers import tt_core_weights
from keras_tnattn.layers import time_graphs
from keras_tnattn.layers.base_attention import (
    AttentionAdapter,
    SequenceAttention,
    State,
    adapter_of,
)
from keras_tnattn.layers.self_attention import SelfAttention
from keras_tnattn.ops import spectral_filter, tensor_train
from keras_tnattn.ops.masking import apply_mask
from keras_tnattn.ops.precision import at_least_float32, matmul
from keras_tnattn.ops.tensor_train.contraction import contraction_plan, tt_matmul_heads
from keras_tnattn.ops.tensor_train.factors import (
    as_ints,
    as_ranks,
    check_both_factors,
    check_factors,
    resolve_factors,
    resolve_ranks,
    tt_shapes,
)
from keras_tnattn.ops.time_graph import TimeGraph
from keras_tnattn.typing import Chunk, Constraint, Initializer, Regularizer, Shape, Tensor

_HEAD_COMBINATIONS = ("concat", "sum", "mean", "project")


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TensorizedSpectralAttention(SelfAttention):
    """Attention as a filter on a graph over time, with tensor-train keys and values.

    Inputs `(B, L, I)` become `(B, L, H J)`: as in the paper the `H` heads, of size `J = I` by
    default, are concatenated and not mapped back, so that with 2 heads the output is twice as wide
    as the input, other than that of `keras.layers.MultiHeadAttention`. For a residual sum
    `x + attention(x)` set `head_combination="project"`, which returns `(B, L, I)`.

    For each head, with TT-matrices `W_k` and `W_v` (there is no query) and damping `c`:

        K = X W_k        V = X W_v
        Theta = relu(K K^T / sqrt(J)), diagonal 0
        Psi = Omega * Theta                        Omega[i, j] = c^|i - j| / 2, 0 for i = j
        Y = (alpha_0 I + alpha_1 Psi + ... + alpha_{F-1} Psi^{F-1}) V

    (equations 1-4 and algorithm 1 of Xu et al., "A Tensorized Spectral Attention Mechanism for
    Efficient Natural Language Processing", where `rho 1 / d_k` is `1 / sqrt(J)`). The papers use
    `F = 2` with `alpha = (1, 1)`, `Y = V + Psi V`. For `F = 2` these coefficients are fixed; for
    `F > 2` they are trained, starting from `(1, 1, 0, ...)`. Horner's rule avoids powers of `Psi`.

    Another graph can replace `Omega`: another named time graph, or an adjacency that is passed in
    each call. With `use_causal_mask` the graph is one-sided, `A^T` instead of
    `Omega = (A + A^T) / 2`, so that token `i` receives `c^(i - j)` from the tokens `j < i` only and
    a decoder can use the layer.

    With `J = I = 2^N` and TT-rank 2 a head has `2 * 16 (N - 1)` parameters. Short sequences cost
    `O(F L^2 J)` FLOPs and `O(L^2)` memory per head. If the graph has a bandwidth `w` (that of a
    window, or of a fixed damping: at 0.9, `c^distance` is negligible in float32 beyond 159 steps),
    long sequences are filtered in a band, for `O(F L w J)` FLOPs and `O(L w)` memory. `describe()`
    tells the length from which on this is done.

    A masked token neither sends nor receives; its output is 0, and other outputs do not change.

    Args:
        num_heads: Int, the number of heads `H`.
        key_dim: Int, the size `J` of keys and values in each head. Defaults to the size `I` of the
            input.
        tt_ranks: Int, the maximum TT-rank of the key and value maps (clipped at each bond), or a
            sequence of `N - 1` ints, whose largest is the maximum TT-rank of the output map of
            `"project"`. Defaults to 2.
        filter_order: Int, the number `F >= 2` of filter coefficients. Defaults to 2.
        damping: The damping `c`, `0 <= c < 1`: a number, or one for each head. Short for
            `time_graph=Geometric(c)`. Default: 0.9 (the paper gives no number).
        time_graph: The weights `g(d)` of tokens at distance `d`, `Omega[i, j] = g(|i - j|) / 2`: a
            graph of `keras_tnattn.ops.time_graph`, or one for each head. `Geometric(c)` is `c^d`;
            `Exponential(s, q)`, `exp(-s d^q)`; `Window(w)`, 1 for `d <= w`, else 0; `PowerLaw(p)`,
            `d^-p`. With `trainable=True` the numbers of the first two are trained for each head,
            from those given. Exponential, power law and trained graphs are computed directly.
        head_combination: `"concat"` (default), `"sum"`, `"mean"`, or `"project"`: concatenated and
            mapped back to `I` by a TT-matrix.
        tt_input_shape: The factors of `I`. Default: as for `TTDense`.
        tt_output_shape: The factors of `J`. Give both or none.
        method: `"direct"`, `"banded"`, or `"auto"` (default), which chooses by length; both give
            the same result in float32 for scores of comparable size.
        kernel_initializer: A Keras initializer; each `W` gets its variance. Defaults to
            `"glorot_uniform"`.
        kernel_regularizer: Regularizer applied to each core.
        kernel_constraint: Constraint applied to each core.

    Call arguments:
        inputs: Float tensor `(B, L, I)`: batch, tokens, features. `B` and `L` may be unknown.
        adjacency: Float tensor `(L, L)` or `(B, L, L)`, which replaces `Omega`; its weights are
            used as they are, its diagonal is ignored. Default: the time graph.
        mask: Boolean tensor `(B, L)`, `True` for a real token.
        return_attention_scores: Whether to return `Psi` too. Defaults to `False`.
        training: Has no effect; accepted as in Keras' attention layers.
        use_causal_mask: Whether each token receives only from earlier ones. Defaults to `False`.
        inputs_mask: The mask of `inputs`, which Keras passes here when `adjacency` is given. `mask`
            takes precedence.

    Returns:
        Tensor `(B, L, H J)` for `"concat"`, `(B, L, J)` for `"sum"` and `"mean"`, `(B, L, I)` for
        `"project"`; with `return_attention_scores` also `Psi`, `(B, H, L, L)`.

    Raises:
        ValueError: For a damping outside [0, 1), sizes that do not match, or ranks that are too
            large.

    Example:
        >>> layer = TensorizedSpectralAttention(num_heads=2, damping=0.8)
        >>> tuple(layer(keras.ops.ones((3, 7, 8)), use_causal_mask=True).shape)
        (3, 7, 16)
    """

    call_shapes: ClassVar = {
        "inputs": "B L I",
        "adjacency": "L L | B? L L",
        "mask": "B? L",
        "inputs_mask": "B? L",
    }
    supports_causal_mask = True

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
        tt_ranks: int | Sequence[int] = 2,
        filter_order: int = 2,
        damping: float | Sequence[float] | None = None,
        head_combination: str = "concat",
        tt_input_shape: Sequence[int] | None = None,
        tt_output_shape: Sequence[int] | None = None,
        method: str = "auto",
        kernel_initializer: Initializer = "glorot_uniform",
        kernel_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        time_graph: TimeGraph | Sequence[TimeGraph] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, kernel_initializer, **kwargs)
        if head_combination not in _HEAD_COMBINATIONS:
            raise ValueError(
                f"Expected one of {_HEAD_COMBINATIONS}. "
                f"Received: head_combination={head_combination!r}"
            )
        check_both_factors(tt_input_shape, tt_output_shape)
        self.tt_ranks = as_ranks(tt_ranks)
        self.filter_order = check_int("filter_order", filter_order, at_least=2)
        self.damping = self.time_graph = None  # `time_graphs` has both
        self.time_graphs = time_graphs.check_time_graphs(damping, time_graph, num_heads)
        self.head_combination = head_combination
        self.tt_input_shape = as_ints(tt_input_shape, "tt_input_shape")
        self.tt_output_shape = as_ints(tt_output_shape, "tt_output_shape")
        banded = time_graphs.common_bandwidth(self.time_graphs) is not None
        self.method = spectral_filter.check_method(method, banded)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)

    def build(self, input_shape: Shape) -> None:
        input_dim = input_shape[-1]
        key_dim = input_dim if self.key_dim is None else self.key_dim
        if input_dim is None:
            raise ValueError(f"Expected a known last axis. Received: input_shape={input_shape}")
        factors = resolve_factors(input_dim, key_dim, self.tt_input_shape, self.tt_output_shape)
        check_factors(*factors)
        if (math.prod(factors[0]), math.prod(factors[1])) != (input_dim, key_dim):
            raise ValueError(
                "Expected factors whose products are the size of the input and `key_dim`. "
                f"Received: tt_input_shape={factors[0]}, tt_output_shape={factors[1]}, "
                f"input_shape={tuple(input_shape)}, key_dim={key_dim}"
            )
        ranks = resolve_ranks(self.tt_ranks, *factors)
        self.plan = contraction_plan(*factors, ranks)
        self.head_dim = key_dim
        # Under a fixed seed each core of each head has a seed of its own.
        num_seeds = self.num_heads * len(factors[0])
        self.key_cores = self._add_cores("key", *factors, ranks, 0, self.num_heads)
        self.value_cores = self._add_cores("value", *factors, ranks, num_seeds, self.num_heads)
        self.coefficients = None
        if self.filter_order > 2:
            self.coefficients = self.add_weight(
                shape=(self.filter_order,),
                initializer=_start_coefficients,
                autocast=False,
                name="coefficients",
            )
        time_graphs.add_graph_weights(self)
        self.output_cores = None
        if self.head_combination == "project":
            factors = tt_shapes(self.num_heads * key_dim, input_dim)
            ranks = resolve_ranks(max(ranks, default=1), *factors)
            self.output_plan = contraction_plan(*factors, ranks)
            self.output_cores = self._add_cores("output", *factors, ranks, 2 * num_seeds, None)
        self.built = True

    def _add_cores(
        self,
        name: str,
        tt_input_shape: Sequence[int],
        tt_output_shape: Sequence[int],
        tt_ranks: Sequence[int],
        seed_offset: int,
        num_heads: int | None,
    ) -> list[keras.Variable]:
        weights = tt_core_weights(
            self.kernel_initializer,
            tt_input_shape,
            tt_output_shape,
            tt_ranks,
            num_heads=num_heads,
            seed_offset=seed_offset,
        )
        return [
            self.add_weight(
                shape=shape,
                initializer=initializer,
                regularizer=self.kernel_regularizer,
                constraint=self.kernel_constraint,
                name=f"{name}_core_{n}",
            )
            for n, (shape, initializer) in enumerate(weights)
        ]

    def call(
        self,
        inputs: Tensor,
        adjacency: Tensor | None = None,
        mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        inputs_mask: Tensor | None = None,
    ) -> Tensor:
        keys, values = self.keys_and_values(inputs, inputs_mask if mask is None else mask)
        graphs = time_graphs.current_graphs(self) if adjacency is None else [adjacency]
        if len(graphs) == 1:
            groups = [(keys, values, graphs[0])]
        else:
            groups = [(keys[:, h : h + 1], values[:, h : h + 1], g) for h, g in enumerate(graphs)]
        filtered = [
            spectral_filter.spectral_filter(
                k, v, graph, self.coefficients, self.method, use_causal_mask
            )
            for k, v, graph in groups
        ]
        outputs = self.combine(filtered[0] if len(groups) == 1 else ops.concatenate(filtered, 1))
        if not return_attention_scores:
            return outputs
        scores = [
            spectral_filter.attention_graph(k, graph, use_causal_mask) for k, _, graph in groups
        ]
        return outputs, scores[0] if len(groups) == 1 else ops.concatenate(scores, 1)

    def keys_and_values(self, inputs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns keys, divided by `J^(1/4)`, and values, both `(B, H, L, J)`."""
        inputs = apply_mask(inputs, mask)
        # The scale 1 / sqrt(J) of the products, half of it in either factor.
        scale = math.prod(core.shape[-2] for core in self.key_cores) ** -0.25
        key_cores = [self.key_cores[0] * scale, *self.key_cores[1:]]
        keys, values = tt_matmul_heads(inputs, [key_cores, self.value_cores], self.plan)
        return keys, values

    def combine(self, heads: Tensor) -> Tensor:
        """Combines the heads `(B, H, L, J)` to the outputs `(B, L, ...)`."""
        if self.head_combination == "sum":
            return ops.sum(heads, axis=1)
        if self.head_combination == "mean":
            return ops.mean(heads, axis=1)
        heads = ops.transpose(heads, (0, 2, 1, 3))
        width = heads.shape[-2] * heads.shape[-1]
        outputs = ops.reshape(heads, (*ops.shape(heads)[:2], width))
        if self.output_cores is None:
            return outputs
        return tensor_train.tt_matmul(outputs, self.output_cores, self.output_plan)

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        key_dim = input_shape[-1] if self.key_dim is None else self.key_dim
        size = {"concat": self.num_heads * key_dim, "project": input_shape[-1]}
        return (*input_shape[:2], size.get(self.head_combination, key_dim))

    def describe(self) -> str:
        """Returns the number of parameters and the plans of the maps and the filter."""
        if not self.built:
            raise ValueError(f"Expected a built layer. Received: layer={self.name}")
        lines = [
            f"{self.name}: {self.count_params():,} parameters, {self.num_heads} heads",
            f"  each key and value map: {self.plan}",
        ]
        if self.plan.split == 0:
            lines.append(f"  one product for the {2 * self.num_heads} maps of all heads")
        if self.output_cores is not None:
            lines.append(f"  output map: {self.output_plan}")
        bandwidths = {graph.bandwidth for graph in self.time_graphs}
        widths = sorted(width for width in bandwidths if width is not None)
        if self.method == "direct" or not widths:
            lines.append("  filter: direct at any length")
        else:
            for width in widths:
                block, diagonals, shortest = spectral_filter.banded_plan(width, self.head_dim)
                start = "any length" if self.method == "banded" else f"a length of {shortest}"
                lines.append(
                    f"  filter of bandwidth {width}: banded from {start} on, "
                    f"blocks of {block} or more, {diagonals + 1} block diagonals"
                )
        return "\n".join(lines)

    def get_config(self) -> dict[str, Any]:
        time_graph = time_graphs.serialize_time_graphs(self.time_graphs)
        return {**super().get_config(), "time_graph": time_graph}


class _SpectralAdapter(SequenceAttention):
    """Keeps the keys of the earlier tokens and the partial sums of Horner's rule.

    Causal, `Psi` is triangular: `U_k = alpha_k V + Psi U_{k+1}` of a token depends on earlier ones
    only. Within a bandwidth only the last tokens are kept.
    """

    can_extend = True

    def compares_pairs(self, length: int, dim: int) -> bool:
        layer = self.layer
        features = layer.key_dim or dim
        return not all(
            spectral_filter.is_banded(graph.bandwidth, layer.method, features, length)
            for graph in layer.time_graphs
        )

    def _sums(self) -> list[str]:
        return [f"sums_{k}" for k in range(1, self.layer.filter_order)]

    def empty_state(self, size: Tensor, length: Tensor) -> State:
        layer = self.layer
        width = time_graphs.common_bandwidth(time_graphs.current_graphs(layer))
        lead = (size, layer.num_heads)
        dim = layer.head_dim
        names = ["keys", *self._sums()]
        return time_graphs.empty_past(names, width, lead, length, dim, layer.compute_dtype)

    def extend(self, x: Tensor, state: State, chunk: Chunk) -> tuple[Tensor, State]:
        layer = self.layer
        graphs = time_graphs.current_graphs(self.layer)
        width = time_graphs.common_bandwidth(graphs)
        keys, values = layer.keys_and_values(x, chunk.mask)
        past, state = time_graphs.append(state, "keys", keys, chunk, width)
        dtype = at_least_float32(layer.variable_dtype)
        omega = ops.cast(time_graphs.weights(graphs, chunk, width, dtype), keys.dtype)
        psi = omega * ops.relu(matmul(keys, ops.swapaxes(past, -1, -2)))
        sums = self._times_alpha(layer.filter_order - 1, values)
        for k, name in reversed(list(enumerate(self._sums()))):
            past, state = time_graphs.append(state, name, sums, chunk, width)
            sums = self._times_alpha(k, values) + matmul(psi, past)
        return layer.combine(sums), state

    def _times_alpha(self, k: int, values: Tensor) -> Tensor:
        """Multiplies by `alpha_k`."""
        if self.layer.coefficients is None:
            return values
        return ops.cast(self.layer.coefficients[k], values.dtype) * values


@adapter_of.register
def _(layer: TensorizedSpectralAttention) -> AttentionAdapter:
    return _SpectralAdapter(layer, "scores", takes_causal_mask=True)


def _start_coefficients(shape: Sequence[int], dtype: str) -> Tensor:
    """`(1, 1, 0, ...)`: the papers' filter of order 2."""
    return ops.cast(ops.arange(shape[0]) < 2, dtype)
