import keras
import numpy as np
import pytest
from conformance import to_numpy
from differentiation import gradients
from keras import ops

from keras_tnattn.ops import parts
from keras_tnattn.ops.spectral_filter import spectral_filter


@pytest.fixture
def on_one_cpu(monkeypatch):
    monkeypatch.setattr(parts, "_runs_on_one_cpu", lambda: True)


@pytest.mark.parametrize(
    ("sequences", "numbers", "expected"),
    [
        (64, 1000, 1),  # small work
        (64, 37_500, 1),  # 3 parts
        (64, 37_501, 4),
        (64, 100_000, 8),
        (60, 200_000, 15),  # of at most 16 parts
        (62, 200_000, 1),  # nothing near 16 divides it
        (2, 10_000_000, 1),  # fewer sequences than parts
        (0, 1000, 1),
        (None, 1000, 1),
        (64, None, 1),
    ],
)
def test_work_is_cut_into_equal_parts_of_about_the_cache(on_one_cpu, sequences, numbers, expected):
    assert parts.count_parts(sequences, numbers) == expected


@pytest.mark.parametrize(
    ("devices", "expected"), [(["cpu:0"], 8), (["gpu:0"], 1), (["cpu:0", "cpu:1"], 1)]
)
def test_accelerators_and_several_devices_compute_all_at_once(monkeypatch, devices, expected):
    cuts = keras.backend.backend() in ("jax", "tensorflow")
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: devices)
    assert parts.count_parts(64, 100_000) == (expected if cuts else 1)


def test_parts_are_in_order():
    x = np.arange(12, dtype="float32").reshape(2, 3, 1, 2)

    def both(part, other):
        return part + 1, ops.sum(part * other)

    grown, sums = parts.map_parts(both, [ops.convert_to_tensor(x), ops.convert_to_tensor(x)], 3)
    np.testing.assert_array_equal(to_numpy(grown), x.reshape(3, 2, 1, 2) + 1)
    np.testing.assert_array_equal(to_numpy(sums), np.sum(x.reshape(3, -1) ** 2, axis=1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("method", ["direct", "banded"])
@pytest.mark.parametrize("coefficients", [None, [0.8, 0.6, -0.4]])
def test_the_filter_and_its_gradients_do_not_depend_on_parts(
    on_one_cpu, monkeypatch, method, causal, coefficients
):
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(3, 2, 40, size)).astype("float32") for size in (4, 3)]
    if coefficients is not None:
        inputs.append(np.array(coefficients, "float32"))
    weight = ops.convert_to_tensor(rng.normal(size=(3, 2, 40, 3)).astype("float32"))

    def total(keys, values, alphas=None):
        filtered = spectral_filter(keys, values, 0.3, alphas, method, causal)
        return ops.sum(weight * filtered)

    def computed(numbers_of_a_part):
        monkeypatch.setattr(parts, "_NUMBERS", numbers_of_a_part)
        outputs = spectral_filter(*inputs[:2], 0.3, *inputs[2:], method=method, causal=causal)
        return [to_numpy(outputs), *gradients(total, inputs)]

    mapped = []
    monkeypatch.setattr(
        "keras_tnattn.ops.spectral_filter.map_parts",
        lambda *args: mapped.append(args[-1]) or parts.map_parts(*args),
    )
    whole = computed(10**9)
    assert not mapped
    for one, other in zip(computed(2500), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert set(mapped) == {6}


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="others know all sizes")
def test_the_sizes_are_those_of_the_keys(on_one_cpu, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(parts, "_NUMBERS", 2500)
    keys, values = (tf.random.normal((6, 40, size), seed=size) for size in (4, 3))
    known, unknown = tf.TensorSpec((6, 40, 4)), tf.TensorSpec((None, None, 3))
    compiled = tf.function(lambda k, v: spectral_filter(k, v, 0.3), [known, unknown])
    whole = spectral_filter(keys, values, 0.3)
    np.testing.assert_allclose(compiled(keys, values), whole, rtol=1e-5, atol=1e-5)
