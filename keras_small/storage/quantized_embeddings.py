"""Embeddings whose factors or cores are integers."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.storage import integer_groups
from keras_small.storage.packed_matrix import BASIS_BITS, PackedMatrix
from keras_small.storage.stand_ins import StoredMatrix, stand_in
from keras_tnattn.layers.low_rank_embedding import LowRankEmbedding
from keras_tnattn.layers.tt_embedding import TTEmbedding
from keras_tnattn.ops.tensor_train.factors import core_shapes
from keras_tnattn.typing import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_small")
class QuantizedLowRankEmbedding(LowRankEmbedding):
    """A `LowRankEmbedding` whose coordinates `A` and basis `B` are integers with a scale per row.

    It is made by `from_layer` and cannot be trained. Its calls are those of `LowRankEmbedding`.

    Args:
        bits: 2, 3, 4, 6 or 8, the bits of the coordinates; the basis has 8.
        **kwargs: The arguments of `LowRankEmbedding`.

    Example:
        >>> from keras_small import QuantizedLowRankEmbedding
        >>> from keras_tnattn.layers import LowRankEmbedding
        >>> layer = LowRankEmbedding(100, 16, 4)
        >>> layer.build()
        >>> small = QuantizedLowRankEmbedding.from_layer(layer, bits=8)
        >>> tuple(small(np.array([[1, 2]])).shape)
        (1, 2, 16)
    """

    def __init__(self, bits: int, **kwargs: Any) -> None:
        integer_groups.check_group_bits(bits)
        super().__init__(**kwargs)
        self.bits = bits

    def build(self, input_shape: Shape | None = None) -> None:
        self.packed = PackedMatrix(self, "coordinates", (self.input_dim, self.rank), self.bits)
        self.packed_basis = PackedMatrix(self, "basis", (self.rank, self.output_dim), BASIS_BITS)
        self.built = True

    def stored_matrices(self) -> dict[str, StoredMatrix]:
        """Returns the coordinates and the basis as integers, for which tensors can stand."""
        parts = {"coordinates": self.packed, "basis": self.packed_basis}
        return {name: packed.stored_matrix() for name, packed in parts.items()}

    def _float_basis(self) -> Tensor:
        basis = stand_in(self, "basis")
        if basis is None:
            basis = self.packed_basis.rows()
        return ops.cast(basis, self.compute_dtype)

    def _rows(self, ids: Tensor | None = None) -> Tensor:
        table = stand_in(self, "coordinates")
        if table is None:
            rows = self.packed.rows(ids)
        else:
            rows = table if ids is None else ops.take(table, ids, axis=0)
        return ops.cast(rows, self.compute_dtype)

    @classmethod
    def from_layer(
        cls,
        layer: LowRankEmbedding,
        bits: int,
        steps: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> "QuantizedLowRankEmbedding":
        """Returns a layer of integers for a layer of floats.

        Args:
            layer: A built `LowRankEmbedding`.
            bits: The bits of the coordinates.
            steps: The steps of the rows of `A`, `(V,)`, and of those of `B`, `(r,)`. Default: those
                of small errors.

        Raises:
            ValueError: If the layer is not built or is quantized already.
        """
        check_unquantized(layer, LowRankEmbedding)
        new = cls(bits, **layer.get_config())
        new.build()
        steps_of_rows, steps_of_basis = (None, None) if steps is None else steps
        new.packed.assign(ops.convert_to_numpy(layer.coordinates), steps_of_rows)
        new.packed_basis.assign(ops.convert_to_numpy(layer.basis), steps_of_basis)
        return new


@keras.saving.register_keras_serializable(package="keras_small")
class QuantizedTTEmbedding(TTEmbedding):
    """A `TTEmbedding` whose cores are integers with a scale per row.

    The rows are those of the longer unfolding of each core. Cores with `V_n = 1`, which all ids
    share, stay in floats. It is made by `from_layer` and cannot be trained. Its calls are those of
    `TTEmbedding`.

    Args:
        bits: 2, 3, 4, 6 or 8, the bits of an entry of a core.
        **kwargs: The arguments of `TTEmbedding`.

    Example:
        >>> from keras_small import QuantizedTTEmbedding
        >>> from keras_tnattn.layers import TTEmbedding
        >>> layer = TTEmbedding(100, 16, (10, 10), (4, 4), (8,))
        >>> layer.build()
        >>> small = QuantizedTTEmbedding.from_layer(layer, bits=8)
        >>> tuple(small(np.array([[1, 2]])).shape)
        (1, 2, 16)
    """

    def __init__(self, bits: int, **kwargs: Any) -> None:
        integer_groups.check_group_bits(bits)
        super().__init__(**kwargs)
        self.bits = bits

    def _build_cores(self) -> None:
        self.packed_cores = [
            self.add_weight(shape, "zeros", trainable=False, name=f"core_{n}")
            if shape[1] == 1
            else PackedMatrix(self, f"core_{n}", _row_matrix(shape), self.bits)
            for n, shape in enumerate(core_shapes(*self.factors, self.ranks))
        ]

    def _float_cores(self) -> list[Tensor]:
        cores = []
        shapes = core_shapes(*self.factors, self.ranks)
        for shape, core in zip(shapes, self.packed_cores, strict=True):
            if isinstance(core, PackedMatrix):
                axes = _row_axes(shape)
                core = ops.transpose(ops.reshape(core.rows(), [shape[a] for a in axes]), axes)
            cores.append(ops.cast(core, self.compute_dtype))
        return cores

    def assign_cores(self, cores: Sequence[np.ndarray]) -> None:
        """Quantizes float arrays `(R_{n-1}, V_n, D_n, R_n)`."""
        for weight, core in zip(self.packed_cores, cores, strict=True):
            if isinstance(weight, PackedMatrix):
                core = np.transpose(core, _row_axes(core.shape)).reshape(weight.shape)
            weight.assign(core)

    @classmethod
    def from_layer(cls, layer: TTEmbedding, bits: int) -> "QuantizedTTEmbedding":
        """Returns a layer of integers for a layer of floats.

        Each core makes up, by least squares, for the rounding of the one before.

        Args:
            layer: A built `TTEmbedding`.
            bits: The bits of an entry.

        Raises:
            ValueError: If the layer is not built or is quantized already.
        """
        check_unquantized(layer, TTEmbedding)
        new = cls(bits, **{**layer.get_config(), "tt_ranks": layer.ranks})
        new.build()
        cores = [ops.convert_to_numpy(core).astype("float64") for core in layer.cores]
        for n, rank in enumerate(layer.ranks):
            rounded, _ = rounded_core(cores[n], bits, 0)
            change = np.linalg.lstsq(
                rounded.reshape(-1, rank), cores[n].reshape(-1, rank), rcond=None
            )[0]
            cores[n] = rounded
            cores[n + 1] = np.tensordot(change, cores[n + 1], axes=1)
        new.assign_cores(cores)
        if layer.reorder_rows:
            new.positions.assign(layer.positions)
        return new


def check_unquantized(layer: keras.layers.Layer, kind: type[keras.layers.Layer]) -> None:
    """Refuses a layer that is not a built layer of floats of a class."""
    if type(layer) is not kind or not layer.built:
        raise ValueError(
            f"Expected a built {kind.__name__} that is not quantized yet. "
            f"Received: {layer.name}, a {type(layer).__name__}, built={layer.built}"
        )


def rounded_core(core: np.ndarray, bits: int | None, float_size: int) -> tuple[np.ndarray, int]:
    """Returns a core as a layer with `bits` restores it, and the bytes that it takes."""
    if bits is None or core.shape[1] == 1:
        return core, float_size * core.size
    axes = _row_axes(core.shape)
    shape = _row_matrix(core.shape)
    ordered = np.transpose(core, axes)
    rounded = integer_groups.rounded_matrix(ordered.reshape(shape), bits, shape[1], axis=1)
    size = integer_groups.stored_bytes(shape, bits, shape[1], axis=1)
    return np.transpose(rounded.reshape(ordered.shape), axes), size


def _row_axes(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the order of a core's axes in which its rows, which share a scale, are longest."""
    return (0, 1, 2, 3) if shape[3] >= shape[0] else (3, 1, 2, 0)


def _row_matrix(shape: Sequence[int]) -> tuple[int, int]:
    short, long = sorted((shape[0], shape[3]))
    return short * shape[1], shape[2] * long
