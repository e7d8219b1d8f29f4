"""Promises about answers: the count of changes, its bound, and the model that they return."""

import math
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from conformance import to_numpy
from scipy import stats
from scipy.special import rel_entr

from keras_small import Data, Promise, compress, logits_divergence
from keras_small.goals import promise as promising
from keras_small.goals.counting import (
    CountedRows,
    Flips,
    halves,
    mean_bound,
    relative_change,
    top_classes,
    upper_bound,
)
from keras_small.survey import running

ROWS = np.random.default_rng(0).normal(size=(400, 24)).astype("float32")
OPTIONS = {"bits": 32, "formats": ("low_rank",), "verbose": 0}


def classifier(spectrum):
    """A linear classifier of 24 classes whose kernel has some singular values."""
    keras.utils.set_random_seed(0)
    layer = keras.layers.Dense(24, use_bias=False, kernel_initializer="orthogonal", name="out")
    model = keras.Sequential([keras.Input((24,)), layer])
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(24, 24)))[0]
    layer.set_weights([to_numpy(layer.kernel) * spectrum @ rotation])
    return model


def flips(before, after):
    return (top_classes(after) != top_classes(before)).any(axis=1)


def classes_of(model, rows):
    return to_numpy(model(rows)).argmax(axis=1)


@pytest.mark.parametrize("rows", [1, 2, 299, 1000, 100_000])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_the_bound_is_that_of_scipy(rows, confidence):
    for count in sorted({0, 1, rows // 100, rows // 3, rows - 1, rows}):
        if count <= rows:
            test = stats.binomtest(count, rows, alternative="less")
            expected = test.proportion_ci(confidence, method="exact").high
            assert upper_bound(count, rows, confidence) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("total", "rows"), [(0.0, 50), (2.7, 100), (31.4, 1000), (400.0, 400)])
def test_the_bound_of_a_mean_is_the_largest_that_stays_possible(total, rows):
    mean, shares = total / rows, np.linspace(total / rows, 1, 20_001)[1:-1]
    entropy = rel_entr(mean, shares) + rel_entr(1 - mean, 1 - shares)
    binomial = math.e * stats.binom.cdf(math.ceil(total), rows, shares)
    possible = shares[np.minimum(np.exp(-rows * entropy), binomial) > 0.05]
    expected = possible.max(initial=mean)
    assert mean_bound(total, rows, 0.95) == pytest.approx(expected, abs=2 / 20_000)


def test_the_bound_of_a_mean_is_rarely_below_the_mean():
    """2,000 draws of 300 changes, most of them small."""
    totals = np.random.default_rng(0).beta(0.3, 6, size=(2000, 300)).sum(axis=1)
    bounds = np.array([mean_bound(total, 300, 0.9) for total in totals])
    assert np.mean(bounds < 0.3 / 6.3) <= 0.1
    assert np.mean(bounds) < 2 * 0.3 / 6.3


def test_relative_changes_are_of_rows():
    before = [np.array([[3.0, 0], [0, 0], [0, 0], [1, 1]]), np.array([[4.0], [0], [0], [np.nan]])]
    after = [before[0] + [[0, 3], [0, 0], [1, 0], [0, 0]], before[1]]
    np.testing.assert_allclose(relative_change(before, after), [0.6, 0, 1, 1])


@pytest.mark.parametrize("share", [0.01, 0.2])
@pytest.mark.parametrize("name", ["max_flips", "max_change"])
def test_the_minimum_of_rows_is_just_enough(name, share):
    goal = Promise(**{name: share}, confidence=0.9)
    rows = goal.minimum_rows
    enough, too_few = (goal.counted.count(0, count, 0.9) for count in (rows, rows - 1))
    assert enough.bound <= share < too_few.bound


def test_rows_are_split_once_at_random():
    first, second = halves({"a": np.arange(101), "b": -np.arange(101)})
    assert len(first["a"]) == len(second["a"]) == 50
    assert len({*first["a"], *second["a"]}) == 100
    assert 30 < np.mean(first["a"]) < 70  # sorted rows are in both
    np.testing.assert_array_equal(second["a"], -second["b"])


def test_a_row_counts_once_wherever_it_differs():
    nan, low = np.nan, -np.inf
    scores = np.array([[[1, 2, low], [3, 0, 0]], [[0, 0, nan], [0, 1, 0]]])
    chances = np.array([[0.4], [0.6]])
    np.testing.assert_array_equal(top_classes([scores, chances]), [[1, 0, 0], [-1, 1, 1]])
    counted = CountedRows(lambda batch: [batch, batch], np.eye(3, dtype="float32"), 2, Flips())
    # The last row differs in both outputs, the one before in the second one.
    first, second = np.eye(3)[[0, 1, 0]], np.eye(3)[[0, 2, 0]]
    parts = iter([[first[:2], second[:2]], [first[2:], second[2:]]])
    assert counted.total(lambda batch: next(parts)) == 2
    with pytest.raises(ValueError, match=r"shapes.*\(2, 2\)\]. Received: \[\(2, 1\)\]"):
        counted.total(lambda batch: [batch])


def test_the_report_tells_what_was_counted():
    model = classifier(0.5 ** np.arange(24))
    result = compress(model, Promise(max_flips=0.05, confidence=0.9), data=ROWS, **OPTIONS)
    promise = result.report.promise
    planning, held_back = halves(ROWS)
    count = int(np.sum(classes_of(model, held_back) != classes_of(result.model, held_back)))
    assert result.report.ratio > 1.2
    assert 0 < count == promise.count.flips
    assert promise.count.rows == promise.planning_rows == len(planning) == 200
    assert promise.count.bound == pytest.approx(stats.beta.ppf(0.9, count + 1, 200 - count))
    assert promise.count.bound <= 0.05
    text = str(result.report)
    counted = f"{count} of 200 held-out rows did; bound {100 * promise.count.bound:.3g} %"
    assert f"With 90 % confidence at most 5 % of predictions change ({counted}). " in text
    assert '"limit": 0.05' in result.report.to_json()
    # Anything else can be counted on the same rows.
    assert result.count_again(lambda x: [to_numpy(result.model(x))]) == promise.count
    assert result.count_again(lambda x: -to_numpy(model(x))).flips == 200
    assert result.heal(ROWS, loss=logits_divergence)
    assert result.report.promise is None
    assert "Healing ended the promise" in str(result.report)
    with pytest.raises(ValueError, match="healed_epochs=1"):
        result.count_again(lambda x: [])


def test_a_mean_change_is_promised():
    model = classifier(0.5 ** np.arange(24))
    result = compress(model, Promise(max_change=0.1), data=ROWS, **OPTIONS)
    _, held_back = halves(ROWS)
    before, after = to_numpy(model(held_back)), to_numpy(result.model(held_back))
    changes = np.linalg.norm(after - before, axis=1) / np.linalg.norm(before, axis=1)
    promise = result.report.promise
    assert result.report.ratio > 1.2
    assert 0 < promise.count.mean == pytest.approx(changes.mean(), rel=1e-4)
    assert changes.mean() < promise.count.bound <= 0.1
    measured = f"200 held-out rows did by {promise.count.mean:.3g}; "
    limit = "With 95 % confidence outputs change by at most 0.1 on average"
    assert f"{limit} ({measured}bound {promise.count.bound:.3g})" in str(promise)
    assert result.count_again(lambda x: [to_numpy(model(x))]).mean == 0
    # Flips as changes have a wider bound than by max_flips.
    chosen = [
        compress(model, data=ROWS, **OPTIONS, **goal).report.ratio
        for goal in (
            {"goal": Promise(max_flips=0.1)},
            {"goal": Promise(max_change=0.1, change=flips)},
        )
    ]
    assert 1 < chosen[1] <= chosen[0]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="writes files on TensorFlow")
@pytest.mark.filterwarnings("ignore")  # of converters
def test_rows_held_back_are_counted_again_in_a_runtime(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    model, data = classifier(0.5 ** np.arange(24)), Data(ROWS, batch_size=200)
    result = compress(model, Promise(max_flips=0.05), data=data, **OPTIONS)
    result.export(tmp_path / "model.onnx")
    told = f"model.onnx: {result.report.promise.count}."
    assert told in capsys.readouterr().out.splitlines()
    assert told in result.report.notes
    wrong = np.zeros((200, 24), "float32")
    monkeypatch.setattr("keras_small.runtimes.file_outputs", lambda path: lambda inputs: [wrong])
    result.export(tmp_path / "wrong.onnx")
    assert result.report.notes[-1].endswith("% of all do; this breaks the promise.")


def test_without_a_smaller_model_that_keeps_it_the_original_returns():
    model = classifier(np.ones(24))  # no rank is enough
    result = compress(model, Promise(max_flips=0.02), data=ROWS, **OPTIONS)
    assert result.model is model
    assert [row.reason for row in result.report.layers] == [
        "the smallest model within max_flips keeps it"
    ]
    assert "no smaller one changes so little on the rows to plan with" in str(result.report)
    assert result.report.promise.count.flips == 0


def test_a_metric_is_measured_once_for_each_model():
    model = classifier(0.5 ** np.arange(24))
    measured = []

    def metric(measured_model):
        measured.append(measured_model)
        return 0.25 * len(measured)

    result = compress(model, Promise(max_flips=0.05, metric=metric), data=ROWS, **OPTIONS)
    assert measured == [model, result.model]
    assert (result.report.metric_before, result.report.metric_after) == (0.25, 0.5)


def test_a_promise_plans_with_one_half_in_batches_of_the_given_size(monkeypatch):
    sizes = []
    run = running.outputs_of

    def outputs_of(model, inputs):
        sizes.append(len(inputs))
        return run(model, inputs)

    monkeypatch.setattr(promising, "outputs_of", outputs_of)
    model = classifier(0.5 ** np.arange(24))
    data = Data(ROWS, batch_size=50)
    report = compress(model, Promise(max_flips=0.05), data=data, **OPTIONS).report
    assert set(sizes) == {50}
    assert (report.rows, report.promise.planning_rows) == (200, 200)


def test_rows_held_back_decide(monkeypatch):
    """They are others here than those to plan with, and refuse what these choose."""
    model = classifier(0.5 ** np.arange(24))
    held_back = np.random.default_rng(2).normal(size=(200, 24)).astype("float32")
    _, _, directions = np.linalg.svd(to_numpy(model.layers[0].kernel).T)
    held_back = (held_back[:, 12:] @ directions[12:]).astype("float32")  # what was cut off
    monkeypatch.setattr(promising, "halves", lambda inputs: (inputs[:200], held_back))
    result = compress(model, Promise(max_flips=0.05), data=ROWS, **OPTIONS)
    assert result.model is model
    text = str(result.report)
    assert "times smaller, was refused: " in text
    assert "no smaller one changes so little on the rows held back" in text


@pytest.mark.parametrize("shares", [[0.0305] * 8, [0.002, 0.025, 0.035, 0.04, 0.05], [0.031]])
def test_a_model_that_breaks_the_promise_is_rare(shares, monkeypatch):
    """1,000 draws of the rows held back, for candidates of known shares of flips."""
    rng = np.random.default_rng(0)
    rows = SimpleNamespace(rows=300, total=lambda share: rng.binomial(300, share))
    goal = Promise(max_flips=0.03)
    promised = object.__new__(promising.PromisedRows)
    vars(promised).update(goal=goal, planning=rows, held_back=rows)
    monkeypatch.setattr(promising, "_predictor", lambda share: share)
    monkeypatch.setattr(Promise, "choices_by_change", lambda *arguments: shares)
    builder = SimpleNamespace(finished=lambda share: share, unchanged=lambda: 0.0)
    builder.without_metric = lambda: builder
    search = SimpleNamespace(
        builder=builder,
        prepared=promised,
        plan=SimpleNamespace(options=None),
        factor=lambda share: 1,
        unchanged=lambda: 0.0,
    )
    returned = [goal.choose(search).assembly for _ in range(1000)]
    broken = np.mean(np.array(returned) > 0.03)
    assert broken <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 1000)
    if len(shares) == 5:  # the safest one passes nearly always
        assert np.mean(np.array(returned) > 0) > 0.95


def test_candidates_are_ordered_from_the_safest():
    counts = {8: 60, 2.8: 9, 1.7: 4, 2.2: 5, 2.5: 4, 2.7: 12, 2.6: 7}

    def smallest_accepted(accepts):
        accepted = {factor for factor in counts if accepts(factor)}
        # By Clopper and Pearson's bound: 5 of 500 are within 2.5 %, and so are 6.
        assert accepted == {1.7, 2.2, 2.5}

    plan = SimpleNamespace(size=lambda factor: 1 / factor)
    search = SimpleNamespace(
        plan=plan, factor=lambda factor: factor, smallest_accepted=smallest_accepted
    )
    found = Promise(max_flips=0.025).choices_by_change(search, counts.get, 500)
    assert found == [1.7, 2.5, 2.6, 2.8]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "598 rows of data: 299 to count.*confidence=0.95.*400 rows"),
        (
            {"goal": Promise(max_flips=0.1, confidence=0.99), "data": ROWS[:87]},
            "88 rows.*44 to count.*87 rows",
        ),
        ({"data": None}, "max_flips=0.01, data=None. Pass rows"),
        ({"data": iter([ROWS])}, "as arrays.*data=list_iterator"),
        ({"goal": Promise(max_flips=0.1), "data": ROWS[:, :3]}, "do not fit"),
        ({"data": Data(ROWS, kept_ids=2)}, "kept_ids=2, max_flips=0.01"),
        (
            {"goal": Promise(max_change=0.1), "data": Data(ROWS, kept_ids=2)},
            "kept_ids=2, max_change=0.1",
        ),
        (
            {"goal": Promise(max_change=0.1, change=lambda a, b: [2])},
            "Expected a change in.*2.0",
        ),
    ],
)
def test_bad_input_is_a_clear_error(options, match):
    options = {"goal": Promise(max_flips=0.01), "data": ROWS, **options}
    with pytest.raises(ValueError, match=match):
        compress(classifier(np.ones(24)), **options)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({}, "max_flips=None, max_change=None"),
        ({"confidence": 0.9}, "either max_flips or max_change"),
        ({"max_flips": 0.1, "max_change": 0.2}, "max_flips=0.1, max_change=0.2"),
        ({"max_flips": 0.0}, "max_flips=0.0"),
        ({"max_flips": "1%"}, "max_flips='1%'"),
        ({"max_change": 1}, "max_change=1"),
        ({"max_flips": 0.1, "confidence": 1.0}, "confidence=1.0"),
        ({"max_flips": 0.1, "confidence": "high"}, "confidence='high'"),
        ({"max_flips": 0.1, "change": flips}, "change with max_change"),
        ({"max_change": 0.1, "change": 3}, "change=3"),
        ({"max_change": 0.1, "metric": 3}, "metric=3"),
    ],
)
def test_promises_check_their_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        Promise(**arguments)


def test_models_without_classes_are_refused():
    layers = keras.Input((24,)), keras.layers.Dense(1)
    with pytest.raises(ValueError, match=r"classifier.*shape \(\d+, 1\) and dtype float32"):
        compress(keras.Sequential(layers), Promise(max_flips=0.1), data=ROWS)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="others look up some row")
def test_wrong_ids_are_named_in_whichever_row_they_are():
    inputs = keras.Input((2,), dtype="int32")
    pooled = keras.layers.GlobalAveragePooling1D()(
        keras.layers.Embedding(9, 4, name="table")(inputs)
    )
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(pooled))
    rows = np.zeros((400, 2), "int32")
    rows[-1] = 9
    with pytest.raises(ValueError, match=r"Expected ids from 0 to 8 for table\. Received: .* to 9"):
        compress(model, Promise(max_flips=0.05), data=rows, verbose=0)


@pytest.mark.parametrize("kind", [list, tuple])
def test_batches_are_told_from_too_few_rows(kind):
    class Outer(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(4)

        def call(self, inputs):
            return self.dense(inputs)

    batches = kind(ROWS.reshape(10, 40, 24))
    model = keras.Sequential([keras.Input((24,)), Outer()])
    with pytest.raises(ValueError, match="not as a list or a tuple"):
        compress(model, Promise(max_flips=0.05), data=batches, **OPTIONS)
