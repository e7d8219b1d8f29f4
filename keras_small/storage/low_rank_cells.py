"""Cells of recurrent layers whose two kernels are products of thin matrices."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.storage.integer_kernels import Kernel, LoopKernels, note_shape
from keras_tnattn.checks import check_int
from keras_tnattn.ops import low_rank
from keras_tnattn.typing import Tensor

RECURRENT = ("kernel", "recurrent_kernel")
SIDES = ("left", "right")


class LowRankKernels(LoopKernels):
    """The first base of each cell of low rank.

    The kernel `(I, J)` and the recurrent kernel `(U, J)`, with `J = U`, `3 U` or `4 U` for simple,
    gated and long short-term memory, are products `A B` with `A` of shape `(I, r)` or `(U, r)` and
    `B` of shape `(r, J)`. They are formed once for all steps of a sequence.

    Args:
        *args: Arguments of the cell.
        ranks: The rank of the kernel and that of the recurrent kernel.
        **kwargs: Arguments of the cell.
    """

    kernel = Kernel()
    recurrent_kernel = Kernel()

    def __init__(self, *args: Any, ranks: Sequence[int], **kwargs: Any) -> None:
        if not isinstance(ranks, Sequence) or len(ranks) != 2:
            raise ValueError(
                "Expected the ranks of the kernel and of the recurrent kernel. "
                f"Received: ranks={ranks!r}"
            )
        super().__init__(*args, **kwargs)
        self.ranks = tuple(check_int("ranks", rank) for rank in ranks)

    def add_weight(self, shape: Any = None, *args: Any, name: Any = None, **kwargs: Any) -> Any:
        """Makes the two factors of a kernel, or any other weight as Keras does."""
        if name not in RECURRENT:
            return super().add_weight(shape, *args, name=name, **kwargs)
        note_shape(self, name, shape)
        rank = self.ranks[RECURRENT.index(name)]
        kwargs.pop("initializer", None)
        # An entry of the product sums `rank` products of two entries, which gives it the variance
        # of Glorot's initialization.
        stddev = (2.0 / sum(shape) / rank) ** 0.25
        shapes = {"left": (shape[0], rank), "right": (rank, shape[1])}
        for side in SIDES:
            normal = keras.initializers.RandomNormal(stddev=stddev)
            weight = self.add_weight(
                shapes[side], initializer=normal, name=f"{name}_{side}", **kwargs
            )
            setattr(self, f"{name}_{side}", weight)
        return None

    def restored_kernel(self, name: str) -> Tensor:
        if name not in RECURRENT:
            return super().restored_kernel(name)  # type: ignore[misc]  # of integers
        left, right = (getattr(self, f"{name}_{side}") for side in SIDES)
        return ops.matmul(ops.cast(left, self.compute_dtype), ops.cast(right, self.compute_dtype))

    @classmethod
    def from_cell(
        cls,
        cell: keras.layers.Layer,
        ranks: Sequence[int],
        moments: Sequence[np.ndarray | None] = (None, None),
    ) -> Any:
        """Converts a trained cell.

        Args:
            cell: A built cell of the class that this one stands for. It does not change.
            ranks: The rank of the kernel and that of the recurrent kernel, clipped to the full one.
            moments: Second moments of the inputs `(I, I)` and of the states `(U, U)`; the errors of
                the products with these are then smallest. Default: those of the kernels.

        Returns:
            A built cell of the same name.
        """
        factors = []
        for name, rank, moment in zip(RECURRENT, ranks, moments, strict=True):
            kernel = ops.convert_to_numpy(getattr(cell, name))
            left, right, _ = low_rank.low_rank_factors(kernel, moment=moment)
            # Split each singular value evenly, so that both factors quantize well.
            root = np.sqrt(np.linalg.norm(left[:, :rank], axis=0) + 1e-30)
            factors.append((left[:, :rank] / root, right[:rank] * root[:, None]))
        ranks = [len(right) for _, right in factors]
        new = cls.from_config({**cell.get_config(), "ranks": ranks})
        new.build_from_config(cell.get_build_config())
        for name, pair in zip(RECURRENT, factors, strict=True):
            for side, factor in zip(SIDES, pair, strict=True):
                getattr(new, f"{name}_{side}").assign(factor)
        if cell.use_bias:
            new.bias.assign(ops.convert_to_numpy(cell.bias))
        return new

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "ranks": self.ranks}


# The class that stands for each of Keras' cells.
LOW_RANK_CELLS: dict[type[keras.layers.Layer], Any] = {
    kind: keras.saving.register_keras_serializable(package="keras_small")(
        type(
            f"LowRank{kind.__name__}",
            (LowRankKernels, kind),
            {"__doc__": f"`{kind.__name__}` with kernels of low rank.", "__module__": __name__},
        )
    )
    for kind in (keras.layers.SimpleRNNCell, keras.layers.LSTMCell, keras.layers.GRUCell)
}
