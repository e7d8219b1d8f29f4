"""The candidates to replace a layer: formats, ranks and bits, each with its size and error."""

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.compression.calibration import SAMPLE_ROWS, Seen, activated
from keras_tnattn.compression.rebuilding import rebuilt
from keras_tnattn.layers import (
    LowRankDense,
    LowRankEinsumDense,
    LowRankEmbedding,
    TTDense,
    TTEmbedding,
)
from keras_tnattn.layers.low_rank_einsum_dense import kernel_matrix, split_equation
from keras_tnattn.ops import low_rank, tensor_train

FORMATS = ("low_rank", "tensor_train")
# The shares of the full rank that are tried; each is nine tenths of the one before.
_SHARES = tuple(0.9**n for n in range(1, 44))
_TT_KERNEL_RANKS = (4, 8, 16, 32, 64)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to replace a layer.

    Attributes:
        format: `"dense"`, `"low_rank"` or `"tensor_train"`.
        ranks: The ranks; empty for `"dense"`.
        bits: Bits of the integers that store its weights, or `None` for floats.
        bytes: Bytes of all its weights.
        error: Estimated relative error of its outputs, of a kernel before the activation.
        flops: Floating-point operations per row of inputs, or per id.
        make: Function that returns the built layer with float weights; `quantized` quantizes it.
        improved_error: The `error` that is expected once the layer is made, if this improves it.
        weighted_error: The likely error with directions weighted by how much the model responds to
            them, if that was measured.
        id_order: Function that returns the old id of each new id of `make()`, or `None` if the ids
            stay.
    """

    format: str
    ranks: tuple[int, ...]
    bits: int | None
    bytes: int
    error: float
    flops: int
    make: Callable[[], keras.layers.Layer]
    improved_error: float | None = None
    weighted_error: float | None = None
    id_order: Callable[[], np.ndarray | None] = lambda: None

    @property
    def likely_error(self) -> float:
        """The error that is expected of the made layer."""
        return self.error if self.improved_error is None else self.improved_error

    @property
    def cost(self) -> float:
        """The error by which the budget is shared out."""
        return self.likely_error if self.weighted_error is None else self.weighted_error


def byte_count(layer: keras.layers.Layer) -> int:
    """Returns the bytes of all weights of a layer."""
    return sum(int(np.prod(w.shape)) * item_size(w.dtype) for w in layer.weights)


def item_size(dtype: str) -> int:
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


def dense_flops(layer: keras.layers.Layer) -> int:
    """Returns the FLOPs of an uncompressed layer per row of inputs; a lookup has none."""
    if isinstance(layer, keras.layers.Embedding):
        return 0
    return 2 * int(np.prod(layer.kernel.shape))


def ranks_to_try(full: int) -> list[int]:
    return sorted({max(1, round(full * share)) for share in _SHARES}, reverse=True)


def kernel_candidates(
    layer: keras.layers.Layer, seen: Seen, formats: Sequence[str], bits: int | None
) -> list[Candidate]:
    einsum = isinstance(layer, keras.layers.EinsumDense)
    kernel = ops.convert_to_numpy(layer.kernel).astype("float64")
    if einsum:
        kernel = kernel_matrix(kernel, layer.equation)
    rows, columns = kernel.shape
    scale = None if seen.moment is None else low_rank.square_root(seen.moment)
    number = item_size(layer.variable_dtype)
    bias_bytes = number * int(np.prod(layer.bias.shape)) if layer.bias is not None else 0
    found, rounding = [], 0.0
    for width in sorted({bits, 8}) if bits is not None else ():
        small = quantized(layer, width)
        error = output_error(layer, small, seen)
        if width == bits:
            rounding = error
        size, flops = byte_count(small), dense_flops(layer)
        found.append(Candidate("dense", (), width, size, error, flops, lambda: layer))
    if "low_rank" in formats:
        left, right, errors = low_rank.low_rank_factors(kernel, scale)
        for rank in ranks_to_try(len(errors) - 1):

            def make(rank: int = rank) -> keras.layers.Layer:
                new = (LowRankEinsumDense if einsum else LowRankDense).like(layer, rank)
                new.build(_input_shape(layer))
                bias = None if layer.bias is None else ops.convert_to_numpy(layer.bias)
                # Split each singular value evenly, so that both factors quantize well.
                root = np.sqrt(np.linalg.norm(left[:, :rank], axis=0) + 1e-30)
                new.assign_factors(left[:, :rank] / root, right[:rank] * root[:, None], bias)
                return new

            size = _stored(rank, rows, columns, bits, number) + bias_bytes
            error = float(np.hypot(errors[rank], rounding))
            flops = 2 * rank * (rows + columns)
            found.append(Candidate("low_rank", (rank,), bits, size, error, flops, make))
    if "tensor_train" in formats and not einsum and min(rows, columns) >= 64:
        found += _tt_kernel_candidates(layer, kernel, scale, bias_bytes)
    return found


def _stored(rank: int, rows: int, columns: int, bits: int | None, number: int) -> int:
    """Estimates the bytes of two factors in Keras: weights, scales, at 4 bits zeros and indices."""
    if bits is None:
        return number * rank * (rows + columns)
    scales = number * (rank + columns)
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
        size = item_size(layer.variable_dtype) * sum(core.size for core in cores) + bias_bytes

        def make(rank: int = rank) -> keras.layers.Layer:
            return TTDense.from_dense(layer, *shapes, rank, name=layer.name)

        flops = tensor_train.contraction_plan(*shapes, (rank,)).flops_per_row
        found.append(Candidate("tensor_train", (rank,), None, size, float(error), int(flops), make))
    return found


def _input_shape(layer: keras.layers.Layer) -> tuple:
    return tuple(layer.get_build_config()["input_shape"])


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


def quantized_model(
    floating: keras.Model,
    layers: Mapping[str, keras.layers.Layer],
    choice: Mapping[str, Candidate],
    sample: Any,
) -> keras.Model:
    """Returns the model in which the layers whose candidates have `bits` are quantized."""
    if all(candidate.bits is None for candidate in choice.values()):
        return floating
    prototypes = {
        id(layers[path]): quantized(layers[path], candidate.bits)
        for path, candidate in choice.items()
        if candidate.bits is not None
    }
    return rebuilt(floating, prototypes, None if sample is None else lambda m: m(sample))


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
    """Returns the relative error of the outputs of a dense or einsum layer on `sample`.

    These are the outputs before the activation, as in the errors of ranks.
    """
    inputs = sample(old, seen)
    linear = keras.activations.linear
    with activated(old, linear), activated(new, linear):
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
