"""An `EinsumDense` layer whose kernel, as a matrix, is the product of two thin matrices."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.storage.base_low_rank import BaseLowRank
from keras_tnattn.layers.base_layer import check_built, dense_options
from keras_tnattn.typing import Activation, Shape


def labels_of(equation: str) -> tuple[str, str, str]:
    """Returns the labels of the axes of inputs, kernel and outputs.

    Example:
        >>> labels_of("ab,bc->ac")
        ('ab', 'bc', 'ac')
    """
    source, output = equation.replace(" ", "").split("->")
    inputs, kernel = source.split(",")
    return inputs, kernel, output


def split_equation(equation: str) -> tuple[str, str]:
    """Splits the equation of a `keras.layers.EinsumDense` into two, one for each thin kernel.

    Returns:
        The equations of the inner and the outer layer: `"abc,cr->abr"` and `"abr,rde->abde"` for
        `"abc,cde->abde"`.

    Raises:
        ValueError: If an axis of the kernel is in the inputs and in the outputs, or the kernel has
            no axis that is summed over, or no axis that is new in the outputs.
    """
    inputs, kernel, output = labels_of(equation)
    summed = [c for c in kernel if c in inputs and c not in output]
    new = [c for c in kernel if c in output and c not in inputs]
    if not summed or not new or len(summed) + len(new) < len(kernel):
        raise ValueError(
            "Expected an equation whose kernel has both axes that are summed over and axes that "
            f"are new in the outputs, and no others. Received: equation={equation!r}"
        )
    rank = next(c for c in "rstuvwxyzabcdefghijklmnopq" if c not in equation)
    free = "".join(c for c in inputs if c not in summed)
    middle = free + rank if inputs[-1] != "." else free[:-3] + rank + "..."
    return (
        f"{inputs},{''.join(summed)}{rank}->{middle}",
        f"{middle},{rank}{''.join(new)}->{output}",
    )


def kernel_axes(equation: str) -> tuple[list[int], list[int]]:
    """Returns the axes of the kernel that are summed over, and those new in the outputs."""
    inputs, kernel, output = labels_of(equation)
    summed = [i for i, c in enumerate(kernel) if c in inputs and c not in output]
    return summed, [i for i in range(len(kernel)) if i not in summed]


def kernel_matrix(kernel: np.ndarray, equation: str) -> np.ndarray:
    """Reshapes the kernel of an `EinsumDense` to `(summed axes, new axes)`."""
    summed, new = kernel_axes(equation)
    matrix = np.transpose(kernel, (*summed, *new))
    return matrix.reshape(int(np.prod([kernel.shape[i] for i in summed])), -1)


@keras.saving.register_keras_serializable(package="keras_small")
class LowRankEinsumDense(BaseLowRank):
    """`keras.layers.EinsumDense` whose kernel, as a matrix, is a product of rank `r`.

    The rows of the matrix are the axes of the kernel that are summed over, its columns the axes
    that are new in the outputs: `"abc,cde->abde"` becomes `"abc,cr->abr"` followed by
    `"abr,rde->abde"`. With `I` rows and `J` columns the layer has `r (I + J)` weights besides the
    bias, whereas `EinsumDense` has `I J`. It consists of two `EinsumDense` layers, `inner` and
    `outer`.

    Args:
        equation: As in `keras.layers.EinsumDense`.
        output_shape: As in `keras.layers.EinsumDense`.
        rank: Rank `r` of the kernel.
        activation: Activation function.
        bias_axes: As in `keras.layers.EinsumDense`. Default: no bias.
        kernel_initializer: A Keras initializer; the kernel gets its variance, with the rows and
            columns as fan-in and fan-out. Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of the bias. Defaults to `"zeros"`.
        kernel_regularizer: Regularizer applied to both factors.
        bias_regularizer: Regularizer applied to the bias.
        kernel_constraint: Constraint applied to both factors.
        bias_constraint: Constraint applied to the bias.
        factor_dtypes: As in `LowRankDense`.

    Call arguments:
        inputs: Float tensor of the shape that the equation describes.

    Returns:
        Tensor of the shape that the equation describes.

    Raises:
        ValueError: If the equation cannot be split, or `rank` is not a positive int.

    Example:
        >>> import numpy as np
        >>> from keras_small.storage import LowRankEinsumDense
        >>> layer = LowRankEinsumDense("abc,cde->abde", (None, 8, 64), rank=32, bias_axes="de")
        >>> tuple(layer(np.ones((2, 7, 512))).shape)
        (2, 7, 8, 64)
    """

    def __init__(
        self,
        equation: str,
        output_shape: int | Shape,
        rank: int,
        activation: Activation | None = None,
        bias_axes: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(rank, activation, **kwargs)
        self.equation = equation
        self.equations = split_equation(equation)
        self.output_shape = (
            (output_shape,) if isinstance(output_shape, int) else tuple(output_shape)
        )
        self.bias_axes = bias_axes

    def build(self, input_shape: Shape) -> None:
        inputs, kernel, _ = labels_of(self.equation)
        sizes = self._sizes(input_shape)
        summed, new = kernel_axes(self.equation)
        rows = int(np.prod([sizes[kernel[i]] for i in summed]))
        columns = int(np.prod([sizes[kernel[i]] for i in new]))
        inner, outer = self._options(rows, columns)
        middle = self.equations[0].split("->")[1].replace("...", "")
        # The output shape excludes the batch axis, which an ellipsis in front includes.
        axes = middle[:-1] if inputs[0] == "." else middle[1:-1]
        self.inner = keras.layers.EinsumDense(
            self.equations[0], (*(sizes[c] for c in axes), self.rank), **inner
        )
        self.outer = keras.layers.EinsumDense(
            self.equations[1], self.output_shape, bias_axes=self.bias_axes, **outer
        )
        before, _, after = inputs.partition("...")
        places = [*enumerate(before), *((i - len(after), label) for i, label in enumerate(after))]
        self.input_spec = keras.InputSpec(
            axes={axis: sizes[label] for axis, label in places if label in kernel}
        )
        self.inner.build(input_shape)
        self.outer.build(self.inner.compute_output_shape(input_shape))
        self.built = True

    def _sizes(self, input_shape: Shape) -> dict[str, Any]:
        """Returns the size of each named axis; an axis of the kernel alone may come first."""
        plain = keras.layers.EinsumDense(self.equation, self.output_shape)
        inputs, _, output = labels_of(self.equation)
        return _sizes(output, plain.compute_output_shape(input_shape)) | _sizes(inputs, input_shape)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        inputs, _, output = labels_of(self.equation)
        sizes = self._sizes(input_shape)
        before, ellipsis, after = output.partition("...")
        first = len(inputs.partition("...")[0])
        lead = input_shape[first : first + len(input_shape) - len(inputs.replace("...", ""))]
        lead = lead if ellipsis else ()
        return (*(sizes[c] for c in before), *lead, *(sizes[c] for c in after))

    @classmethod
    def from_einsum_dense(
        cls,
        layer: keras.layers.EinsumDense,
        rank: int | None = None,
        tolerance: float | None = None,
        **kwargs: Any,
    ) -> "LowRankEinsumDense":
        """Converts a trained `keras.layers.EinsumDense` by SVD.

        Args:
            layer: A built `EinsumDense` layer.
            rank: The maximum rank. Pass either this or `tolerance`.
            tolerance: The maximum relative error of the kernel.
            **kwargs: Further arguments of the constructor. Default: the options of `layer`, except
                its kernel constraint.

        Returns:
            A built layer; its attribute `relative_error` is the error of the approximation, which
            is not saved with the layer.

        Raises:
            ValueError: If the layer is not built, its equation cannot be split, or both or none of
                `rank` and `tolerance` are given.

        Example:
            >>> import keras
            >>> from keras_small.storage import LowRankEinsumDense
            >>> dense = keras.layers.EinsumDense("ab,bc->ac", 32)
            >>> dense.build((None, 16))
            >>> LowRankEinsumDense.from_einsum_dense(dense, rank=16).relative_error < 1e-6
            True
        """
        check_built(layer, "EinsumDense")
        split_equation(layer.equation)
        kernel = kernel_matrix(ops.convert_to_numpy(layer.kernel), layer.equation)
        return cls._of_matrix(layer, kernel, None, (rank, tolerance), **kwargs)

    @classmethod
    def like(
        cls, layer: keras.layers.EinsumDense, rank: int, **kwargs: Any
    ) -> "LowRankEinsumDense":
        config = {**dense_options(layer), "bias_axes": layer.bias_axes, "name": layer.name}
        return cls(layer.equation, layer.partial_output_shape, rank, **{**config, **kwargs})


def _sizes(labels: str, shape: Shape) -> dict[str, Any]:
    """Returns the size of each named axis in `shape`; the axes of an ellipsis have no name."""
    if "..." not in labels:
        return dict(zip(labels, shape, strict=True))
    before, after = labels.split("...")
    sizes = dict(zip(before, shape, strict=False))
    return sizes | dict(zip(reversed(after), reversed(shape), strict=False))
