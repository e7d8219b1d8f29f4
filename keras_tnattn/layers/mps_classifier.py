"""A matrix product state as a classifier of chains."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.initializers import NearIdentity
from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.ops import scan
from keras_tnattn.ops.masking import apply_mask
from keras_tnattn.ops.norms import divide_by_norm
from keras_tnattn.ops.precision import at_least_float32, matmul
from keras_tnattn.typing import Regularizer, Tensor


@keras.saving.register_keras_serializable(package="keras_tnattn")
class MPSClassifier(BaseLayer):
    """Classifier of chains: a matrix product state with an output tensor between two sites.

    With tensors `A`, `(D, D, d)`, the output tensor `O`, `(D, D, C)`, after `p` sites, and the
    boundary vectors `v_L`, `v_R`:

        a(j) = sum_s A[:, :, s] phi_s(j)
        l = v_L^T a(1) ... a(p)        r = a(p+1) ... a(N) v_R
        z_c = l O[:, :, c] r

    (Žunkovič, "Deep tensor networks with the tensor-network attention layer", the MPS layer). `l`
    and `r` are divided by their norms; `return_log_scale` also returns the logarithm of the product
    of the norms. The contraction itself is `exp(log_scale) z`, which is out of the range of
    floating point beyond a few hundred sites.

    Costs `N (2 d D^2 + 4 D^3) + 2 C D^2` FLOPs and `O(N D^2)` memory per chain, at depth
    `O(log N)`, in float32 under mixed precision, too. A masked site acts as the identity and does
    not count towards `p`: padding changes nothing. A site whose features are all 0 is treated in
    the same way: by the formula above, its matrix of 0 would make all logits 0.

    Args:
        num_classes: Int, the number `C` of classes.
        bond_dim: Int, the size `D` of the matrices. Defaults to 8.
        uniform: Whether all sites share their tensor. Defaults to `True`.
        num_sites: Int, the number `N` of sites; for `uniform=False` only, and required there.
        position: Int, the number `p` of sites before the output tensor. Default: half of the sites,
            rounded down.
        initial_deviation: Standard deviation of the noise that is added to the initial identity
            matrices. Defaults to 0.1.
        kernel_regularizer: Regularizer applied to the tensors of the sites and of the output.

    Call arguments:
        inputs: Float tensor `(B, N, d)`. `B` and `N` may be unknown.
        mask: Boolean tensor `(B, N)`, `True` for a real site.
        return_log_scale: Whether to return `log_scale` too. Defaults to `False`.

    Returns:
        Logits `(B, C)`; with `return_log_scale` also `log_scale`, `(B,)`. In a chain shorter than
        `p` the output tensor is at the end.

    Raises:
        ValueError: For sizes that are not positive, or a tensor per site without `num_sites`.

    Example:
        >>> tuple(MPSClassifier(num_classes=10, bond_dim=4)(keras.ops.ones((2, 100, 5))).shape)
        (2, 10)
    """

    call_shapes: ClassVar = {"inputs": "B N d", "mask": "B? N"}

    def __init__(
        self,
        num_classes: int,
        bond_dim: int = 8,
        uniform: bool = True,
        num_sites: int | None = None,
        position: int | None = None,
        initial_deviation: float = 0.1,
        kernel_regularizer: Regularizer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        num_sites = None if num_sites is None else check_int("num_sites", num_sites)
        if uniform != (num_sites is None):
            raise ValueError(
                "Expected `num_sites` for a tensor per site, and only there. "
                f"Received: uniform={uniform}, num_sites={num_sites}"
            )
        self.num_classes = check_int("num_classes", num_classes)
        self.bond_dim = check_int("bond_dim", bond_dim)
        self.uniform = uniform
        self.num_sites = num_sites
        self.position = None if position is None else check_int("position", position, at_least=0)
        self.initial_deviation = float(initial_deviation)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={} if uniform else {1: num_sites})

    def build(self, input_shape: Sequence[int | None]) -> None:
        bond = self.bond_dim
        sites = () if self.uniform else (self.num_sites,)
        self.site_tensor = self.add_weight(
            shape=(*sites, bond, bond, input_shape[-1]),
            initializer=NearIdentity(1, self.initial_deviation),
            regularizer=self.kernel_regularizer,
            autocast=False,
            name="site_tensor",
        )
        self.output_tensor = self.add_weight(
            shape=(bond, bond, self.num_classes),
            initializer="glorot_normal",
            regularizer=self.kernel_regularizer,
            autocast=False,
            name="output_tensor",
        )
        start = keras.initializers.Constant(bond**-0.5)
        self.left_boundary, self.right_boundary = (
            self.add_weight(shape=(bond,), initializer=start, autocast=False, name=name)
            for name in ("left_boundary", "right_boundary")
        )
        self.built = True

    def call(
        self, inputs: Tensor, mask: Tensor | None = None, return_log_scale: bool = False
    ) -> Tensor:
        # Products of many matrices need the precision and the range of float32.
        dtype = at_least_float32(self.variable_dtype)
        batch, length, dim = ops.shape(inputs)
        if not self.uniform:
            # Known here even if it is not in the trace.
            length = self.num_sites
            inputs = ops.reshape(inputs, (batch, length, dim))
            mask = None if mask is None else ops.reshape(mask, (-1, length))
        bond = self.bond_dim
        real = ops.any(inputs != 0, axis=-1)
        if mask is not None:
            real = ops.logical_and(real, ops.cast(mask, "bool"))
        rank = ops.cumsum(ops.cast(real, "int32"), axis=1)
        position = self.position
        if position is None:
            position = ops.sum(ops.cast(real, "int32"), axis=1, keepdims=True) // 2
        phi = scan.fold_sites(ops.cast(apply_mask(inputs, mask), dtype))
        sites = () if self.uniform else (self.num_sites,)
        kernel = ops.swapaxes(ops.reshape(self.site_tensor, (*sites, bond * bond, dim)), -1, -2)
        matrices = scan.map_sites(phi, kernel, (bond, bond))
        identity = ops.eye(bond, dtype=dtype)

        def product(side: Tensor) -> tuple[Tensor, Tensor]:
            inside = scan.fold_sites(ops.logical_and(real, side), False)[..., None, None]
            return scan.chain_product(ops.where(inside, matrices, identity))

        left, left_scale = product(rank <= position)
        right, right_scale = product(rank > position)
        row = matmul(self.left_boundary[None, None], left)
        column = matmul(right, self.right_boundary[:, None])
        rest = ops.reshape(divide_by_norm(column) * divide_by_norm(row), (batch, bond * bond))
        # l O r pairs (r l)[b, a] with O[a, b].
        kernel = ops.reshape(ops.swapaxes(self.output_tensor, 0, 1), (bond * bond, -1))
        outputs = ops.cast(matmul(rest, kernel), self.compute_dtype)
        if not return_log_scale:
            return outputs
        norms = ops.sum(ops.square(row), (1, 2)) * ops.sum(ops.square(column), (1, 2))
        return outputs, left_scale + right_scale + 0.5 * ops.log(norms)

    def compute_mask(self, inputs: Tensor, mask: Tensor | None = None) -> None:
        return None

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return (input_shape[0], self.num_classes)

    def compute_output_spec(
        self, inputs: Tensor, mask: Tensor | None = None, return_log_scale: bool = False
    ) -> Tensor:
        shape = self.compute_output_shape(inputs.shape)
        outputs = keras.KerasTensor(shape, self.compute_dtype)
        if not return_log_scale:
            return outputs
        dtype = at_least_float32(self.variable_dtype)
        return outputs, keras.KerasTensor(shape[:1], dtype)
