"""Products over all other sites of a chain of matrices, in logarithmic depth.

For matrices `a(1), ..., a(N)`, all `(D, D)`, and a boundary `G` that closes the chain, the context
of site `j` is everything but the site itself,

    C(j) = a(j+1) ... a(N) G a(1) ... a(j-1)

so that `tr(G a(1) ... a(j-1) b a(j+1) ... a(N)) = tr(C(j) b)` for any `b` in place of `a(j)`.
A binary tree over the sites gives all of them. The upward pass computes the product `P` of each
segment; the downward pass starts from `C = G` at the root and takes the context of a segment to its
two halves:

    P = P(left) P(right)        C(left) = P(right) C        C(right) = C P(left)

`3 N` products of `(D, D)` matrices: `6 N D^3` FLOPs, `O(N D^2)` memory, depth `2 log2(N)`. If `G`
is `v_R v_L^T`, every context is `r l^T`: the downward pass has only vectors and costs `4 N D^2`.

The tree is cut into tiers of five levels: blocks of 32 sites, blocks of 32 blocks, and so on. A
tier works on the folded form of a sequence, `(sites of a block, blocks, batch, ...)`, with the
sites in bit-reversed order. The left halves of all segments of a level are then the first half of
the first axis and the right halves the second, so that a level is one batched product of two
slices at any length. The last block of a chain is padded with the identity.

With `normalize`, each product is divided by its largest entry, and the contexts by their Frobenius
norms. They then do not depend on the scale of any matrix, as long as products of two entries stay
in the range of the dtype, and the gradient may treat the scales of intermediate products as
constants.
"""

from collections.abc import Callable

from keras import ops

from keras_tnattn.ops.norms import divide_by_largest, divide_by_norm, inverse_largest
from keras_tnattn.ops.precision import matmul
from keras_tnattn.typing import Tensor

_BLOCK = 32
# If the length is unknown when the graph is traced: chains of up to 32^4 = 1,048,576 sites.
_MAX_TIERS = 4
# `dominant_eigenvectors` squares a matrix 24 times and differentiates the first 10 squarings.
_SQUARINGS, _GRADIENT_SQUARINGS = 24, 10


def fold_sites(x: Tensor, fill: Tensor = 0) -> Tensor:
    """Cuts the site axis into blocks, in the order that the scan needs.

    Args:
        x: Tensor `(B, N, ...)`; `B` and `N` may be unknown.
        fill: The value of the sites that complete the last block: a number, or a tensor of the
            shape `...`. Defaults to 0.

    Returns:
        Tensor `(b, ceil(N / b), B, ...)` with `b = 32`, or for a shorter chain of known length the
        next power of two.

    Example:
        >>> import keras
        >>> tuple(fold_sites(keras.ops.ones((2, 40, 3))).shape)
        (32, 2, 2, 3)
    """
    batch, length, *rest = ops.shape(x)
    block = _block(length)
    count = -(-length // block)
    # A chain without sites is one block of padding.
    count = max(count, 1) if isinstance(count, int) else ops.maximum(count, 1)
    filling = ops.broadcast_to(ops.cast(fill, x.dtype), (batch, count * block - length, *rest))
    x = ops.reshape(ops.concatenate([x, filling], axis=1), (batch, count, block, *rest))
    x = ops.transpose(x, (2, 1, 0, *range(3, len(x.shape))))
    return ops.take(x, _bit_reversal(block), axis=0)


def unfold_sites(x: Tensor, length: Tensor) -> Tensor:
    """Undoes `fold_sites`.

    Args:
        x: Tensor `(b, ceil(N / b), B, ...)`.
        length: Number of sites `N`.

    Returns:
        Tensor `(B, N, ...)`.

    Example:
        >>> import keras
        >>> tuple(unfold_sites(fold_sites(keras.ops.ones((2, 40, 3))), 40).shape)
        (2, 40, 3)
    """
    block, count, batch, *rest = ops.shape(x)
    # A bit reversal is its own inverse.
    x = ops.take(x, _bit_reversal(block), axis=0)
    x = ops.transpose(x, (2, 1, 0, *range(3, len(x.shape))))
    return ops.reshape(x, (batch, count * block, *rest))[:, :length]


def map_sites(x: Tensor, kernel: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Multiplies the vectors of the sites by a shared kernel, or by one kernel per site.

    Args:
        x: Folded tensor `(b, blocks, B, K)`.
        kernel: Tensor `(K, M)`, or `(N, K, M)`, one for each site.
        shape: The shape that replaces the last axis, `M`.

    Returns:
        Folded tensor `(b, blocks, B, *shape)`.

    Example:
        >>> import keras
        >>> phi = fold_sites(keras.ops.ones((2, 40, 3)))
        >>> tuple(map_sites(phi, keras.ops.ones((3, 16)), (4, 4)).shape)
        (32, 2, 2, 4, 4)
    """
    lead = ops.shape(x)[:-1]
    if len(kernel.shape) == 2:
        x = matmul(ops.reshape(x, (-1, x.shape[-1])), kernel)
    else:
        x = matmul(x, fold_sites(kernel[None])[:, :, 0])
    return ops.reshape(x, (*lead, *shape))


def closed_contexts(matrices: Tensor, normalize: bool = True) -> Tensor:
    """Returns the contexts of rings, `C(j) = a(j+1) ... a(N) a(1) ... a(j-1)`.

    Args:
        matrices: Folded float tensor `(b, blocks, B, D, D)`, the identity where no site is.
        normalize: Whether each context is divided by its Frobenius norm. Defaults to `True`.

    Returns:
        Folded tensor `(b, blocks, B, D, D)`.

    Example:
        >>> import keras
        >>> tuple(closed_contexts(keras.ops.ones((4, 1, 2, 3, 3))).shape)
        (4, 1, 2, 3, 3)
    """
    identity = ops.eye(matrices.shape[-1], dtype=matrices.dtype)

    def descend(left: Tensor, right: Tensor, states: list) -> list:
        (context,) = states
        halves = [matmul(right, context), matmul(context, left)]
        return [ops.concatenate(halves, axis=0)]

    return _contexts(matrices, [identity], descend, normalize)[0]


def open_contexts(
    matrices: Tensor, left: Tensor, right: Tensor, normalize: bool = True
) -> tuple[Tensor, Tensor]:
    """Returns the contexts `C(j) = r(j) l(j)` of open chains as their two factors.

    `l(j) = v_L^T a(1) ... a(j-1)` and `r(j) = a(j+1) ... a(N) v_R`.

    Args:
        matrices: Folded float tensor `(b, blocks, B, D, D)`, the identity where no site is.
        left: Boundary vector `v_L`, `(D,)`.
        right: Boundary vector `v_R`, `(D,)`.
        normalize: Whether each vector is divided by its norm. Defaults to `True`.

    Returns:
        Folded rows `(b, blocks, B, 1, D)` and columns `(b, blocks, B, D, 1)`.

    Example:
        >>> import keras
        >>> vector = keras.ops.ones(3)
        >>> rows, columns = open_contexts(keras.ops.ones((4, 1, 2, 3, 3)), vector, vector)
        >>> tuple(rows.shape), tuple(columns.shape)
        ((4, 1, 2, 1, 3), (4, 1, 2, 3, 1))
    """
    root = [ops.reshape(left, (1, -1)), ops.reshape(right, (-1, 1))]
    row, column = _contexts(matrices, root, _descend_sides, normalize)
    return row, column


def side_contexts(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Returns `HL(j) = a(1) ... a(j-1)` and `HR(j) = a(j+1) ... a(N)`, each of Frobenius norm 1.

    Args:
        matrices: Folded float tensor `(b, blocks, B, D, D)`, the identity where no site is.

    Returns:
        Two folded tensors `(b, blocks, B, D, D)`; an empty product is `1 / sqrt(D)`.

    Example:
        >>> import keras
        >>> left, right = side_contexts(keras.ops.ones((4, 1, 2, 3, 3)))
        >>> tuple(left.shape)
        (4, 1, 2, 3, 3)
    """
    identity = ops.eye(matrices.shape[-1], dtype=matrices.dtype)
    left, right = _contexts(matrices, [identity, identity], _descend_sides, True)
    return left, right


def left_contexts(matrices: Tensor, normalize: bool = True) -> Tensor:
    """Returns the products `HL(j) = a(1) ... a(j-1)` to the left of each site.

    Args:
        matrices: Folded float tensor `(b, blocks, B, D, D)`, the identity where no site is.
        normalize: Whether each product is divided by its Frobenius norm. Defaults to `True`.

    Returns:
        Folded tensor `(b, blocks, B, D, D)`; an empty product is the identity, divided by
        `sqrt(D)` with `normalize`.

    Example:
        >>> import keras
        >>> tuple(left_contexts(keras.ops.ones((4, 1, 2, 3, 3))).shape)
        (4, 1, 2, 3, 3)
    """
    identity = ops.eye(matrices.shape[-1], dtype=matrices.dtype)

    def descend(left: Tensor, right: Tensor, states: list) -> list:
        (before,) = states
        return [ops.concatenate([before, matmul(before, left)], axis=0)]

    return _contexts(matrices, [identity], descend, normalize)[0]


def _descend_sides(left: Tensor, right: Tensor, states: list) -> list:
    """Products to the left and to the right of a segment, taken to its halves."""
    before, behind = states
    return [
        ops.concatenate([before, matmul(before, left)], axis=0),
        ops.concatenate([matmul(right, behind), behind], axis=0),
    ]


def chain_product(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the products `a(1) ... a(N)` of whole chains, with their scale kept apart.

    Args:
        matrices: Folded float tensor `(b, blocks, B, D, D)`, the identity where no site is.

    Returns:
        Matrices `P`, `(B, D, D)`, and `log_scale`, `(B,)`, such that the product is
        `exp(log_scale) P`. The scale is a constant in the gradient, and `P` is of order 1.

    Example:
        >>> import keras
        >>> product, log_scale = chain_product(keras.ops.ones((4, 1, 2, 3, 3)))
        >>> tuple(product.shape), tuple(log_scale.shape)
        ((2, 3, 3), (2,))
    """
    scales = ops.zeros(ops.shape(matrices)[:-2], matrices.dtype)
    for tier in range(1, _MAX_TIERS + 1):
        while matrices.shape[0] > 1:
            product = matmul(*ops.split(matrices, 2, axis=0))
            inverse = ops.stop_gradient(inverse_largest(product))
            matrices = product * inverse
            inverse = ops.where(inverse > 0, inverse, ops.ones_like(inverse))[..., 0, 0]
            scales = sum(ops.split(scales, 2, axis=0)) - ops.log(inverse)
        _, count, batch, dim, _ = ops.shape(matrices)
        if (isinstance(count, int) and count == 1) or tier == _MAX_TIERS:
            break
        matrices = fold_sites(ops.swapaxes(matrices[0], 0, 1), ops.eye(dim))
        scales = fold_sites(ops.swapaxes(scales[0], 0, 1))
    # The reshape fails if more than one block is left.
    return ops.reshape(matrices, (batch, dim, dim)), ops.reshape(scales, (batch,))


def dominant_eigenvectors(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the left and the right eigenvector of the largest eigenvalue, both of norm 1.

    They are the row and the column of the largest entry of `M^n`, `n = 2^24`. If one eigenvalue
    dominates, by a relative gap of at least 1e-6, `M^n` is `v_R v_L^T` up to a factor. The
    remaining error is rounding, amplified by the condition of the eigenvectors to about
    `eps / gap`: 1e-4 for a gap of 0.1 % in float32. If no eigenvalue dominates, as for a complex
    pair, the vectors are still what a long chain makes of a boundary. The signs are such that
    `v_L . v_R` is positive if one eigenvalue dominates.

    The gradient is that of 1,024 sites at the ends of the chain, which is exact for gaps above 1 %
    and stays bounded for smaller ones, where the exact one grows as `1 / gap`.

    Args:
        matrix: Float tensor `(D, D)`.

    Returns:
        Tensors `v_L` and `v_R`, both `(D,)`.

    Example:
        >>> import keras
        >>> left, _ = dominant_eigenvectors(keras.ops.array([[2.0, 0.0], [0.0, 1.0]]))
        >>> keras.ops.convert_to_numpy(left).tolist()
        [1.0, 0.0]
    """
    dim = matrix.shape[-1]
    power = matrix
    for _ in range(_GRADIENT_SQUARINGS):
        power = divide_by_largest(power)
        power = matmul(power, power)
    high_power = ops.stop_gradient(power)
    for _ in range(_SQUARINGS - _GRADIENT_SQUARINGS):
        high_power = divide_by_norm(high_power)
        high_power = matmul(high_power, high_power)
    entries = ops.reshape(high_power, (dim * dim,))
    largest = ops.argmax(ops.abs(entries))
    sign = ops.sign(ops.take(entries, largest))
    left = sign * divide_by_norm(ops.take(high_power, [largest // dim], axis=0))
    right = divide_by_norm(ops.take(high_power, [largest % dim], axis=1))
    left, right = divide_by_norm(matmul(left, power)), divide_by_norm(matmul(power, right))
    return left[0], right[:, 0]


def _contexts(
    matrices: Tensor, root: list, descend: Callable[..., list], normalize: bool, tier: int = 1
) -> list:
    """Returns folded contexts in the form of `root`.

    `descend` takes the contexts of segments to the contexts of their halves.
    """
    levels = [matrices]
    while levels[-1].shape[0] > 1:
        product = matmul(*ops.split(levels[-1], 2, axis=0))
        levels.append(divide_by_largest(product) if normalize else product)
    _, count, batch, dim, _ = ops.shape(matrices)
    totals = levels[-1]
    known = isinstance(count, int)
    if (known and count == 1) or (not known and tier == _MAX_TIERS):
        # The reshape fails if more than one block is left.
        shape = (1, 1, batch)
        states = [ops.broadcast_to(state, (*shape, *state.shape)) for state in root]
        levels[-1] = ops.reshape(totals, (*shape, dim, dim))
    else:
        blocks = fold_sites(ops.swapaxes(totals[0], 0, 1), ops.eye(dim))
        states = _contexts(blocks, root, descend, normalize, tier + 1)
        states = [ops.swapaxes(unfold_sites(state, count), 0, 1)[None] for state in states]
    for level in reversed(levels[:-1]):
        states = descend(*ops.split(level, 2, axis=0), states)
    return [divide_by_norm(state) for state in states] if normalize else states


def _block(length: Tensor) -> int:
    if isinstance(length, int):
        return min(_BLOCK, 1 << max(length - 1, 0).bit_length())
    return _BLOCK


def _bit_reversal(size: int) -> list[int]:
    """Returns `0, 1, ..., size - 1` in bit-reversed order; `size` is a power of two."""
    order = [0]
    while len(order) < size:
        order = [2 * i for i in order] + [2 * i + 1 for i in order]
    return order
