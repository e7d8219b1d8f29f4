"""Products of sequences with banded matrices that are given by their block diagonals."""

import math
from collections.abc import Sequence

from keras import ops

from keras_tnattn.ops.precision import matmul
from keras_tnattn.typing import Tensor


class BlockBand:
    """Cuts sequences `(..., L, J)` into blocks, so that banded products are dense and batched.

    Each sequence is padded to whole blocks of `b` rows, and all blocks of all sequences share one
    axis. With `num_offsets=0` and `block=L` each sequence is one block and nothing is padded.

    Args:
        shape: Shape `(..., L, J)` of the sequences; sizes may be scalar tensors.
        block: Block size `b`; an int or a scalar int tensor.
        num_offsets: Number `m` of block diagonals below the main one.

    Example:
        >>> import keras
        >>> band = BlockBand((1, 3, 1), block=2, num_offsets=1)
        >>> tuple(band.split(keras.ops.ones((1, 3, 1))).shape)
        (2, 2, 1)
    """

    def __init__(self, shape: Sequence, block: Tensor, num_offsets: int) -> None:
        *self.lead, self.length, _ = shape
        self.block = block
        self.num_offsets = num_offsets
        self.blocks = 1 if num_offsets == 0 else -(-self.length // block)
        self.sequences = math.prod(self.lead)

    def split(self, x: Tensor) -> Tensor:
        """Returns the blocks `(blocks, b, J)` of `x`, `(..., L, J)`."""
        filling = self.blocks * self.block - self.length
        if self.num_offsets > 0 and (not isinstance(filling, int) or filling > 0):
            x = ops.pad(x, [(0, 0)] * len(self.lead) + [(0, filling), (0, 0)])
        return ops.reshape(x, (self.sequences * self.blocks, self.block, x.shape[-1]))

    def join(self, x: Tensor) -> Tensor:
        """Undoes `split`."""
        x = ops.reshape(x, (*self.lead, self.blocks * self.block, x.shape[-1]))
        return x[..., : self.length, :] if self.num_offsets > 0 else x

    def earlier(self, x: Tensor, offset: int) -> Tensor:
        """Returns for each block the one `offset` places before it in its sequence, or zeros."""
        return self._shift(x, (offset, 0), slice(None, self.blocks))

    def later(self, x: Tensor, offset: int) -> Tensor:
        """Returns for each block the one `offset` places after it in its sequence, or zeros."""
        return self._shift(x, (0, offset), slice(offset, None))

    def _shift(self, x: Tensor, zeros: tuple[int, int], places: slice) -> Tensor:
        if zeros == (0, 0):
            return x
        _, *size = ops.shape(x)
        x = ops.reshape(x, (self.sequences, self.blocks, *size))
        x = ops.pad(x, [(0, 0), zeros, (0, 0), (0, 0)])[:, places]
        return ops.reshape(x, (self.sequences * self.blocks, *size))

    def products(self, x: Tensor, y: Tensor, first: int = 0) -> list[Tensor]:
        """Returns `x y^T` of blocks of `x` with the blocks of `y` that are 0 to `m` places before.

        Args:
            x: Blocks `(blocks, b, J)`.
            y: Blocks `(blocks, b, J)`.
            first: The first offset. Defaults to 0.

        Returns:
            For each offset the products `(blocks, b, b)`, zeros where there is no such block.
        """
        offsets = range(first, self.num_offsets + 1)
        return [matmul(x, transpose(self.earlier(y, o))) for o in offsets]

    def multiply(self, diagonals: list[Tensor], x: Tensor, part: str = "symmetric") -> Tensor:
        """Multiplies blocks by a banded matrix.

        Args:
            diagonals: For each offset `o` the blocks `M[i, i - o]`: one `(b, b)` for all, or one
                for each block, `(blocks, b, b)`, zeros if there is no block `i - o`.
            x: Blocks `(blocks, b, J)`.
            part: `"lower"` if the matrix has the given blocks and zeros above them, `"upper"` for
                the transpose of that, `"symmetric"` if the blocks above mirror those below.

        Returns:
            Blocks `(blocks, b, J)`.
        """
        first = transpose(diagonals[0]) if part == "upper" else diagonals[0]
        total = matmul(first, x)
        for o in range(1, self.num_offsets + 1):
            if part != "upper":
                total = total + matmul(diagonals[o], self.earlier(x, o))
            if part != "lower":
                total = total + self.later(matmul(transpose(diagonals[o]), x), o)
        return total


def transpose(x: Tensor) -> Tensor:
    """Swaps the last two axes.

    Example:
        >>> import keras
        >>> tuple(transpose(keras.ops.ones((2, 3, 4))).shape)
        (2, 4, 3)
    """
    return ops.swapaxes(x, -1, -2)
