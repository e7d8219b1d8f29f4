"""The candidates to replace a layer: formats, ranks and bits, each with its size and error."""

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
from keras import ops

from keras_tnattn.compression.calibration import SAMPLE_ROWS, Seen
from keras_tnattn.layers import (
    LowRankDense,
    LowRankEinsumDense,
    LowRankEmbedding,
    TTDense,
    TTEmbedding,
)
from keras_tnattn.layers.low_rank_einsum_dense import kernel_matrix, split_equation
from keras_tnattn.ops import low_rank, tensor_train, tt_table

FORMATS = ("low_rank", "tensor_train")
# The shares of the full rank that are tried; each is four fifths of the one before.
_SHARES = tuple(0.8**n for n in range(1, 22))
_TT_ROW_RANKS = (4, 6, 8, 12, 16, 24, 32, 48, 64)
_TT_KERNEL_RANKS = (4, 8, 16, 32, 64)
# The weight of an id that never occurred in the data, relative to the mean count.
_UNSEEN = 0.02


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to replace a layer.

    Attributes:
        format: `"dense"`, `"low_rank"` or `"tensor_train"`.
        ranks: The ranks; empty for `"dense"`.
        bits: Bits of the integers that store its weights, or `None` for floats.
        bytes: Bytes of all its weights.
        error: Estimated relative error of its outputs.
        flops: Floating-point operations per row of inputs, or per id.
        make: Function that returns the built layer with float weights; `quantized` quantizes it.
    """

    format: str
    ranks: tuple[int, ...]
    bits: int | None
    bytes: int
    error: float
    flops: int
    make: Callable[[], keras.layers.Layer]


def byte_count(layer: keras.layers.Layer) -> int:
    """Returns the bytes of all weights of a layer."""
    return sum(int(np.prod(w.shape)) * _item_size(w.dtype) for w in layer.weights)


def _item_size(dtype: str) -> int:
    return np.dtype({"bfloat16": "float16", "bool": "int8"}.get(dtype, dtype)).itemsize


def reason_against(layer: keras.layers.Layer) -> str | None:
    """Returns why a layer of a supported kind cannot be replaced, or `None` if it can."""
    if layer.quantization_mode is not None:
        return "is quantized already"
    if getattr(layer, "lora_enabled", False):
        return "has a LoRA"
    if isinstance(layer, keras.layers.EinsumDense):
        try:
            split_equation(layer.equation)
        except ValueError:
            return f"the equation {layer.equation} has no matrix to factor"
    return None


def candidates_for(
    layer: keras.layers.Layer,
    seen: Seen,
    formats: Sequence[str],
    bits: int | None,
    renumber: int | None,
) -> list[Candidate]:
    """Returns the candidates for a layer, including the layer itself, by decreasing size."""
    if isinstance(layer, keras.layers.Embedding):
        found = _embedding_candidates(layer, seen, formats, bits, renumber)
    else:
        found = _kernel_candidates(layer, seen, formats, bits)
    full = byte_count(layer)
    kept = Candidate("dense", (), None, full, 0.0, dense_flops(layer), lambda: layer)
    smaller = sorted((c for c in found if c.bytes < full), key=lambda c: (-c.bytes, c.error))
    return [kept, *smaller]


def dense_flops(layer: keras.layers.Layer) -> int:
    """Returns the FLOPs of an uncompressed layer per row of inputs; a lookup has none."""
    if isinstance(layer, keras.layers.Embedding):
        return 0
    return 2 * int(np.prod(layer.kernel.shape))


def _ranks(full: int) -> list[int]:
    return sorted({max(1, round(full * share)) for share in _SHARES}, reverse=True)


def _kernel_candidates(
    layer: keras.layers.Layer, seen: Seen, formats: Sequence[str], bits: int | None
) -> list[Candidate]:
    einsum = isinstance(layer, keras.layers.EinsumDense)
    kernel = ops.convert_to_numpy(layer.kernel).astype("float64")
    if einsum:
        kernel = kernel_matrix(kernel, layer.equation)
    rows, columns = kernel.shape
    scale = None if seen.moment is None else low_rank.square_root(seen.moment)
    item_size = _item_size(layer.variable_dtype)
    bias_bytes = item_size * int(np.prod(layer.bias.shape)) if layer.bias is not None else 0
    found, rounding = [], 0.0
    if bits is not None:
        small = quantized(layer, bits)
        rounding = output_error(layer, small, seen)
        found.append(
            Candidate(
                "dense",
                (),
                bits,
                byte_count(small),
                rounding,
                dense_flops(layer),
                lambda: layer,
            )
        )
    if "low_rank" in formats:
        left, right, errors = low_rank.low_rank_factors(kernel, scale)
        for rank in _ranks(len(errors) - 1):

            def make(rank: int = rank) -> keras.layers.Layer:
                new = (LowRankEinsumDense if einsum else LowRankDense).like(layer, rank)
                new.build(_input_shape(layer))
                bias = None if layer.bias is None else ops.convert_to_numpy(layer.bias)
                # Split each singular value evenly, so that both factors quantize well.
                root = np.sqrt(np.linalg.norm(left[:, :rank], axis=0) + 1e-30)
                new.assign_factors(left[:, :rank] / root, right[:rank] * root[:, None], bias)
                return new

            size = _stored(rank, rows, columns, bits, item_size) + bias_bytes
            error = float(np.hypot(errors[rank], rounding))
            flops = 2 * rank * (rows + columns)
            found.append(Candidate("low_rank", (rank,), bits, size, error, flops, make))
    if "tensor_train" in formats and not einsum and min(rows, columns) >= 64:
        found += _tt_kernel_candidates(layer, kernel, scale, bias_bytes)
    return found


def _stored(rank: int, rows: int, columns: int, bits: int | None, item_size: int) -> int:
    """Estimates the bytes of two factors in Keras: weights, scales, at 4 bits zeros and indices."""
    if bits is None:
        return item_size * rank * (rows + columns)
    scales = item_size * (rank + columns)
    if bits == 4:
        scales = 2 * scales + 4 * (rows + rank)
    return rank * (rows + columns) * bits // 8 + scales


def _tt_kernel_candidates(
    layer: keras.layers.Dense, kernel: np.ndarray, scale: np.ndarray | None, bias_bytes: int
) -> list[Candidate]:
    rows, columns = kernel.shape
    shapes = tensor_train.balanced_factors(rows, 2), tensor_train.balanced_factors(columns, 2)
    scaled = kernel if scale is None else scale @ kernel
    bound = tensor_train.rank_bounds(*shapes)[0]
    found = []
    for rank in (rank for rank in _TT_KERNEL_RANKS if rank < bound):
        cores, _ = tensor_train.matrix_to_tt(kernel, *shapes, rank)
        difference = kernel - ops.convert_to_numpy(tensor_train.tt_to_matrix(cores))
        difference = difference if scale is None else scale @ difference
        error = np.linalg.norm(difference) / (np.linalg.norm(scaled) or 1.0)
        item_size = _item_size(layer.variable_dtype)
        size = item_size * sum(core.size for core in cores) + bias_bytes

        def make(rank: int = rank) -> keras.layers.Layer:
            return TTDense.from_dense(layer, *shapes, rank, name=layer.name)

        flops = tensor_train.contraction_plan(*shapes, (rank,)).flops_per_row
        found.append(Candidate("tensor_train", (rank,), None, size, float(error), int(flops), make))
    return found


def _input_shape(layer: keras.layers.Layer) -> tuple:
    return tuple(layer.get_build_config()["input_shape"])


def row_weights(layer: keras.layers.Embedding, seen: Seen) -> np.ndarray | None:
    """Returns the counts of the ids, with a small positive weight for ids that never occurred."""
    if seen.counts is None:
        return None
    counts = seen.counts.astype("float64")[: layer.input_dim]
    if layer.mask_zero:
        counts[0] = 0  # the row of padding is masked
    return counts + _UNSEEN * counts.mean() + 1e-12


def _embedding_candidates(
    layer: keras.layers.Embedding,
    seen: Seen,
    formats: Sequence[str],
    bits: int | None,
    renumber: int | None,
) -> list[Candidate]:
    table = ops.convert_to_numpy(layer.embeddings).astype("float64")
    weights = row_weights(layer, seen)
    found = []
    if bits is not None:
        small = quantized(layer, bits)
        found.append(
            Candidate(
                "dense",
                (),
                bits,
                byte_count(small),
                table_error(table, _table(small), weights),
                0,
                lambda: layer,
            )
        )

    def add(format: str, ranks: tuple[int, ...], new: keras.layers.Layer, flops: int) -> None:
        small = new if bits is None else new.quantized(bits)
        error = new.relative_error if bits is None else table_error(table, _table(small), weights)
        found.append(Candidate(format, ranks, bits, byte_count(small), error, flops, lambda: new))

    if "low_rank" in formats:
        for rank in _ranks(min(table.shape)):
            new = LowRankEmbedding.from_embedding(layer, rank, row_weights=weights)
            add("low_rank", (rank,), new, 2 * rank * table.shape[1])
    if "tensor_train" in formats and len(table) >= 500:
        order = id_order(layer, renumber or 0)
        for rank in _TT_ROW_RANKS:
            new = ordered_rows(layer, rank, weights, order, renumber is not None)
            add("tensor_train", new.ranks, new, 2 * max(new.ranks) * table.shape[1])
    return found


def ordered_rows(
    layer: keras.layers.Embedding,
    rank: int,
    weights: np.ndarray | None,
    order: np.ndarray,
    renumber: bool,
) -> TTEmbedding:
    """Returns a tensor train of the rows in the given order, with all columns in the last core.

    With `renumber` its ids are the new ones; otherwise a table of positions maps the old ids.
    """
    rows, columns = layer.input_dim, layer.output_dim
    shapes = tt_table.row_factors(rows, 3), (1, 1, columns)
    if not renumber:
        return TTEmbedding.from_embedding(
            layer, *shapes, rank, row_weights=weights, order=order, reorder_rows=True
        )
    moved = type(layer).from_config(layer.get_config())
    moved.build()
    moved.set_weights([ops.convert_to_numpy(layer.embeddings)[order]])
    moved_weights = None if weights is None else weights[order]
    return TTEmbedding.from_embedding(moved, *shapes, rank, row_weights=moved_weights)


def id_order(layer: keras.layers.Embedding, first: int) -> np.ndarray:
    """Returns the old id of each new id: the first ones unchanged, the others by similarity."""
    table = ops.convert_to_numpy(layer.embeddings)
    return np.concatenate([np.arange(first), first + tt_table.similarity_order(table[first:])])


def _table(layer: keras.layers.Layer) -> np.ndarray:
    return ops.convert_to_numpy(layer(np.arange(layer.input_dim))).astype("float64")


def table_error(table: np.ndarray, near: np.ndarray, weights: np.ndarray | None) -> float:
    """Returns the relative error of a table, with weighted rows."""
    weights = np.ones(len(table)) if weights is None else weights
    error = (weights[:, None] * (table - near) ** 2).sum()
    return float(np.sqrt(error / ((weights[:, None] * table**2).sum() or 1.0)))


def quantized(layer: keras.layers.Layer, bits: int) -> keras.layers.Layer:
    """Returns a quantized layer: by Keras, or row by row for the embeddings of this package."""
    if isinstance(layer, LowRankEmbedding | TTEmbedding):
        return layer.quantized(bits)
    copy = type(layer).from_config(layer.get_config())
    copy.build(None if isinstance(layer, keras.layers.Embedding) else _input_shape(layer))
    copy.set_weights(layer.get_weights())
    low_rank_parts = isinstance(layer, LowRankDense | LowRankEinsumDense)
    with _fast_collections():
        for part in [copy.inner, copy.outer] if low_rank_parts else [copy]:
            part.quantize(f"int{bits}", type_check=False)
    return copy


@contextlib.contextmanager
def _fast_collections() -> Iterator[None]:
    """Excludes the objects that exist already from garbage collections.

    Keras' `quantize` collects garbage for each weight that it replaces. With TensorFlow in memory
    each collection takes 0.3 s, more than everything else here.
    """
    if gc.get_freeze_count():
        # Somebody has excluded objects, which `unfreeze` would include again.
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def output_error(old: keras.layers.Layer, new: keras.layers.Layer, seen: Seen) -> float:
    """Returns the relative error of the outputs of a dense or einsum layer on `sample`."""
    inputs = sample(old, seen)
    expected = ops.convert_to_numpy(old(inputs)).astype("float64")
    outputs = ops.convert_to_numpy(new(inputs)).astype("float64")
    return float(np.linalg.norm(outputs - expected) / (np.linalg.norm(expected) or 1.0))


def sample(layer: keras.layers.Layer, seen: Seen) -> np.ndarray:
    """Returns inputs for a dense or einsum layer: those it was called with, or random ones."""
    if seen.batch is not None:
        return seen.batch
    rng = np.random.default_rng(0)
    shape = [8 if size is None else size for size in _input_shape(layer)]
    shape[0] = max(1, SAMPLE_ROWS // max(int(np.prod(shape[1:-1])), 1))
    return rng.normal(size=shape).astype("float32")
