"""A replacement for `keras.layers.Embedding` with finer rows for more frequent ids."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import keras
import numpy as np
from keras import ops

from keras_small.storage import even_levels, integer_groups
from keras_small.storage.packed_matrix import BASIS_BITS, PackedMatrix
from keras_small.storage.stand_ins import StoredMatrix, stand_in
from keras_tnattn.checks import check_int
from keras_tnattn.initializers import kernel_variance
from keras_tnattn.layers.factored_embedding import BaseFactoredEmbedding
from keras_tnattn.typing import Shape, Tensor

# Features that share a scale in a basis of integers.
_BASIS_GROUP = 64


@keras.saving.register_keras_serializable(package="keras_small")
class AdaptiveEmbedding(BaseFactoredEmbedding):
    """Embedding whose rows are in blocks: the first have more coordinates, the last ones fewer.

    Row `p` of block `k` is `E[p] = A_k[p] B[:r_k]`: its coordinates `A_k`, of shape `(V_k, r_k)`,
    in the first `r_k` directions of a basis `B`, of shape `(max(r_k), D)`, which all blocks share.
    Rows after the last block are 0. With frequent ids in the first blocks, a table needs few bytes
    for the many ids that are rare (adaptive input representations, Baevski and Auli, 2019,
    https://arxiv.org/abs/1809.10853, where each block has a basis of its own).

    The layer has `sum(V_k r_k) + max(r_k) D` weights, whereas `keras.layers.Embedding` has `V D`.
    As integers the coordinates of a row take `r_k b_k / 8` bytes and one for their scale
    (`keras_small.storage.even_levels`), and the entries of the basis 8 bits each. An id costs a
    gather of `r_k` numbers for each block, whichever its own is, and `2 max(r_k) D` FLOPs. The
    gradient of `A_k` is dense, so that Adam handles repeated ids correctly.

    Args:
        input_dim: Number of ids `V`.
        output_dim: Size `D` of a row.
        block_rows: Positive ints, the numbers of rows `V_k`; their sum is at most `V`.
        block_ranks: Positive ints, the numbers of coordinates `r_k`.
        block_bits: The bits `b_k` of the coordinates: 2, 3, 4, 6 or 8. Such a layer is created by
            `quantized` and cannot be trained. Default: floats.
        mask_zero: Whether id 0 is padding and masked. Defaults to `False`.
        reorder_rows: Whether the row of id `i` is row `positions[i]`, for ids that are not sorted
            by frequency. The positions are not trained, initially `0, 1, 2, ...`, and take two
            bytes each, or more for more than 65,536 ids. Defaults to `False`.
        embeddings_initializer: A Keras initializer; the rows of the blocks get its variance, but
            not its distribution. Defaults to `"uniform"`.
        embeddings_regularizer: Regularizer applied to each `A_k` and to `B`.
        embeddings_constraint: Constraint applied to each `A_k` and to `B`.
        reverse_dtype: Dtype of the logits of `reverse=True`. Defaults to the compute dtype.

    Call arguments:
        inputs: Integers `(...)`, ids in `[0, V)`; with `reverse`, floats `(..., D)`.
        reverse: Whether to return the logits `inputs @ E^T` instead. Defaults to `False`.

    Returns:
        Tensor `(..., D)`; with `reverse`, `(..., V)`.

    Raises:
        ValueError: If a size is not a positive int, there are more rows than ids, the numbers of
            blocks disagree, or bits are not among 2, 3, 4, 6 and 8.

    Example:
        >>> import numpy as np
        >>> from keras_small.storage import AdaptiveEmbedding
        >>> layer = AdaptiveEmbedding(1000, 64, block_rows=(50, 450), block_ranks=(64, 8))
        >>> tuple(layer(np.array([[1, 2, 999]])).shape)
        (1, 3, 64)
        >>> layer.count_params()  # 50 * 64 + 450 * 8 + 64 * 64
        10896
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        block_rows: Sequence[int],
        block_ranks: Sequence[int],
        block_bits: Sequence[int] | None = None,
        reorder_rows: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_dim, output_dim, **kwargs)
        self.block_rows = tuple(check_int("block_rows", rows) for rows in block_rows)
        self.block_ranks = tuple(check_int("block_ranks", rank) for rank in block_ranks)
        self.block_bits = None if block_bits is None else tuple(block_bits)
        self.reorder_rows = bool(reorder_rows)
        for bits in self.block_bits or ():
            integer_groups.check_group_bits(bits)
        bits_of = self.block_rows if self.block_bits is None else self.block_bits
        if not len(self.block_rows) == len(self.block_ranks) == len(bits_of) > 0:
            raise ValueError(
                "Expected the rows and ranks, and bits if any, of each of one or more blocks. "
                f"Received: block_rows={self.block_rows}, block_ranks={self.block_ranks}, "
                f"block_bits={self.block_bits}"
            )
        if sum(self.block_rows) > self.input_dim:
            raise ValueError(
                f"Expected at most input_dim={self.input_dim} rows in all blocks. "
                f"Received: block_rows={self.block_rows}"
            )

    def build(self, input_shape: Shape | None = None) -> None:
        if self.reorder_rows:
            self.positions = self.add_weight(
                (self.input_dim, position_bytes(self.input_dim)),
                lambda shape, dtype: ops.convert_to_tensor(
                    _bytes_of(np.arange(shape[0]), shape[1]), dtype
                ),
                dtype="uint8",
                trainable=False,
                name="positions",
            )
        if self.block_bits is None:
            self._build_floats()
        else:
            self._build_integers(self.block_bits)
        self.built = True

    def _build_floats(self) -> None:
        variance = kernel_variance(self.embeddings_initializer, self.input_dim, self.output_dim)
        options = {
            "regularizer": self.embeddings_regularizer,
            "constraint": self.embeddings_constraint,
        }
        rank = max(self.block_ranks)
        seed = self.embeddings_initializer.get_config().get("seed")

        def normal(stddev: float, number: int) -> keras.initializers.Initializer:
            own = seed + number if isinstance(seed, int) else None
            return keras.initializers.RandomNormal(stddev=stddev, seed=own)

        # An entry of a product sums `r_k` products of coordinates and entries of the basis.
        self.blocks = [
            self.add_weight(
                (rows, own), normal((variance * rank / own) ** 0.5, k), name=f"block_{k}", **options
            )
            for k, (rows, own) in enumerate(zip(self.block_rows, self.block_ranks, strict=True))
        ]
        self.basis = self.add_weight(
            (rank, self.output_dim), normal(rank**-0.5, len(self.blocks)), name="basis", **options
        )

    def _build_integers(self, block_bits: Sequence[int]) -> None:
        def zeros(shape: Shape, name: str, dtype: str = "uint8") -> keras.Variable:
            return self.add_weight(
                shape, "zeros", dtype=dtype, trainable=False, autocast=False, name=name
            )

        self.packed_blocks = []
        for k, (rows, rank, bits) in enumerate(
            zip(self.block_rows, self.block_ranks, block_bits, strict=True)
        ):
            packed = integer_groups.packed_size(rank, bits)
            integers = zeros((rows, packed), f"integers_{k}")
            scales = zeros((rows, 1), f"scales_{k}")
            largest = zeros((), f"largest_{k}", "float32")
            self.packed_blocks.append((integers, scales, largest))
        shape = (max(self.block_ranks), self.output_dim)
        self.packed_basis = PackedMatrix(self, "basis", shape, BASIS_BITS, _BASIS_GROUP)

    def stored_matrices(self) -> dict[str, StoredMatrix]:
        """Returns the coordinates and the basis as integers, for which tensors can stand."""
        if self.block_bits is None:
            return {}
        matrices = {}
        for k, (weights, bits) in enumerate(zip(self.packed_blocks, self.block_bits, strict=True)):
            shape = (self.block_rows[k], self.block_ranks[k])
            arrays = even_levels.numbers_of_rows(weights, shape[1], bits)
            matrices[f"coordinates_{k}"] = StoredMatrix(*arrays, bits, shape[1], 1, shape, (0, 1))
        return {**matrices, "basis": self.packed_basis.stored_matrix()}

    def _float_basis(self) -> Tensor:
        basis = stand_in(self, "basis")
        if basis is None:
            basis = self.basis if self.block_bits is None else self.packed_basis.rows()
        return ops.cast(basis, self.compute_dtype)

    def _coordinates(self, k: int) -> Tensor:
        """Returns the coordinates of all rows of a block."""
        rows = stand_in(self, f"coordinates_{k}")
        if rows is None and self.block_bits is None:
            rows = self.blocks[k]
        if rows is not None:
            return ops.cast(rows, self.compute_dtype)
        bits = cast("tuple[int, ...]", self.block_bits)[k]
        rows = even_levels.dequantize_rows(self.packed_blocks[k], self.block_ranks[k], bits)
        return ops.cast(rows, self.compute_dtype)

    def _places(self, ids: Tensor | None = None) -> Tensor:
        """Returns the rows of ids. Default: of all ids."""
        if not self.reorder_rows:
            return ops.arange(self.input_dim, dtype="int32") if ids is None else ids
        table = ops.convert_to_tensor(self.positions)
        parts = ops.cast(table if ids is None else ops.take(table, ids, axis=0), "int32")
        return sum(parts[..., n] * 256**n for n in range(position_bytes(self.input_dim)))

    def _starts(self) -> Iterator[tuple[int, int, int]]:
        """Yields the number, the first row and the number of rows of each block."""
        start = 0
        for k, rows in enumerate(self.block_rows):
            yield k, start, rows
            start += rows

    def _lookup(self, ids: Tensor) -> Tensor:
        shape = ops.shape(ids)
        ids = ops.reshape(ids, (-1,))
        # As in an `Embedding`, negative ids count from the end.
        ids = ops.where(ids < 0, ids + self.input_dim, ids)
        outside = ops.logical_or(ids < 0, ids >= self.input_dim)
        places = self._places(ops.where(outside, 0, ids))
        found = []
        for k, start, rows in self._starts():
            inside = ops.logical_and(places >= start, places < start + rows)
            within = ops.where(inside, places - start, 0)
            if k == 0:  # ids out of range are looked up beyond the last row
                inside = ops.logical_or(inside, outside)
                within = ops.where(outside, rows, within)
            found.append((k, inside[:, None], within))
        if self.block_bits is None or stand_in(self, "coordinates_0") is not None:
            coordinates = sum(self._float_rows(*block) for block in found)
        else:
            bits = self.block_bits
            groups = itertools.groupby(found, lambda block: bits[block[0]])
            coordinates = sum(self._integer_rows(width, list(group)) for width, group in groups)
        coordinates = ops.cast(coordinates, self.compute_dtype)
        return ops.reshape(ops.matmul(coordinates, self._float_basis()), (*shape, self.output_dim))

    def _float_rows(self, k: int, inside: Tensor, within: Tensor) -> Tensor:
        block = stand_in(self, f"coordinates_{k}")
        if block is None:
            # Multiplying by 1 gives the block a dense gradient on TensorFlow.
            block = ops.multiply(self.blocks[k], 1)
        rows = ops.take(block, within, axis=0)
        return _widened_rows(ops.where(inside, rows, ops.zeros_like(rows)), max(self.block_ranks))

    def _integer_rows(self, bits: int, found: Sequence[tuple[int, Tensor, Tensor]]) -> Tensor:
        """Returns the rows of some blocks of the same bits, which are unpacked together."""
        ranks = [self.block_ranks[k] for k, _, _ in found]
        bytes_of_row = integer_groups.packed_size(max(ranks), bits)
        packed = 0.0
        scales = 0.0
        rank_of = 0.0
        for (k, inside, within), rank in zip(found, ranks, strict=True):
            integers, codes, largest = map(ops.convert_to_tensor, self.packed_blocks[k])
            row = ops.cast(ops.take(integers, within, axis=0), "float32")
            scale = even_levels.steps(ops.take(codes, within, axis=0), largest)
            packed += ops.where(inside, _widened_rows(row, bytes_of_row), 0.0)
            scales += ops.where(inside, scale, 0.0)  # 0 for rows of other blocks
            rank_of += ops.where(inside, float(rank), 0.0)
        rows = even_levels.levels(packed, max(ranks), bits) * scales
        if min(ranks) < max(ranks):
            rows = ops.where(ops.arange(max(ranks), dtype="float32") < rank_of, rows, 0.0)
        return _widened_rows(rows, max(self.block_ranks))

    def _logits(self, features: Tensor) -> Tensor:
        projected = ops.matmul(features, ops.transpose(self._float_basis()))
        logits = [
            ops.matmul(projected[..., : self.block_ranks[k]], ops.transpose(self._coordinates(k)))
            for k, _, _ in self._starts()
        ]
        zero_rows = self.input_dim - sum(self.block_rows)
        if zero_rows:
            logits.append(ops.repeat(ops.zeros_like(logits[0][..., :1]), zero_rows, axis=-1))
        in_place_order = ops.concatenate(logits, axis=-1)
        if not self.reorder_rows:
            return in_place_order
        return ops.take(in_place_order, self._places(), axis=-1)

    def quantized(self, block_bits: Sequence[int]) -> "AdaptiveEmbedding":
        """Returns a layer of integers with `block_bits` for the blocks, and a basis of 8 bits."""
        if not self.built or self.block_bits is not None:
            raise ValueError(
                "Expected a built layer that is not quantized yet. "
                f"Received: built={self.built}, block_bits={self.block_bits}"
            )
        new = type(self).from_config({**self.get_config(), "block_bits": tuple(block_bits)})
        new.build()
        new.assign_blocks([_array(block) for block in self.blocks], _array(self.basis))
        if self.reorder_rows:
            new.positions.assign(_array(self.positions))
        return new

    def assign_blocks(self, blocks: Sequence[np.ndarray], basis: np.ndarray) -> None:
        """Sets the `A_k` and `B` from float arrays, and quantizes them if the layer has bits.

        The rounding errors of a coordinate count as much as the length of its row of `B`.
        """
        if self.block_bits is None:
            for weight, block in zip([*self.blocks, self.basis], [*blocks, basis], strict=True):
                weight.assign(block)
            return
        importance = np.square(basis).sum(axis=1)
        for weights, bits, block in zip(self.packed_blocks, self.block_bits, blocks, strict=True):
            rows = even_levels.quantize_rows(block, bits, importance[: block.shape[1]])
            for weight, array in zip(weights, rows, strict=True):
                weight.assign(array)
        self.packed_basis.assign(basis)

    def assign_positions(self, positions: np.ndarray) -> None:
        """Sets the row of each id, integers `(V,)`."""
        self.positions.assign(_bytes_of(positions, position_bytes(self.input_dim)))


def basis_bytes(rank: int, columns: int) -> int:
    """Returns the bytes of a basis of integers."""
    return integer_groups.stored_bytes((rank, columns), BASIS_BITS, _BASIS_GROUP, axis=1)


def restored_basis(basis: np.ndarray) -> np.ndarray:
    """Returns a basis as it is restored from integers."""
    return integer_groups.rounded_matrix(basis, BASIS_BITS, _BASIS_GROUP, axis=1)


def position_bytes(input_dim: int) -> int:
    """Returns the bytes of a position among those of `input_dim` ids."""
    return next(size for size in (2, 3, 4) if input_dim <= 256**size)


def _widened_rows(rows: Tensor, width: int) -> Tensor:
    """Returns rows with zeros at their ends."""
    more = width - rows.shape[-1]
    return ops.pad(rows, ((0, 0), (0, more))) if more else rows


def _bytes_of(numbers: np.ndarray, count: int) -> np.ndarray:
    """Returns the bytes of integers, the lowest first, uint8 `(n, count)`."""
    return (np.asarray(numbers)[:, None] >> (8 * np.arange(count)) & 255).astype("uint8")


def _array(weight: keras.Variable) -> np.ndarray:
    # A copy: variables of JAX that share an array lose it when one of them is trained.
    return np.array(ops.convert_to_numpy(weight))
