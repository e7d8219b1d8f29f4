"""Tensor-network attention: the context of each site determines its linear map."""

from typing import Any, ClassVar

import keras
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.initializers import NearIdentity
from keras_tnattn.layers.base_attention import (
    AttentionAdapter,
    SequenceAttention,
    State,
    adapter_of,
    new_state,
)
from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.ops import scan
from keras_tnattn.ops.masking import apply_mask
from keras_tnattn.ops.precision import at_least_float32, matmul
from keras_tnattn.typing import Activation, Chunk, Regularizer, Shape, Tensor

_BOUNDARIES = ("closed", "open")


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TNAttention(BaseLayer):
    """Attention in which the context of a site is a product of matrices, one for each other site.

    With embeddings `phi(j)`, attention tensor `A` and transformation tensor `T` (called `B` in the
    post), at the sites `j = 1, ..., N`:

        a(j) = sum_s A[:, :, s] phi_s(j)
        HL(j) = a(1) ... a(j-1)        HR(j) = a(j+1) ... a(N)        C(j) = HR(j) G HL(j)
        W(j)[l, k] = tr(C(j) T[:, :, l, k])
        y(j) = phi(j) W(j)

    (Žunkovič, "Deep tensor networks with the tensor-network attention layer"). The boundary `G` is
    the identity for a closed chain and `v_R v_L^T` for an open one. By default `C(j)` is divided by
    its Frobenius norm, which keeps chains of any length within the range of floating point and only
    rescales `y(j)`. With `normalize="each"`, as in the post, `HL` and `HR` are each divided by
    their norms; a closed chain then no longer commutes with shifts, because the norms depend on
    where the ring is cut.

    With non-negative embeddings the initial chain is near the identity: every `a(j)` is a multiple
    of the identity plus symmetric noise. The context of a long chain then tends to a projector
    `v v^T`, and `W(j)` tends to a positive multiple of the identity, whatever the length: 1 for an
    open chain, between `1 / sqrt(D)` and 1 for a closed one. A deep stack over thousands of sites
    therefore passes on its input and can be trained from the first step.

    With `use_causal_mask` a site sees its left context only, `C(j) = G HL(j)`: a product of all
    later sites would tell it what is to be predicted. A normalized context is then `HL(j)` (of an
    open chain `v_R v_L^T HL(j)`) divided by its norm, and one matrix is all that a decoder has to
    keep of the earlier sites.

    The layer has `D^2 d (1 + k)` weights, `D^2 d (d + k)` with `attention_order=2`: 67,584 for
    `d = k = 32` at the default `D = 8`, where `keras.layers.MultiHeadAttention(2, 32)` has 8,416.
    `bond_dim=3` makes 9,504.

    Costs `N (2 d D^2 + 6 D^3 + 2 D^2 d k)` FLOPs (for an open chain `2 D^3 + 4 D^2` instead of
    `6 D^3`) and `O(N (D^2 + d k))` memory, at depth `O(log N)`. Contexts are computed in float32
    under mixed precision, too.

    A masked site acts as the identity on the chain, and its output is 0, so that padding does not
    change the other outputs. A site whose features are all 0 acts as the identity, too: by the
    formula it would set the contexts of all other sites to 0, and a single word that training drops
    would hide all others.

    Args:
        output_dim: Int, the size `k` of the output. Defaults to the size `d` of the input.
        bond_dim: Int, the size `D` of the matrices. Defaults to 8; the number of weights grows with
            its square.
        boundary: `"closed"` (default) or `"open"`.
        attention_order: 1 (default), or 2 for the generalized attention tensor,
            `a(j) = sum_{s,t} A[:, :, s, t] phi_s(j) phi_t(j)`.
        normalize: `True` (default) divides each `C(j)` by its Frobenius norm; `"each"` divides
            `HL(j)` and `HR(j)` by theirs; `False` does not normalize.
        uniform: Whether all sites share their tensors. Defaults to `True`.
        num_sites: Int, the number `N` of sites; for `uniform=False` only, and required there.
        use_bias: Whether to add a bias `(k,)`. Defaults to `False`.
        activation: Activation function of the output. Default: none.
        trainable_boundary: Whether `v_L` and `v_R` of an open chain are trained. Defaults to
            `False`: they represent an infinite chain in the reference state 0 at either end: the
            left and the right eigenvector of `A_0 = A[:, :, 0]` (of the first and of the last site)
            for its largest eigenvalue, with the error of `ops.scan.dominant_eigenvectors`.
        initial_deviation: Standard deviation of the noise that is added to the initial identity
            matrices. Defaults to 0.1.
        kernel_regularizer: Regularizer applied to both tensors.

    Call arguments:
        inputs: Float tensor `(B, N, d)`: batch, sites, features. `B` and `N` may be unknown.
        mask: Boolean tensor `(B, N)`, `True` for a real site.
        return_details: Whether to also return `{"local_weights": W}`. Defaults to `False`.
        use_causal_mask: Whether the context of a site is the product of the earlier sites only.
            Defaults to `False`.

    Returns:
        Tensor `(B, N, k)`; with `return_details` also a dict of `local_weights`, the maps `W`,
        `(B, N, d, k)`.

    Raises:
        ValueError: For an unknown option, tensors per site without `num_sites`, or an input whose
            length is not `num_sites`.

    Example:
        >>> layer = TNAttention(output_dim=3, bond_dim=4)
        >>> tuple(layer(keras.ops.ones((2, 100, 5))).shape)
        (2, 100, 3)
    """

    call_shapes: ClassVar = {"inputs": "B N d", "mask": "B? N"}

    def __init__(
        self,
        output_dim: int | None = None,
        bond_dim: int = 8,
        boundary: str = "closed",
        attention_order: int = 1,
        normalize: bool | str = True,
        uniform: bool = True,
        num_sites: int | None = None,
        use_bias: bool = False,
        activation: Activation | None = None,
        trainable_boundary: bool = False,
        initial_deviation: float = 0.1,
        kernel_regularizer: Regularizer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        output_dim = None if output_dim is None else check_int("output_dim", output_dim)
        num_sites = None if num_sites is None else check_int("num_sites", num_sites)
        if boundary not in _BOUNDARIES:
            raise ValueError(f"Expected one of {_BOUNDARIES}. Received: boundary={boundary!r}")
        if normalize not in (True, False, "each"):
            raise ValueError(f"Expected True, False or 'each'. Received: normalize={normalize!r}")
        if attention_order not in (1, 2):
            raise ValueError(f"Expected 1 or 2. Received: attention_order={attention_order!r}")
        if uniform != (num_sites is None):
            raise ValueError(
                "Expected `num_sites` for tensors per site, and only there. "
                f"Received: uniform={uniform}, num_sites={num_sites}"
            )
        if trainable_boundary and boundary != "open":
            raise ValueError(
                "Expected boundary='open' for a trained boundary. "
                f"Received: boundary={boundary!r}, trainable_boundary={trainable_boundary}"
            )
        self.output_dim = output_dim
        self.bond_dim = check_int("bond_dim", bond_dim)
        self.boundary = boundary
        self.attention_order = attention_order
        self.normalize = normalize
        self.uniform = uniform
        self.num_sites = num_sites
        self.use_bias = use_bias
        self.activation = keras.activations.get(activation)
        self.trainable_boundary = trainable_boundary
        self.initial_deviation = float(initial_deviation)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={} if uniform else {1: num_sites})

    def build(self, input_shape: Shape) -> None:
        bond = self.bond_dim
        dim = input_shape[-1]
        sites = () if self.num_sites is None else (self.num_sites,)
        self.attention_tensor = self._add_tensor(
            "attention_tensor", (*sites, bond, bond, *[dim] * self.attention_order), 1.0, True
        )
        # With this scale, W(j) is the identity if all matrices of the chain are.
        trace = 1.0 if self.boundary == "open" else float(bond)
        if self.normalize == "each":
            trace /= bond
        elif self.normalize and self.boundary == "closed":
            trace /= bond**0.5
        self.transformation_tensor = self._add_tensor(
            "transformation_tensor", (*sites, bond, bond, dim, self.output_dim or dim), 1 / trace
        )
        self.left_boundary = self.right_boundary = None
        if self.trainable_boundary:
            start = keras.initializers.Constant(bond**-0.5)
            self.left_boundary, self.right_boundary = (
                self.add_weight(shape=(bond,), initializer=start, autocast=False, name=name)
                for name in ("left_boundary", "right_boundary")
            )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                shape=(self.output_dim or dim,), initializer="zeros", autocast=False, name="bias"
            )
        self.built = True

    def _add_tensor(
        self, name: str, shape: tuple[int, ...], scale: float, symmetric: bool = False
    ) -> keras.Variable:
        num_features = len(shape) - (2 if self.uniform else 3)
        return self.add_weight(
            shape=shape,
            initializer=NearIdentity(num_features, self.initial_deviation, scale, symmetric),
            regularizer=self.kernel_regularizer,
            autocast=False,
            name=name,
        )

    def call(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        return_details: bool = False,
        use_causal_mask: bool = False,
    ) -> Tensor:
        batch, length, dim = ops.shape(inputs)
        if not self.uniform:
            # Known here even if it is not in the trace.
            length = self.num_sites
            inputs = ops.reshape(inputs, (batch, length, dim))
            mask = None if mask is None else ops.reshape(mask, (-1, length))
        phi, matrices = self._chain(inputs, mask)
        if use_causal_mask:
            left = scan.left_contexts(matrices, bool(self.normalize))
            contexts = self._causal_contexts(left)
        else:
            contexts = self._contexts(matrices)
        weights = self._local_weights(contexts, dim)
        outputs = self._outputs(phi, weights, length, mask)
        if not return_details:
            return outputs
        weights = ops.cast(scan.unfold_sites(weights, length), self.compute_dtype)
        return outputs, {"local_weights": apply_mask(weights, mask)}

    def extend(self, inputs: Tensor, mask: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        """Computes causal outputs of sites to the right of others.

        Args:
            inputs: Float tensor `(B, N, d)`, the new sites.
            mask: Boolean tensor `(B, N)`.
            left: The product of the earlier sites, `(B, D, D)`.

        Returns:
            Outputs `(B, N, k)`, and the product with the new sites.
        """
        length, dim = ops.shape(inputs)[1], inputs.shape[-1]
        phi, matrices = self._chain(inputs, mask)
        normalize = bool(self.normalize)
        before = scan.unfold_sites(scan.left_contexts(matrices, normalize), length)
        before = matmul(left[:, None], before)
        last = matmul(before[:, -1], scan.unfold_sites(matrices, length)[:, -1])
        if normalize:
            before, last = scan.divide_by_norm(before), scan.divide_by_norm(last)
        weights = self._local_weights(self._causal_contexts(scan.fold_sites(before)), dim)
        return self._outputs(phi, weights, length, mask), last

    def _chain(self, inputs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The folded embeddings `(b, blocks, B, d)` and matrices `(b, blocks, B, D, D)`."""
        # Products of many matrices need the precision and the range of float32.
        phi = scan.fold_sites(ops.cast(apply_mask(inputs, mask), self.chain_dtype))
        bond = self.bond_dim
        dim = phi.shape[-1]
        features = phi
        if self.attention_order == 2:
            products = phi[..., :, None] * phi[..., None, :]
            features = ops.reshape(products, (*ops.shape(phi)[:-1], dim * dim))
        sites = () if self.uniform else (self.num_sites,)
        attention = ops.reshape(self.attention_tensor, (*sites, bond * bond, -1))
        matrices = scan.map_sites(features, ops.swapaxes(attention, -1, -2), (bond, bond))
        present = ops.any(features != 0, axis=-1)[..., None, None]
        return phi, ops.where(present, matrices, ops.eye(bond, dtype=matrices.dtype))

    @property
    def chain_dtype(self) -> str:
        """The dtype of the contexts: float32, or float64."""
        return at_least_float32(self.variable_dtype)

    def _contexts(self, matrices: Tensor) -> Tensor:
        """`C` of all sites, folded `(b, blocks, B, D, D)`."""
        if self.normalize == "each":
            left, right = scan.side_contexts(matrices)
            if self.boundary == "open":
                start, end = self._boundary()
                left, right = matmul(start[None], left), matmul(right, end[:, None])
            return matmul(right, left)
        if self.boundary == "closed":
            return scan.closed_contexts(matrices, bool(self.normalize))
        rows, columns = scan.open_contexts(matrices, *self._boundary(), bool(self.normalize))
        return columns * rows

    def _causal_contexts(self, left: Tensor) -> Tensor:
        """`C` from the products of the earlier sites, folded `(b, blocks, B, D, D)`."""
        if self.boundary == "closed":
            return left
        start, end = self._boundary()
        rows = matmul(start[None], left)
        if self.normalize:
            rows, end = scan.divide_by_norm(rows), scan.divide_by_norm(end[None])[0]
        return end[:, None] * rows

    def _local_weights(self, contexts: Tensor, dim: int) -> Tensor:
        """`W` of all sites, `(b, blocks, B, d, k)`, from their contexts."""
        # tr(C T) pairs C[b, a] with T[a, b].
        bond = self.bond_dim
        contexts = ops.reshape(contexts, (*ops.shape(contexts)[:-2], bond * bond))
        sites = 0 if self.uniform else 1
        transformation = ops.swapaxes(self.transformation_tensor, sites, sites + 1)
        output_dim = transformation.shape[-1]
        lead = transformation.shape[:sites]
        transformation = ops.reshape(transformation, (*lead, bond * bond, dim * output_dim))
        return scan.map_sites(contexts, transformation, (dim, output_dim))

    def _outputs(self, phi: Tensor, weights: Tensor, length: Tensor, mask: Tensor) -> Tensor:
        outputs = ops.squeeze(matmul(phi[..., None, :], weights), -2)
        if self.bias is not None:
            outputs = outputs + self.bias
        outputs = self.activation(scan.unfold_sites(outputs, length))
        return apply_mask(ops.cast(outputs, self.compute_dtype), mask)

    def _boundary(self) -> tuple[Tensor, Tensor]:
        if self.trainable_boundary:
            return self.left_boundary, self.right_boundary
        tensor = self.attention_tensor
        for _ in range(self.attention_order):
            tensor = tensor[..., 0]
        if self.uniform:
            return scan.dominant_eigenvectors(tensor)
        left, _ = scan.dominant_eigenvectors(tensor[0])
        return left, scan.dominant_eigenvectors(tensor[-1])[1]

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return (*input_shape[:2], self.output_dim or input_shape[-1])

    def compute_output_spec(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        return_details: bool = False,
        use_causal_mask: bool = False,
    ) -> Tensor:
        shape = self.compute_output_shape(inputs.shape)
        outputs = keras.KerasTensor(shape, self.compute_dtype)
        if not return_details:
            return outputs
        weights = (*shape[:2], inputs.shape[-1], shape[-1])
        return outputs, {"local_weights": keras.KerasTensor(weights, self.compute_dtype)}


class _TensorNetworkAdapter(SequenceAttention):
    """Keeps the product of the matrices of the earlier sites."""

    @property
    def can_extend(self) -> bool:
        return self.layer.uniform

    def compares_pairs(self, length: int, dim: int) -> bool:
        return False

    def empty_state(self, size: Tensor, length: Tensor) -> State:
        bond = self.layer.bond_dim
        identity = ops.eye(bond, dtype=self.layer.chain_dtype)
        if self.layer.normalize:
            identity = identity / bond**0.5
        left = ops.broadcast_to(identity, (size, bond, bond))
        return new_state(context={"left": left})

    def extend(self, x: Tensor, state: State, chunk: Chunk) -> tuple[Tensor, State]:
        outputs, left = self.layer.extend(x, chunk.mask, state["context"]["left"])
        return outputs, {**state, "context": {"left": left}}


@adapter_of.register
def _(layer: TNAttention) -> AttentionAdapter:
    return _TensorNetworkAdapter(layer, "local_weights", "return_details", takes_causal_mask=True)
