"""Search beside a slow and obvious one: a sentence at a time, no bound, all anew at each step."""

import inspect

import keras
import numpy as np
import pytest
from conformance import to_numpy
from keras import ops
from slow_cases import slow_but
from translator_runs import small_translator

from keras_tnattn.layers import PowerLawGraphAttention
from keras_tnattn.models import language_model, translator
from keras_tnattn.search.beam_search import BeamSearch

START, END, EXTRA = 2, 3, 4
SOURCES = [[2, 7, 5, 9, 3], [2, 3], [2, 4, 4, 8, 10, 6, 3]]
KINDS = {"plga": {}, "plga, causal metric": {"causal_metric": True}, "sdpa": {"attention": "sdpa"}}

# Of Keras' own attention, for the first token of a target.
pytestmark = pytest.mark.filterwarnings("ignore:(?s).*softmax over axis 3:UserWarning")


def make_model(kind, scale=1.0, end_bias=1.0, **options):
    """Vocabularies of 12 and 11; the end is as probable as it has to be to be reached at times."""
    model = small_translator(12, 11, **{**KINDS[kind], **options})
    logits = model.get_layer("logits")
    logits.kernel.assign(logits.kernel * scale)
    bias = np.zeros(11)
    bias[END], bias[0] = end_bias, -50  # padding is never trained to be probable
    logits.bias.assign(bias)
    return model


# The causal metric is another value of an option: only in the slow tests.
@pytest.fixture(scope="module", params=slow_but(["plga"], KINDS))
def naive(request):
    return Naive(make_model(request.param))


def padded(rows, width=0):
    ids = np.zeros((len(rows), max(width, *map(len, rows))), "int32")
    for row, values in zip(ids, rows, strict=True):
        row[: len(values)] = values
    return ids


class Naive:
    """The whole model, anew for each sentence and prefix."""

    def __init__(self, model):
        self.model, self.known = model, {}

    def log_probabilities(self, source, prefixes):
        """Of the next token, float64, for each of some prefixes of one length."""
        keys = [(*source, *prefix) for prefix in prefixes]
        if new := [p for key, p in zip(keys, prefixes, strict=True) if key not in self.known]:
            target = np.array(new, "int32")
            if keras.backend.backend() == "jax":  # which compiles each operation for each shape
                target = np.pad(target, ((0, 12 - len(target)), (0, 12 - target.shape[1])))
            inputs = {"source": np.tile(source, (len(target), 1)), "target": target}
            x = to_numpy(self.model(inputs, training=False))
            x = x[: len(new), len(new[0]) - 1].astype("float64")
            x -= x.max(-1, keepdims=True)
            x -= np.log(np.exp(x).sum(-1, keepdims=True))
            self.known |= {(*source, *p): logs for p, logs in zip(new, x, strict=True)}
        return [self.known[key] for key in keys]

    def search(self, source, beam_size, penalty=0.6):
        """`[(score, ids, finished)]`, best first, after all steps."""
        live, ended = [(0.0, [START])], []
        limit = len(source) + EXTRA

        def score(pair):
            return pair[0] / ((5 + len(pair[1])) / 6) ** penalty

        for step in range(limit):
            extended = []
            logs = self.log_probabilities(source, [ids for _, ids in live])
            for (total, ids), row in zip(live, logs, strict=True):
                for token in np.argsort(-row)[:beam_size]:
                    extended.append((total - row[token], [*ids, int(token)]))
            ended += [(score(pair), pair[1], True) for pair in extended if pair[1][-1] == END]
            others = [pair for pair in extended if pair[1][-1] != END]
            if step == limit - 1:
                ended += [(score(pair), pair[1], False) for pair in others]
            live = sorted(others)[:beam_size]
            if not live:
                break
        return sorted(ended)[:beam_size]


def forced(model, source, ids):
    """The score of ids by teacher forcing, and the most probable one after each."""
    inputs = {"source": np.array([source]), "target": ids[None, :-1]}
    logs = to_numpy(ops.log_softmax(model(inputs, training=False)))[0]
    total = -logs[np.arange(len(ids) - 1), ids[1:]].sum()
    return total / ((5 + len(ids)) / 6) ** 0.6, logs.argmax(-1)


def check(result, row, want):
    for rank, (score, ids, finished) in enumerate(want):
        got = result.ids[row, rank].tolist()
        assert got == ids + [0] * (len(got) - len(ids))
        assert result.scores[row, rank] == pytest.approx(score, rel=1e-4, abs=1e-4)
        assert result.finished[row, rank] == finished
    assert np.isinf(result.scores[row, len(want) :]).all()


# The peer runs uncompiled, which takes minutes on JAX.
@pytest.mark.parametrize("beam_size", slow_but([3], [1, 3, 10]))
def test_equals_the_exhaustive_search(naive, beam_size):
    result = BeamSearch(naive.model, beam_size, START, END, EXTRA)(padded(SOURCES))
    answers = [naive.search(source, beam_size) for source in SOURCES]
    for row, want in enumerate(answers):
        check(result, row, want)
    assert result.ids.shape[-1] == max(len(ids) for want in answers for _, ids, _ in want)
    if beam_size == 1:  # the most probable token, each time
        for source, ((_, want, _),) in zip(SOURCES, answers, strict=True):
            ids = [START]
            while ids[-1] != END and len(ids) <= len(source) + EXTRA:
                ids.append(int(naive.log_probabilities(source, [ids])[0].argmax()))
            assert ids == want


def test_a_batch_is_each_sentence_alone(naive):
    # Any order, any padding, any size of a batch, and in one graph.
    search = BeamSearch(naive.model, 3, START, END, EXTRA)
    want = search(padded(SOURCES))
    wide = search(padded(SOURCES[::-1], 13), batch_size=2)
    graph = [to_numpy(x) for x in search.search(ops.array(padded(SOURCES, 11)))]
    alone = [search(padded([source])) for source in SOURCES]
    length = want.ids.shape[-1]
    assert not graph[0][..., length:].any()
    for row in range(len(SOURCES)):
        for ids, scores, finished in (
            (wide.ids[-1 - row], wide.scores[-1 - row], wide.finished[-1 - row]),
            (graph[0][row][..., :length], graph[1][row], graph[2][row]),
            (alone[row].ids[0], alone[row].scores[0], alone[row].finished[0]),
        ):
            np.testing.assert_array_equal(padded(list(ids), length), want.ids[row])
            np.testing.assert_allclose(scores, want.scores[row], rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(finished, want.finished[row])


@pytest.mark.usefixtures("eagerly_once")
@pytest.mark.parametrize(
    ("end_bias", "penalty"),
    slow_but([(3.0, 0.6)], [(-3.0, 2.0), (0.0, 0.0), (0.0, 2.0), (2.0, 2.0), (3.0, 0.6)]),
)
def test_stopping_early_changes_nothing(end_bias, penalty):
    # From ends that are never worth it to ends at once; scores that favor short and long ones.
    naive = Naive(make_model("sdpa", scale=0.5, end_bias=end_bias, num_layers=1))
    result = BeamSearch(naive.model, 3, START, END, EXTRA, penalty)(padded(SOURCES))
    for row, source in enumerate(SOURCES):
        check(result, row, naive.search(source, 3, penalty))


@pytest.mark.usefixtures("eagerly_once")
def test_what_is_behind_at_first_may_win_at_the_limit():
    # With this penalty a score first rises with the length and then falls: the second best is
    # behind two ended ones for some steps, and ends up before them.
    model = make_model("sdpa", num_layers=1)
    probabilities = np.full(11, 0.05 / 9)
    probabilities[END], probabilities[5] = 0.5, 0.45
    model.get_layer("logits").kernel.assign(np.zeros(model.get_layer("logits").kernel.shape))
    model.get_layer("logits").bias.assign(np.log(probabilities))
    result = BeamSearch(model, 2, START, END, EXTRA, length_penalty=3.0)(padded(SOURCES))
    for row, source in enumerate(SOURCES):
        want = Naive(model).search(source, 2, penalty=3.0)
        check(result, row, want)
    assert result.ids.shape[-1] > 10


def test_sentences_that_are_done_are_not_searched_on():
    model = make_model("sdpa", end_bias=50.0)
    search = BeamSearch(model, 1, START, END, extra_tokens=500)
    sizes = []
    advance = search._advance.predict_on_batch
    search._advance.predict_on_batch = lambda state: sizes.append(len(state.done)) or advance(state)
    result = search(padded(SOURCES))
    assert result.ids.tolist() == [[[START, END]]] * 3
    # All end with the first step.
    assert sizes == []


@pytest.mark.usefixtures("eagerly_once")
def test_the_keys_and_values_that_are_kept_are_those_of_the_whole_prefix():
    models = [make_model("sdpa")]
    if keras.backend.backend() == "tensorflow":  # Keras' own attention fails on JAX with this
        attention = keras.layers.MultiHeadAttention(2, 4, value_dim=3)
        models.append(make_model("sdpa", attention=attention, num_layers=1))
    for model in models:
        cached, whole = (BeamSearch(model, 3, START, END, EXTRA) for _ in range(2))
        assert cached.steps.keeps_state
        whole.steps.keeps_state = False
        state = cached.start(ops.array(padded(SOURCES)))
        assert {"keys", "values"} == set(state.model_state[0]["self"]["tokens"])
        got, want = cached(padded(SOURCES)), whole(padded(SOURCES))
        np.testing.assert_array_equal(got.ids, want.ids)
        np.testing.assert_allclose(got.scores, want.scores, rtol=1e-4)


def test_a_start_is_called_once(monkeypatch):
    # Keras calls a model that is not built once more, and JAX compiles each of its operations.
    calls, start = [], BeamSearch.start

    def count(*args, **options):
        calls.append(1)
        return start(*args, **options)

    monkeypatch.setattr(BeamSearch, "start", count)
    BeamSearch(make_model("sdpa"), 1, START, END, EXTRA)(padded(SOURCES[:1]))
    assert calls == [1]


@pytest.mark.usefixtures("eagerly_once")
@pytest.mark.parametrize("option", [{"use_gate": True}, {"sliding_window": 2}])
def test_no_keys_are_kept_where_they_would_not_do(option):
    if not option.keys() & inspect.signature(keras.layers.MultiHeadAttention).parameters.keys():
        pytest.skip(f"this Keras has no {option}")
    attention = keras.layers.MultiHeadAttention(2, 4, **option)
    model = make_model("sdpa", end_bias=-20.0, attention=attention, num_layers=1)
    # Not padded: behind its window this attention takes the mean of the source, padding included.
    source = [2, 4, 4, 8, 10, 6, 5, 3]
    result = BeamSearch(model, 1, START, END, EXTRA)(padded([source]))
    ids = result.ids[0, 0]
    assert len(ids) == 1 + len(source) + EXTRA
    score, best = forced(model, source, ids)
    assert best.tolist() == ids[1:].tolist()
    assert abs(score - result.scores[0, 0]) < 1e-4


@pytest.mark.usefixtures("eagerly_once")
def test_a_causal_metric_decodes_as_it_was_trained():
    # Teacher forcing on what was found gives the very scores of the search; without, it does not.
    gaps = {}
    for kind in ("plga", "plga, causal metric"):
        model = make_model(kind)
        result = BeamSearch(model, 1, START, END, EXTRA)(padded(SOURCES))
        gaps[kind] = 0
        for row, source in enumerate(SOURCES):
            ids = result.ids[row, 0][result.ids[row, 0] != 0]
            score, _ = forced(model, source, ids)
            gaps[kind] = max(gaps[kind], abs(score - result.scores[row, 0]))
    assert gaps["plga, causal metric"] < 1e-4
    assert gaps["plga"] > 1e-3


@pytest.mark.usefixtures("eagerly_once")
@pytest.mark.slow
def test_without_an_end_every_sentence_takes_all_steps():
    model = make_model("sdpa", end_bias=9.0)  # which would end at once
    assert (BeamSearch(model, 2, START, END, EXTRA)(padded(SOURCES)).ids[..., 2:] == 0).any()
    result = BeamSearch(model, 2, START, None, EXTRA)(padded(SOURCES))
    assert not result.finished.any()
    taken = (result.ids != 0).sum(-1)
    assert taken.tolist() == [[1 + len(source) + EXTRA] * 2 for source in SOURCES]


@pytest.mark.usefixtures("eagerly_once")
def test_padding_before_a_token_loses_none():
    model = make_model("sdpa", num_layers=1)
    source = np.zeros((2, 18), "int32")
    source[0, [0, 3, 10]], source[1, :3] = [2, 7, 9], [2, 5, 3]
    search = BeamSearch(model, 2, START, END, EXTRA)
    result = search(source)
    want = [to_numpy(x) for x in search.search(ops.array(source))]
    np.testing.assert_array_equal(result.ids, want[0][..., : result.ids.shape[-1]])
    np.testing.assert_allclose(result.scores, want[1], rtol=1e-4)


@pytest.mark.slow
def test_scores_under_half_precision_are_close_to_those_of_single():
    for kind in ("plga", "sdpa"):
        scores = []
        for policy in ("float32", "mixed_bfloat16"):
            keras.config.set_dtype_policy(policy)
            model = make_model(kind, num_layers=1)
            result = BeamSearch(model, 2, START, END, EXTRA)(padded(SOURCES[:1]))
            assert result.scores.dtype == np.float32
            assert (result.ids[..., 0] == START).all()
            scores.append(result.scores)
        np.testing.assert_allclose(*scores, rtol=0.05)


def test_nothing_to_translate_and_only_padding(naive):
    search = BeamSearch(naive.model, 2, START, END, EXTRA)
    assert search(np.zeros((0, 4))).ids.shape[:2] == (0, 2)
    result = search(padded([[0, 0], *SOURCES[:1]]))
    assert np.isfinite(result.scores).all()
    check(result, 1, naive.search(SOURCES[0], 2))


def test_errors():
    model = make_model("sdpa")
    for name, values, expected in (
        ("beam_size", (0, -1, 12), "1 to 11.*"),
        ("beam_size", (2.5,), ""),
        ("start_id", (2.5,), ""),
        ("end_id", (2.5,), ""),
        ("start_id", (11,), "1 to 10.*"),
        ("end_id", (0,), "1 to 10.*"),
        ("extra_tokens", (0,), ""),
        ("length_penalty", (-2, float("nan"), float("inf")), ""),
    ):
        for value in values:
            with pytest.raises(ValueError, match=f"{expected}{name}={value}"):
                BeamSearch(model, **{name: value})
    with pytest.raises(ValueError, match="batch_size=0"):
        BeamSearch(model)(padded(SOURCES), batch_size=0)
    for value in (-1, 12, 2**32):
        with pytest.raises(ValueError, match=f"0 to 11.*source with {value}"):
            BeamSearch(model)(np.array([[2, value, 3]]))
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(11, name="logits")])
    for unfit in (other, keras.layers.Dense(11)):
        with pytest.raises(ValueError, match=r"models\.translator. Received: model=<"):
            BeamSearch(unfit)
    with pytest.raises(ValueError, match=r"source.shape=\(4,\)"):
        BeamSearch(model)(np.ones(4, "int32"))
    short = language_model(11, "sdpa", model_dim=8, num_heads=2, feedforward_dim=8, max_length=8)
    for prompt, message in (([[3] * 6], "at most 5 ids"), ([[0, 0]], "at least one id")):
        with pytest.raises(ValueError, match=f"Expected prompts of {message}"):
            BeamSearch(short, extra_tokens=3)(np.array(prompt))
    published = PowerLawGraphAttention(2, residual_units=1, residual_dim=4, padding_in_metric=True)
    model = translator(12, 11, published, model_dim=8, feedforward_dim=8)
    with pytest.raises(ValueError, match="padding_in_metric=True"):
        BeamSearch(model)


@pytest.mark.parametrize("kind", slow_but(["sdpa"], ["plga", "sdpa"]))
def test_a_search_uses_the_weights_that_the_model_has_now(kind):
    model = make_model(kind)
    search = BeamSearch(model, 2, START, END, EXTRA)
    sources = padded(SOURCES)
    before = search(sources)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape, scale=0.5) for w in model.get_weights()])
    after, fresh = search(sources), BeamSearch(model, 2, START, END, EXTRA)(sources)
    assert not np.allclose(after.scores, before.scores)
    np.testing.assert_array_equal(after.ids, fresh.ids)
    np.testing.assert_allclose(after.scores, fresh.scores, rtol=1e-5)
