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
        (64, 62_500, 1),
        (64, 62_501, 16),
        (36, 200_000, 9),
        (60, 100_000, 10),
        (62, 200_000, 1),  # no number from 9 to 16 divides it
        (2, 10_000_000, 1),  # fewer sequences than parts
        (0, 1000, 1),
        (None, 1000, 1),
        (64, None, 1),
    ],
)
def test_much_work_is_cut_into_equal_parts(on_one_cpu, sequences, numbers, expected):
    assert parts.count_parts(sequences, numbers) == expected


@pytest.mark.parametrize(
    ("devices", "expected"), [(["cpu:0"], 16), (["gpu:0"], 1), (["cpu:0", "cpu:1"], 1)]
)
def test_accelerators_and_several_devices_compute_all_at_once(monkeypatch, devices, expected):
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: devices)
    on_jax = keras.backend.backend() == "jax"
    assert parts.count_parts(64, 100_000) == (expected if on_jax else 1)


@pytest.mark.parametrize("number", [1, 2, 6])
def test_parts_are_in_order(number):
    x = np.arange(12, dtype="float32").reshape(2, 3, 1, 2)
    seen = []

    def product(x, y):
        seen.append(tuple(x.shape))
        return x * y

    got = parts.map_parts(product, ops.convert_to_tensor(x), ops.convert_to_tensor(x + 1), number)
    np.testing.assert_array_equal(to_numpy(got), x * (x + 1))
    assert len(seen) == number


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("method", ["direct", "banded"])
@pytest.mark.parametrize("coefficients", [None, [0.8, 0.6, -0.4]])
def test_the_filter_and_its_gradients_do_not_depend_on_parts(
    on_one_cpu, monkeypatch, method, causal, coefficients
):
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(5, 2, 40, size)).astype("float32") for size in (4, 3)]
    if coefficients is not None:
        inputs.append(np.array(coefficients, "float32"))
    weight = ops.convert_to_tensor(rng.normal(size=(5, 2, 40, 3)).astype("float32"))

    def total(keys, values, alphas=None):
        filtered = spectral_filter(keys, values, 0.3, alphas, method, causal)
        return ops.sum(weight * filtered)

    def computed(min_numbers):
        monkeypatch.setattr(parts, "_MIN_NUMBERS", min_numbers)
        outputs = spectral_filter(*inputs[:2], 0.3, *inputs[2:], method=method, causal=causal)
        return [to_numpy(outputs), *gradients(total, inputs)]

    mapped = []
    monkeypatch.setattr(
        "keras_tnattn.ops.spectral_filter.map_parts",
        lambda *args: mapped.append(args[-1]) or parts.map_parts(*args),
    )
    whole = computed(10**9)
    assert set(mapped) == {1}
    mapped.clear()
    for one, other in zip(computed(0), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert set(mapped) == {10}
