"""Chains of convolutions compute what one convolution of their product does."""

import keras
import numpy as np
import pytest
from conformance import assert_same_arrays, built, saved_and_loaded, to_numpy
from keras import ops
from slow_cases import slow_but

from keras_small.storage import convolution_factors as factors
from keras_small.storage.layer_chain import LayerChain, chain_of, patches, reason_against_factors

RNG = np.random.default_rng(0)
L = keras.layers
CONVS = {
    "plain": (lambda: L.Conv2D(7, (3, 2), activation="relu"), (2, 8, 9, 5)),
    "same": (lambda: L.Conv2D(7, 3, strides=(2, 1), padding="same"), (2, 8, 9, 5)),
    "dilated": (lambda: L.Conv2D(7, (2, 3), dilation_rate=(2, 3), padding="same"), (2, 8, 9, 5)),
    "no_bias": (lambda: L.Conv2D(7, 5, strides=3, use_bias=False), (2, 11, 12, 5)),
    "causal": (lambda: L.Conv1D(7, 3, padding="causal", dilation_rate=2), (2, 11, 5)),
    "one": (lambda: L.Conv2D(7, 1, strides=2), (2, 8, 9, 5)),
    "three_axes": (lambda: L.Conv3D(4, (2, 3, 2), strides=2, padding="same"), (2, 5, 6, 4, 3)),
}
if keras.backend.backend() != "tensorflow":  # whose CPU has no convolution of channels first
    CONVS["channels_first"] = (
        lambda: L.Conv2D(7, 3, strides=2, padding="same", data_format="channels_first"),
        (2, 5, 8, 9),
    )


def factorings(kernel):
    """Factors of less than the full ranks, by name."""
    first, second, _ = factors.channel_factors(kernel)
    yield "channel", [first[..., :3], second[:3]]
    yield "tucker", next(factors.tucker_factors(kernel, [(2, 3)]))
    if kernel.ndim > 3:
        yield "spatial", next(factors.spatial_factors(kernel, [4]))


@pytest.mark.parametrize("name", slow_but(["plain", "dilated"], CONVS))
def test_is_the_convolution_of_the_product(name, tmp_path):
    make, shape = CONVS[name]
    layer, inputs = built(make, shape), RNG.normal(size=shape).astype("float32")
    before = layer.get_weights()
    for _, kernels in factorings(to_numpy(layer.kernel)):
        new = chain_of(layer, kernels)
        assert new.name == layer.name
        assert new.compute_output_shape(shape) == layer.compute_output_shape(shape)
        same = make()
        same.build(shape)
        same.set_weights([factors.product(*kernels), *before[1:]])
        np.testing.assert_allclose(to_numpy(new(inputs)), to_numpy(same(inputs)), atol=2e-5)
        model = keras.Sequential([keras.Input(shape[1:]), new])
        saved_and_loaded(model, inputs, tmp_path)
    assert_same_arrays(before, layer.get_weights())


@pytest.mark.parametrize("name", [*CONVS, "grouped"])
def test_patches_are_what_the_kernel_multiplies(name):
    make, shape = {**CONVS, "grouped": (lambda: L.Conv2D(6, 3, groups=2), (2, 5, 6, 4))}[name]
    layer, inputs = built(make, shape), RNG.normal(size=shape).astype("float32")
    rows, kernel = patches(layer, inputs), to_numpy(layer.kernel)
    layer.activation = keras.activations.linear
    expected = to_numpy(layer(inputs))
    if name == "channels_first":
        expected = np.moveaxis(expected, 1, -1)
    expected = expected - (to_numpy(layer.bias) if layer.use_bias else 0)
    matrix = kernel.reshape(-1, kernel.shape[-1])
    half = matrix.shape[1] // layer.groups
    outputs = [
        part @ matrix[:, i * half : (i + 1) * half]
        for i, part in enumerate(np.split(rows, layer.groups))
    ]
    flat = expected.reshape(-1, expected.shape[-1])
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), flat, atol=2e-5)


def test_options_go_over():
    layer = built(
        lambda: L.Conv2D(
            7,
            3,
            activation="relu",
            kernel_regularizer="l2",
            bias_constraint="non_neg",
            dtype="mixed_float16",
        ),
        (None, 8, 8, 5),
    )
    layer.trainable = False
    new = chain_of(layer, next(factors.tucker_factors(to_numpy(layer.kernel), [(2, 3)])))
    assert [part.activation.__name__ for part in new.parts] == ["linear", "linear", "relu"]
    assert [part.use_bias for part in new.parts] == [False, False, True]
    assert all(part.kernel_regularizer is not None for part in new.parts)
    assert new.outer.bias_constraint is not None
    assert new.dtype_policy.name == "mixed_float16"
    assert not new.trainable_weights
    outputs = new(ops.ones((1, 8, 8, 5)))
    assert keras.backend.standardize_dtype(outputs.dtype) == "float16"


def test_reasons_and_errors():
    def reason(make, shape=(None, 8, 8, 4)):
        return reason_against_factors(built(make, shape))

    assert reason(lambda: L.Conv2D(8, 3)) is None
    assert "2 groups" in reason(lambda: L.Conv2D(8, 3, groups=2))
    assert "DepthwiseConv2D" in reason(lambda: L.DepthwiseConv2D(3))
    assert reason_against_factors(L.Conv2D(8, 3)) == "not built"
    layer = built(lambda: L.Conv2D(8, 3), (None, 8, 8, 4))
    with pytest.raises(ValueError, match=r"size 3 along axis 0.*\[2, 1\]"):
        chain_of(layer, [np.ones((2, 3, 4, 2)), np.ones((2, 8))])
    with pytest.raises(ValueError, match="a Dense"):
        chain_of(built(lambda: L.Dense(3), (None, 4)), [np.ones((4, 3))])
    with pytest.raises(ValueError, match="at least one part"):
        LayerChain([])
