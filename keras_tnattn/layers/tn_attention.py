"""Tensor-network attention: every site transformed by a matrix that its context chooses."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tnattn.initializers import NearIdentity
from keras_tnattn.layers.base_attention import AttentionAdapter, SequenceAttention, adapter_of
from keras_tnattn.ops import scan
from keras_tnattn.ops.masking import apply_mask
from keras_tnattn.ops.precision import matmul
from keras_tnattn.typing import Tensor

_BOUNDARIES = ("closed", "open")


@keras.saving.register_keras_serializable(package="keras_tnattn")
class TNAttention(keras.layers.Layer):
    """Attention whose context of a site is a product of matrices, one for each other site.

    With embeddings `phi(j)`, attention tensor `A` and transformation tensor `T` (the `B` of the
    document), at the sites `j = 1, ..., N`:

        a(j) = sum_s A[:, :, s] phi_s(j)
        HL(j) = a(1) ... a(j-1)        HR(j) = a(j+1) ... a(N)        C(j) = HR(j) G HL(j)
        W(j)[l, k] = tr(C(j) T[:, :, l, k])
        y(j) = phi(j) W(j)

    (Žunkovič, "Deep tensor networks with the tensor-network attention layer"). The boundary `G` is
    the identity for a closed chain and `v_R v_L^T` for an open one. Normalised, `C(j)` is divided
    by its Frobenius norm, which keeps a chain of any length within floating point and rescales
    `y(j)` by that factor only. (Not `HL` and `HR` one by one: a ring would no longer commute with
    shifts, as their norms depend on where it is cut.)

    The chain starts near the identity for embeddings that are not negative: every `a(j)` is a
    multiple of the identity and symmetric noise, so that the context of a long chain tends to a
    projector `v v^T` and `W(j)` to a positive multiple of the identity whatever the length: 1 for
    an open chain, from 1 down to `1 / sqrt(D)` for a closed one. A deep stack over thousands of
    sites passes its input on and trains from the first step.

    Costs `N (2 d D^2 + 6 D^3 + 2 D^2 d k)` FLOPs, for an open chain `2 D^3 + 4 D^2` in the place of
    `6 D^3`; `O(N (D^2 + d k))` memory; depth `O(log N)`. Contexts are computed in float32 under
    mixed precision too.

    A masked site acts as the identity on the chain and its output is 0: padding changes nothing.

    Args:
        output_dim: Size `k` of the output. Defaults to the size `d` of the input.
        bond_dim: Size `D` of the matrices. Defaults to 8.
        boundary: `"closed"` (default) or `"open"`.
        attention_order: 1 (default), or 2 for the generalised attention tensor,
            `a(j) = sum_{s,t} A[:, :, s, t] phi_s(j) phi_t(j)`.
        normalize: Whether the contexts are normalised. Defaults to `True`.
        uniform: Whether all sites share their tensors. Defaults to `True`.
        num_sites: Number `N` of sites; needed for tensors per site, and only there.
        use_bias: Whether `y` gets a bias `(k,)`. Defaults to `False`.
        activation: Of the output. Default: none.
        trainable_boundary: Whether `v_L` and `v_R` of an open chain are trained. Default: an
            infinite chain in the reference state 0 at either end, which leaves the left and the
            right eigenvector of `A_0 = A[:, :, 0]` (of the first and of the last site) to its
            largest eigenvalue; evaluated for 1,024 sites.
        initial_deviation: Standard deviation of the noise on the identity at the start. Defaults to
            0.1.
        kernel_regularizer: Applied to both tensors.

    Call arguments:
        inputs: Float tensor `(B, N, d)`: batch, sites, features. `B` and `N` may be unknown.
        mask: Boolean tensor `(B, N)`, `True` for a real site.
        return_local_weights: Whether to return `W` too. Defaults to `False`.

    Returns:
        Tensor `(B, N, k)`; with `return_local_weights` also `W`, `(B, N, d, k)`.

    Raises:
        ValueError: For an unknown option, tensors per site without `num_sites`, or another length.
    """

    def __init__(
        self,
        output_dim: int | None = None,
        bond_dim: int = 8,
        boundary: str = "closed",
        attention_order: int = 1,
        normalize: bool = True,
        uniform: bool = True,
        num_sites: int | None = None,
        use_bias: bool = False,
        activation: str | None = None,
        trainable_boundary: bool = False,
        initial_deviation: float = 0.1,
        kernel_regularizer: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        sizes = {"output_dim": output_dim, "bond_dim": bond_dim, "num_sites": num_sites}
        for name, value in sizes.items():
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"Expected a positive int. Received: {name}={value!r}")
        if boundary not in _BOUNDARIES:
            raise ValueError(f"Expected one of {_BOUNDARIES}. Received: boundary={boundary!r}")
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
        self.bond_dim = bond_dim
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
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={} if uniform else {1: num_sites})

    def build(self, input_shape: Sequence[int | None]) -> None:
        bond, dim = self.bond_dim, input_shape[-1]
        sites = () if self.uniform else (self.num_sites,)
        self.attention_tensor = self._add_tensor(
            "attention_tensor", (*sites, bond, bond, *[dim] * self.attention_order), 1.0, True
        )
        # The weight of the identity that makes W(j) = 1 where all matrices of the chain are too.
        trace = {"closed": bond**0.5 if self.normalize else bond, "open": 1}[self.boundary]
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
        self, inputs: Tensor, mask: Tensor | None = None, return_local_weights: bool = False
    ) -> Tensor:
        # Products of many matrices need the precision and the range of float32.
        dtype = keras.backend.result_type(self.variable_dtype, "float32")
        batch, length, dim = ops.shape(inputs)
        if not self.uniform:
            length = self.num_sites
            inputs = ops.reshape(inputs, (batch, length, dim))
        phi = scan.fold_sites(ops.cast(apply_mask(inputs, mask), dtype))
        real = ops.ones((batch, length), "bool") if mask is None else ops.cast(mask, "bool")
        weights = self._local_weights(phi, scan.fold_sites(real, False))
        outputs = ops.squeeze(matmul(phi[..., None, :], weights), -2)
        if self.bias is not None:
            outputs = outputs + self.bias
        outputs = self.activation(scan.unfold_sites(outputs, length))
        outputs = apply_mask(ops.cast(outputs, self.compute_dtype), mask)
        if not return_local_weights:
            return outputs
        weights = ops.cast(scan.unfold_sites(weights, length), self.compute_dtype)
        return outputs, apply_mask(weights, mask)

    def _local_weights(self, phi: Tensor, real: Tensor) -> Tensor:
        """`W` of all sites, `(b, blocks, B, d, k)`, from `phi`, `(b, blocks, B, d)`."""
        bond, dim = self.bond_dim, phi.shape[-1]
        features = phi
        if self.attention_order == 2:
            products = phi[..., :, None] * phi[..., None, :]
            features = ops.reshape(products, (*ops.shape(phi)[:-1], dim * dim))
        sites = () if self.uniform else (self.num_sites,)
        attention = ops.reshape(self.attention_tensor, (*sites, bond * bond, -1))
        matrices = scan.map_sites(features, ops.swapaxes(attention, -1, -2), (bond, bond))
        matrices = ops.where(real[..., None, None], matrices, ops.eye(bond, dtype=matrices.dtype))
        # tr(C T) pairs C[b, a] with T[a, b].
        if self.boundary == "closed":
            contexts = scan.closed_contexts(matrices, self.normalize)
        else:
            rows, columns = scan.open_contexts(matrices, *self._boundary(), self.normalize)
            contexts = columns * rows
        contexts = ops.reshape(contexts, (*ops.shape(phi)[:-1], bond * bond))
        transformation = ops.swapaxes(self.transformation_tensor, len(sites), len(sites) + 1)
        output_dim = transformation.shape[-1]
        transformation = ops.reshape(transformation, (*sites, bond * bond, dim * output_dim))
        return scan.map_sites(contexts, transformation, (dim, output_dim))

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

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return (*input_shape[:2], self.output_dim or input_shape[-1])

    def compute_output_spec(
        self, inputs: Tensor, mask: Tensor | None = None, return_local_weights: bool = False
    ) -> Tensor:
        shape = self.compute_output_shape(inputs.shape)
        outputs = keras.KerasTensor(shape, self.compute_dtype)
        if not return_local_weights:
            return outputs
        weights = (*shape[:2], inputs.shape[-1], shape[-1])
        return outputs, keras.KerasTensor(weights, self.compute_dtype)

    def get_config(self) -> dict:
        names = (
            "output_dim",
            "bond_dim",
            "boundary",
            "attention_order",
            "normalize",
            "uniform",
            "num_sites",
            "use_bias",
            "trainable_boundary",
            "initial_deviation",
        )
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            "activation": keras.activations.serialize(self.activation),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }


@adapter_of.register
def _(layer: TNAttention) -> AttentionAdapter:
    return SequenceAttention(layer, "local_weights", "return_local_weights")
