"""`compress` and `heal` read data in the same way."""

import itertools

import keras
import numpy as np
import pytest
from compressing import compress
from conformance import assert_same_arrays, to_numpy

from keras_small.asked.data import (
    CalibrationData,
    Data,
    as_arrays,
    as_data,
    inputs_and_labels,
    iterate,
)
from keras_small.asked.inputs import number_of_inputs
from keras_small.asked.renumbering import Renumbering
from keras_small.survey.running import are_equal, are_probabilities

RNG = np.random.default_rng(0)
A, B, Y = (RNG.normal(size=(24, 16)).astype("float32") for _ in range(3))


def one_input():
    return keras.Sequential([keras.Input((16,)), keras.layers.Dense(16)])


def two_inputs():
    inputs = [keras.Input((16,)), keras.Input((16,))]
    return keras.Model(inputs, keras.layers.Dense(16)(keras.layers.Concatenate()(inputs)))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(16)

    def call(self, inputs):
        return self.dense(inputs[0] + inputs[1])


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):  # never raises an IndexError
        return A[12 * (i % 2) :][:12], Y[12 * (i % 2) :][:12]


def test_number_of_inputs():
    assert number_of_inputs(one_input()) == 1
    assert number_of_inputs(two_inputs()) == 2
    model = Subclassed()
    assert number_of_inputs(model) is None
    model([A, B])
    assert number_of_inputs(model) == 2


NAMED = {"a": A, "b": B}


@pytest.mark.parametrize(
    ("data", "num_inputs", "inputs", "labels"),
    [
        (A, 1, A, None),
        ((A,), 1, A, None),
        ((A, Y), 1, A, Y),
        ((A, Y, B), 1, A, Y),  # as Keras yields inputs, labels and weights
        ([A], 1, [A], None),
        ([A, B], 2, [A, B], None),
        ((A, B), 2, (A, B), None),
        (((A, B), Y), 2, (A, B), Y),
        (([A, B], Y), 2, [A, B], Y),
        (NAMED, 2, NAMED, None),
        ((NAMED, Y), 2, NAMED, Y),
        ((NAMED, Y), 1, NAMED, Y),
        ((A, Y), None, A, Y),
        ([A, B], None, [A, B], None),
    ],
)
def test_the_number_of_inputs_tells_inputs_from_labels(data, num_inputs, inputs, labels):
    read = inputs_and_labels(data, num_inputs)
    keras.tree.assert_same_structure(read, (inputs, labels))
    for array, expected in zip(*map(keras.tree.flatten, (read, (inputs, labels))), strict=True):
        assert array is expected


@pytest.mark.parametrize(
    ("data", "num_inputs"), [([A, B], 1), ((A, B, Y), 2), ([(A, Y)], 1), ((A,) * 4, 1)]
)
def test_other_numbers_are_refused(data, num_inputs):
    with pytest.raises(ValueError, match="not as a list"):
        inputs_and_labels(data, num_inputs)


def test_new_ids_may_be_larger_than_the_dtype_of_the_old_ones():
    ids = np.array([[1, 255]], "uint8")
    assert Renumbering("words", np.arange(600)[::-1])(ids).tolist() == [[598, 344]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_probabilities_are_recognized(dtype):
    probabilities = keras.ops.softmax(keras.random.normal((4, 50), seed=0))
    rounded = to_numpy(keras.ops.cast(probabilities, dtype))
    assert are_probabilities(rounded)
    assert not are_probabilities((1.005 if dtype == "float32" else 1.1) * rounded)
    assert not are_probabilities([rounded, rounded])


def test_lists_from_an_iterable_are_inputs_and_labels():
    model = one_input()
    once = compress(model, 1.5, data=iter([(A, Y)]), formats="low_rank")
    same = compress(model, 1.5, data=iter([[A, Y]]), formats="low_rank")
    assert_same_arrays(once.model.get_weights(), same.model.get_weights())


def test_what_ends_heals_for_one_epoch_only():
    result = compress(one_input(), 1.5, formats="low_rank")
    weights = result.model.get_weights()
    message = "Received: a generator, which can be iterated over only once, and epochs=2"
    with pytest.raises(ValueError, match=message):
        result.heal(((A, Y) for _ in range(3)), epochs=2)
    assert_same_arrays(weights, result.model.get_weights())
    assert len(result.heal((A, Y) for _ in range(3))) == 1


class Endless:
    """Batches that never end, and again from the first one for each iteration."""

    def __iter__(self):
        for number in itertools.count():
            assert number < 100, "the batches are read without end"
            yield A, Y


def test_data_without_end_are_read_up_to_the_limit():
    report = compress(one_input(), 1.5, data=Endless(), formats="low_rank").report
    assert report.rows == 43 * 24  # the first batches with 1,024 rows or more


@pytest.mark.parametrize("data", ["abc", [np.float32(1.0)], range(3), iter([])])
def test_data_without_rows_are_refused(data):
    with pytest.raises(ValueError, match="Expected"):
        compress(one_input(), 1.5, data=data)


def test_outputs_are_equal_column_by_column():
    outputs = RNG.normal(size=(6, 4))
    assert are_equal(outputs, outputs + 1e-6)
    changed = outputs.copy()
    changed[2, 1] += 1
    assert not are_equal(outputs, changed)
    # Large entries of masked classes hide nothing, finite or not.
    for masked in (-1e9, -np.inf):
        outputs[:, [0, 2, 3]] = changed[:, [0, 2, 3]] = masked
        assert are_equal(outputs, outputs)
        assert not are_equal(outputs, changed)


def test_rounding_near_zero_and_padding_are_equal():
    outputs = RNG.normal(size=20_000)
    assert are_equal(outputs, outputs + 1e-6)
    padded = np.where(RNG.random((2000, 4)) < 0.6, 0.0, RNG.normal(size=(2000, 4)))
    assert are_equal(padded, padded + 1e-6)
    assert not are_equal(padded, padded + 0.1)
    assert are_equal(np.zeros((3, 4)), np.zeros((3, 4)))


def test_a_py_dataset_ends():
    assert len(list(iterate(Batches()))) == 2


@pytest.mark.parametrize("make", [list, tuple, lambda pair: (pair, Y), lambda pair: iter([pair])])
def test_two_inputs_are_healed_as_they_are_compressed(make):
    result = compress(two_inputs(), 1.5, data=make((A, B)), formats="low_rank")
    assert len(result.heal(make((A, B)))) == 1


def test_labels_that_do_not_count_have_any_structure():
    inputs = keras.Input((A.shape[1],))
    hidden = keras.layers.Dense(64)(inputs)
    model = keras.Model(inputs, {"p": keras.layers.Dense(8)(hidden), "q": hidden})
    result = compress(model, 1.5, data=A, formats="low_rank")
    assert len(result.heal((A, {"p": Y, "q": A}), learning_rate=1e-9)) in (0, 1)


def test_a_list_of_batches_is_refused_everywhere():
    with pytest.raises(ValueError, match="each of the 1 inputs"):
        compress(one_input(), 1.5, data=[A, B])
    result = compress(one_input(), 1.5, formats="low_rank")
    with pytest.raises(ValueError, match="each of the 1 inputs"):
        result.heal([A, B])
    with pytest.raises(ValueError, match="Received: 5"):
        result.heal(5)
    with pytest.raises(ValueError, match="Received: 5"):
        compress(one_input(), 1.5, data=5)


class Columns:
    """Iterating over a frame yields the names of its columns."""

    def __init__(self, array):
        self.array = array

    def __iter__(self):
        return iter("ab")


class Frame(Columns):
    def to_numpy(self):
        return self.array


class Sparse(Columns):
    def toarray(self):
        return self.array


class Foreign(Columns):
    def __array__(self, dtype=None, copy=None):
        return self.array


@pytest.mark.parametrize("kind", [Frame, Sparse, Foreign])
def test_data_of_other_libraries_are_converted(kind):
    rows = np.arange(6.0).reshape(3, 2)
    given = {"x": kind(rows)}, kind(rows[:, 0])
    inputs, labels = as_arrays(given)
    np.testing.assert_array_equal(inputs["x"], rows)
    np.testing.assert_array_equal(labels, rows[:, 0])
    read = CalibrationData(as_data(kind(rows)), 1)
    read.cut(3)
    np.testing.assert_array_equal(read.batches[0], rows)
    read = CalibrationData(as_data(iter([kind(rows)] * 2)), 1)
    read.cut(3)
    np.testing.assert_array_equal(read.batches[1], rows)


def test_data_that_have_to_be_converted_name_the_call(tmp_path):
    np.savez(tmp_path / "rows.npz", x=np.ones((3, 2)))
    with np.load(tmp_path / "rows.npz") as archive:
        with pytest.raises(ValueError, match=r"pass dict\(numpy.load\(path\)\). Received: a NpzF"):
            as_data(archive)
        assert as_data(dict(archive)).inputs["x"].shape == (3, 2)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with pytest.raises(ValueError, match=r"pass data.to_tensor\(\)"):
            as_data((tf.ragged.constant([[1], [2, 3]]), np.ones(2)))
        with pytest.raises(ValueError, match=r"tf.sparse.to_dense\(data\)"):
            as_data(tf.sparse.from_dense([[0, 1]]))


def test_rows_without_a_number_are_refused():
    with pytest.raises(ValueError, match=r"at least one number.*shape \(3, 0\)"):
        CalibrationData(Data(np.ones((3, 0), "int32")), 1)
