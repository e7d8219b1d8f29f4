import numpy as np
import pytest

from keras_tnattn.checks import (
    check_int,
    check_numbers,
    check_rate,
    check_shapes,
    fitted_sizes,
    shape_of,
)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_of_numpy_become_python_ints(value):
    checked = check_int("units", value, at_least=3)
    assert checked == 3
    assert type(checked) is int


@pytest.mark.parametrize("value", [2, 3.0, np.float32(3), True, "3", None])
def test_what_is_no_integer_or_too_small_is_refused(value):
    with pytest.raises(ValueError, match=r"at least 3\. Received: units="):
        check_int("units", value, at_least=3)


def test_rates_are_in_zero_to_one():
    assert type(check_rate("dropout", np.float32(0.5))) is float
    assert check_rate("dropout", 0) == 0.0
    for value in (-0.1, 1, float("nan"), None, "a", True, [0.1]):
        with pytest.raises(ValueError, match="dropout="):
            check_rate("dropout", value)


@pytest.mark.parametrize(
    ("form", "shape", "sizes"),
    [
        ("B L I", (2, 5, 8), {"B": 2, "L": 5, "I": 8}),
        ("B L I", (2, None, 8), {"B": 2, "I": 8}),
        ("B L I", (2, 5), None),
        ("B L I", (2, 5, 8, 1), None),
        ("L L", (5, 5), {"L": 5}),
        ("L L", (5, 4), None),
        ("L L | B L L", (2, 5, 5), {"L": 5, "B": 2}),
        ("E 2", (7, 2), {"E": 7, "2": 2}),
        ("E 2", (7, 3), None),
        ("B? L", (1, 5), {"L": 5}),
        ("B? L", (3, 5), {"B": 3, "L": 5}),
        ("...", (), {"...": ()}),
        ("B L ...", (2, 5), {"B": 2, "L": 5, "...": ()}),
        ("B L ...", (2, 5, 3, 4), {"B": 2, "L": 5, "...": (3, 4)}),
        ("B L I ...", (2, 5), None),
        ("B ... I", (2, 8), {"B": 2, "...": (), "I": 8}),
        ("B ... I", (2, 3, 4, 8), {"B": 2, "...": (3, 4), "I": 8}),
        ("B ... I", (2, None, 4, 8), {"B": 2, "I": 8}),
        ("B ... I", (8,), None),
    ],
)
def test_the_sizes_that_a_shape_gives(form, shape, sizes):
    assert fitted_sizes(form, shape, {}) == sizes


def test_shapes_agree_with_one_another():
    forms = {"query": "B T d", "value": "B S e", "mask": "B? T? S?"}
    query, value = np.ones((2, 3, 8)), np.ones((2, 4, 6))
    for mask in (np.ones((2, 3, 4)), np.ones((1, 3, 4)), np.ones((2, 1, 1)), None, 3.0):
        check_shapes({"query": query, "value": value, "mask": mask}, forms, {})
    for mask in (np.ones((2, 4, 3)), np.ones((3, 3, 4)), np.ones((3, 4))):
        with pytest.raises(ValueError, match=r"^Expected mask \(B, T, S\), B=2, T=3, S=4\. Rec"):
            check_shapes({"query": query, "value": value, "mask": mask}, forms, {})
    with pytest.raises(ValueError, match=r"Expected query \(B, T, d\), d=7\. Received: .*8\)$"):
        check_shapes({"query": query}, forms, {"d": 7}, ". Usage")
    with pytest.raises(ValueError, match=r"Expected value .*B=2\. Received: .*\. Usage$"):
        check_shapes({"query": query, "value": value[:1]}, forms, {}, ". Usage")


def test_the_shape_of_what_has_none():
    class Unknown:
        @property
        def shape(self):
            raise ValueError("no rank")

    assert shape_of(Unknown()) is None
    assert shape_of([1, 2]) is None
    assert shape_of(np.float32(2)) == ()


def test_numbers_are_of_any_real_dtype():
    for dtype in ("bool", "uint8", "int64", "float16", "float64"):
        check_numbers({"inputs": np.ones(2, dtype), "mask": None})
    for dtype in ("complex64", "U3", "O"):
        with pytest.raises(TypeError, match=r"Expected numbers\. Received: mask of dtype"):
            check_numbers({"inputs": np.ones(2), "mask": np.ones(2).astype(dtype)})
