import base64
import json
import math

import ml_dtypes
import numpy as np
import pytest

from keras_tnattn_serving import answers
from keras_tnattn_serving.errors import RequestError

MANY = 10**9
RANDOM = np.random.default_rng(0)


def written(array, base64_strings=False):
    writer = answers.JsonWriter(MANY)
    writer.array(array, base64_strings)
    return writer.getvalue().decode()


@pytest.mark.parametrize(
    "shape", [(), (0,), (3, 0), (2, 3), (70_000,), (40_000, 2), (3, 40_000), (2, 2, 40_000)]
)
def test_arrays_of_any_size_come_back_exactly(shape):
    array = RANDOM.normal(size=shape).astype("float32")
    read = json.loads(written(array))
    assert np.shape(read) == shape
    np.testing.assert_array_equal(np.float32(read), array)


def test_floats_have_the_fewest_digits_that_restore_them():
    assert json.loads(written(np.float32([0.1, 1e-7, 3e38]))) == [0.1, 1e-7, 3e38]
    assert json.loads(written(np.array([0.1, 1 / 3]))) == [0.1, 1 / 3]
    halves = np.array([0.5, 1.5], "float16")
    assert written(halves) == written(halves.astype(ml_dtypes.bfloat16)) == "[0.5,1.5]"
    assert written(np.array([0.1], "float16")) == "[0.099975586]"  # as of float32


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "uint64", "bool"])
def test_integers_and_truth_values(dtype):
    array = np.array([[0, 1], [1, 0]], dtype)
    assert json.loads(written(array)) == array.tolist()


@pytest.mark.parametrize("size", [6, 40_000])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numbers_that_are_not_finite_keep_their_places(size, dtype):
    array = np.arange(size, dtype=dtype) % 7
    array[[1, 3]], array[2], array[-1] = np.nan, np.inf, -np.inf
    text = written(array.reshape(2, -1))
    assert text.startswith("[[0.0,NaN,")
    assert text.endswith(",-Infinity]]")
    np.testing.assert_array_equal(np.array(json.loads(text), dtype).ravel(), array)


def test_strings_are_text_or_base64():
    data = np.array([["añ".encode(), b""], [b"\xff", b'"']], object)
    assert json.loads(written(data)) == [["añ", ""], ["\ufffd", '"']]
    coded = json.loads(written(data, base64_strings=True))
    assert [[base64.b64decode(cell["b64"]) for cell in row] for row in coded] == data.tolist()


def test_rows_and_columns():
    one = {"y": np.float32([[1], [2]])}
    two = {**one, "x_bytes": np.array([b"q", b"r"], object)}
    assert json.loads(answers.rows(one, MANY)) == {"predictions": [[1.0], [2.0]]}
    assert json.loads(answers.columns(one, MANY)) == {"outputs": [[1.0], [2.0]]}
    q, r = {"b64": "cQ=="}, {"b64": "cg=="}
    assert json.loads(answers.rows(two, MANY)) == {
        "predictions": [{"y": [1.0], "x_bytes": q}, {"y": [2.0], "x_bytes": r}]
    }
    assert json.loads(answers.columns(two, MANY)) == {
        "outputs": {"y": [[1.0], [2.0]], "x_bytes": [q, r]}
    }


@pytest.mark.parametrize("write", [answers.rows, answers.columns])
@pytest.mark.parametrize(
    "outputs",
    [
        {"y": RANDOM.normal(size=(2, 500)).astype("float32")},
        {"y": RANDOM.normal(size=(2, 9)), "text": np.array([b"x" * 300, b"y" * 300], object)},
    ],
)
def test_an_answer_is_refused_above_its_limit_and_not_below(write, outputs):
    size = len(write(outputs, MANY))
    assert len(write(outputs, size)) == size
    for limit in (size - 1, size // 2, 1):
        with pytest.raises(RequestError, match=rf"at most {limit} \(--max-answer\)") as error:
            write(outputs, limit)
        assert error.value.status == 413


def test_what_cannot_fit_is_refused_before_it_is_written():
    zeros = np.broadcast_to(np.float32(0), (2**20, 2**20))  # 4 TB as an array of its own
    with pytest.raises(RequestError, match="2199023255552 bytes or more"):
        answers.columns({"y": zeros}, 2**26)
    assert math.prod(zeros.shape) == 2**40
    texts = np.array([b"x" * 300, b"y" * 300], object)  # with quotation marks
    with pytest.raises(RequestError, match="an answer of 604 bytes or more"):
        answers.columns({"y": texts}, 600)
