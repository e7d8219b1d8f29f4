"""Products of sequences with banded matrices that are given by their block diagonals."""

from collections.abc import Sequence

from keras import ops

from keras_tnattn.ops.precision import matmul
from keras_tnattn.typing import Tensor


class BlockBand:
    """Cuts sequences `(..., L, J)` into blocks, so that banded products are dense and batched.

    Each sequence is padded to whole blocks of `b` rows and followed by `m` blocks of zeros. All
    blocks of all sequences share one axis; the pairs of blocks at a distance of up to `m` are two
    plain slices of that axis, because pairs that cross into the next sequence meet zeros. With
    `num_offsets=0` and `block=L` each sequence is one block and nothing is padded.

    Args:
        shape: Shape `(..., L, J)` of the sequences; sizes may be scalar tensors.
        block: Block size `b`; an int or a scalar int tensor.
        num_offsets: Number `m` of block diagonals below the main one.

    Example:
        >>> import keras
        >>> band = BlockBand((1, 4, 1), block=2, num_offsets=1)
        >>> tuple(band.split(keras.ops.ones((1, 4, 1))).shape)
        (3, 2, 1)
    """

    def __init__(self, shape: Sequence, block: Tensor, num_offsets: int) -> None:
        *self.lead, self.length, _ = shape
        self.block = block
        self.num_offsets = num_offsets
        self.padded = self.length
        self.count = 1
        if num_offsets > 0:
            self.count = -(-self.length // block) + num_offsets
            self.padded = self.count * block
        for size in self.lead:
            self.count = self.count * size

    def split(self, x: Tensor) -> Tensor:
        """Returns the blocks `(blocks, b, J)` of `x`, `(..., L, J)`."""
        if self.num_offsets > 0:
            filling = (0, self.padded - self.length)
            x = ops.pad(x, [(0, 0)] * len(self.lead) + [filling, (0, 0)])
        return ops.reshape(x, (self.count, self.block, x.shape[-1]))

    def join(self, x: Tensor) -> Tensor:
        """Undoes `split`."""
        x = ops.reshape(x, (*self.lead, self.padded, x.shape[-1]))
        return x[..., : self.length, :] if self.num_offsets > 0 else x

    def pairs(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Returns, for each offset `o`, the blocks `o, o + 1, ...` and the blocks `0, 1, ...`."""
        count = ops.shape(x)[0]
        return [(x, x), *((x[o:], x[: count - o]) for o in range(1, self.num_offsets + 1))]

    def multiply(self, diagonals: list[Tensor], x: Tensor, part: str = "symmetric") -> Tensor:
        """Multiplies blocks by a banded matrix.

        Args:
            diagonals: For each offset `o` the blocks `M[i + o, i]`: one `(b, b)` for all pairs, or
                one for each pair, `(pairs, b, b)`.
            x: Blocks `(blocks, b, J)`.
            part: `"lower"` if the matrix has the given blocks and zeros above them, `"upper"` for
                the transpose of that, `"symmetric"` if the blocks above mirror those below.

        Returns:
            Blocks `(blocks, b, J)`.
        """
        first = transpose(diagonals[0]) if part == "upper" else diagonals[0]
        total = matmul(first, x)
        for o, (later, earlier) in list(enumerate(self.pairs(x)))[1:]:
            if part != "upper":
                below = matmul(diagonals[o], earlier)
                total = total + ops.pad(below, [(o, 0), (0, 0), (0, 0)])
            if part != "lower":
                above = matmul(transpose(diagonals[o]), later)
                total = total + ops.pad(above, [(0, o), (0, 0), (0, 0)])
        return total


def transpose(x: Tensor) -> Tensor:
    """Swaps the last two axes.

    Example:
        >>> import keras
        >>> tuple(transpose(keras.ops.ones((2, 3, 4))).shape)
        (2, 4, 3)
    """
    return ops.swapaxes(x, -1, -2)
