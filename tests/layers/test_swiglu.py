import numpy as np
from conformance import to_numpy, tokens

from keras_tnattn.layers import SwiGLU
from keras_tnattn.layers.power_law_graph_attention import ResidualUnit


def randomized(layer, shape):
    layer.build(shape)
    rng = np.random.default_rng(1)
    for weight in layer.weights:
        weight.assign(rng.normal(scale=0.5, size=weight.shape))
    return layer


def expected(layer, x):
    def dense(part, x):
        kernel, bias = (to_numpy(weight) for weight in part.weights)
        return x @ kernel + bias

    hidden = dense(layer.hidden, x)
    return dense(layer.projection, hidden / (1 + np.exp(-hidden)) * dense(layer.gate, x))


def test_equals_the_equation():
    x = tokens(2, 4, 5)
    layer = randomized(SwiGLU(3), x.shape)
    np.testing.assert_allclose(to_numpy(layer(x)), expected(layer, x), rtol=1e-4, atol=1e-5)


def test_a_gated_residual_unit_has_one_net_after_the_other():
    x = tokens(6, 5)
    unit = randomized(ResidualUnit(3, num_hidden=2, gated=True), x.shape)
    first, second = unit.hidden
    total = x + expected(second, expected(first, x))
    gamma, beta = (to_numpy(weight) for weight in unit.norm.weights)
    centred = total - total.mean(-1, keepdims=True)
    want = gamma * centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-6) + beta
    np.testing.assert_allclose(to_numpy(unit(x)), want, rtol=1e-4, atol=1e-5)


def test_a_residual_unit_does_not_overflow_in_half_precision():
    x = np.full((2, 4), 3e5, "float32") * np.array([1, -1, 2, 0.5], "float32")  # beyond float16
    for gated in (False, True):
        unit = ResidualUnit(3, num_hidden=1, gated=gated, dtype="mixed_float16")
        assert np.isfinite(to_numpy(unit(x))).all()
