"""Candidates have the bytes and the errors of the layers that are made of them."""

import dataclasses

import keras
import numpy as np
import pytest
from conformance import assert_same_arrays, to_numpy

from keras_small.formats import FORMATS, candidates_for, dense
from keras_small.storage.quantized_positions import QuantizedPositionEmbedding
from keras_small.storage.sizes import byte_count
from keras_small.survey.calibration import Statistics, observe
from keras_small.survey.errors import layer_error
from keras_small.survey.kinds import KINDS

L = keras.layers
RNG = np.random.default_rng(0)
IMAGES = (12, 9, 8, 6)
STEPS = (12, 7, 24)
# A layer of each kind, the shape of its inputs, and the formats beside integers that it can take.
LAYERS = {
    "dense": (lambda: L.Dense(36, "relu"), STEPS, {"low_rank"}),
    "einsum": (lambda: L.EinsumDense("abc,cde->abde", (None, 4, 8)), STEPS, {"low_rank"}),
    "einsum_batch": (lambda: L.EinsumDense("abc,bcd->abd", (7, 16)), STEPS, set()),
    "conv_1d": (lambda: L.Conv1D(20, 3, padding="causal"), STEPS, {"low_rank", "tucker"}),
    "conv_2d": (
        lambda: L.Conv2D(16, 3, strides=2, activation="relu"),
        IMAGES,
        {"low_rank", "tucker", "spatial"},
    ),
    "conv_3d": (lambda: L.Conv3D(8, 2), (3, 4, 4, 4, 6), {"low_rank", "tucker", "spatial"}),
    "pointwise": (lambda: L.Conv2D(16, 1, use_bias=False), IMAGES, {"low_rank"}),
    "grouped": (lambda: L.Conv2D(16, 3, groups=2), IMAGES, set()),
    "transposed": (lambda: L.Conv2DTranspose(16, 3), IMAGES, set()),
    "depthwise": (lambda: L.DepthwiseConv2D(3, depth_multiplier=4), IMAGES, set()),
    "separable": (lambda: L.SeparableConv2D(32, 3), IMAGES, set()),
    "simple_rnn": (lambda: L.SimpleRNN(20), STEPS, {"low_rank"}),
    "lstm": (lambda: L.LSTM(20, return_sequences=True), STEPS, {"low_rank"}),
    "gru": (lambda: L.GRU(20, go_backwards=True), STEPS, {"low_rank"}),
    "stacked": (lambda: L.RNN([L.GRUCell(20), L.LSTMCell(16)]), STEPS, set()),
}


# JAX has no float64 unless it is asked for.
DTYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
if keras.backend.backend() == "jax":
    del DTYPES["float64"]


@pytest.mark.parametrize(("dtype", "size"), DTYPES.items())
def test_bytes_are_those_of_the_dtype(dtype, size):
    layer = L.Dense(3, dtype=dtype)
    layer.build((None, 5))
    assert byte_count(layer) == size * (5 * 3 + 3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bits", [None, 8, 3])
def test_estimated_bytes_are_the_real_ones(dtype, bits):
    dense = keras.layers.Dense(96, dtype=dtype)
    dense.build((None, 64))
    candidates = candidates_for(dense, Statistics(), ("low_rank", "tensor_train"), bits)
    assert {candidate.format for candidate in candidates} == {"dense", "low_rank", "tensor_train"}
    for candidate in candidates[::3]:
        assert byte_count(candidate.finish(candidate.make())) == candidate.bytes


def noted(make, shape):
    """A layer in a model, and what is observed of it on inputs of few directions."""
    layer, rank = make(), shape[-1] // 2
    model = keras.Sequential([keras.Input(shape[1:]), layer])
    for weight in layer.weights:
        weight.assign(RNG.normal(size=weight.shape) / 4)
    inputs = RNG.normal(size=(*shape[:-1], rank)) @ RNG.normal(size=(rank, shape[-1]))
    statistics, _ = observe(model, {"": layer}, [inputs.astype("float32")])
    return layer, statistics[""]


@pytest.mark.parametrize(("bits", "coded"), [(None, False), (4, False), (None, True)])
@pytest.mark.parametrize("name", LAYERS)
def test_each_kind_has_its_formats_with_their_sizes_and_errors(name, bits, coded):
    make, shape, formats = LAYERS[name]
    tried = {"coded"} if coded else FORMATS.keys() - {"coded"}
    layer, statistics = noted(make, shape)
    before = layer.get_weights()
    candidates = candidates_for(layer, statistics, sorted(tried), bits)
    assert {c.format for c in candidates} == {"dense"} | (formats & tried)
    assert len(candidates) > 1 or not (bits or coded or formats)
    keys = {(c.format, c.ranks, c.bits) for c in candidates}
    assert len(keys) == len(candidates)
    for kind in sorted({c.format for c in candidates[1:]}):
        group = [c for c in candidates[1:] if c.format == kind]
        for candidate in (group[0], group[len(group) // 2]):
            new = candidate.finish(candidate.make())
            assert byte_count(new) == candidate.bytes or coded  # test_coded.py has those of files
            assert new.name == layer.name
            error = layer_error(layer, new, statistics)
            # Those of recurrent layers are of one step, and do not add up over the steps.
            low, high = (0.1, 5) if isinstance(layer, L.RNN) else (0.5, 1.6)
            assert low * candidate.error - 0.02 < error < high * candidate.error + 0.02
    assert_same_arrays(before, layer.get_weights())


def test_every_kind_is_tested():
    kinds = {type(make()) for make, _, _ in LAYERS.values()}
    tables = {kind for kind in KINDS if issubclass(kind, L.Embedding)}
    tables |= {QuantizedPositionEmbedding}  # in tests/keras_small/storage/test_quantized.py
    same = {L.Conv1DTranspose, L.Conv3DTranspose, L.DepthwiseConv1D, L.SeparableConv1D}
    assert kinds | tables | same == set(KINDS)


def test_errors_of_integers_heed_what_second_moments_leave():
    """Of correlated inputs roundings make up for each other, and the estimate says so."""
    layer = L.Dense(64)
    model = keras.Sequential([keras.Input((96,)), layer])
    rows = RNG.normal(size=(4000, 8)) @ RNG.normal(size=(8, 96)) + 0.1 * RNG.normal(size=(4000, 96))
    rows = rows.astype("float32")
    statistics = observe(model, {"dense": layer}, [rows])[0]["dense"]
    for candidate in dense.candidates(layer, statistics, 4):
        small = candidate.finish(candidate.make())
        expected = rows @ to_numpy(layer.kernel)
        outputs = to_numpy(small(rows))
        error = np.linalg.norm(outputs - expected) / np.linalg.norm(expected)
        assert candidate.likely_error == pytest.approx(error, rel=0.35)


def test_more_bits_and_smaller_groups_have_smaller_errors():
    layer, statistics = noted(lambda: L.Dense(64), (200, 256))
    errors = {(c.bits, c.ranks): c.error for c in candidates_for(layer, statistics, (), 2)[1:]}
    assert errors[2, (16,)] > errors[3, (16,)] > errors[4, (32,)] > errors[6, (64,)]
    assert errors[6, (64,)] > errors[8, (128,)]
    assert errors[3, (16,)] < errors[3, (32,)] < errors[3, (64,)]


@pytest.mark.parametrize("name", ["tucker", "spatial"])
def test_factors_are_looked_for_where_they_may_win(name):
    """A kernel that is a product of small ones, and one of random numbers beside its integers."""
    may_win = FORMATS[name].may_win
    layer = keras.layers.Conv2D(32, 3)
    layer.build((None, 8, 8, 32))
    first, second = RNG.normal(size=(3, 32, 2)), RNG.normal(size=(3, 2, 32))
    product = np.einsum("hcr,wrf->hwcf", first, second)

    def rivals():
        integers = dense.candidates(layer, Statistics(), 2)
        # Below the bytes of the smallest one anything may win.
        smallest = min(integers, key=lambda candidate: candidate.bytes)
        return [*integers, dataclasses.replace(smallest, bytes=1)]

    assert not may_win(layer, Statistics(), 4, rivals(), 0)
    layer.kernel.assign(product)
    assert may_win(layer, Statistics(), 4, rivals(), 0)
