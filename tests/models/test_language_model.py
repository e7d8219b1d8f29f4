"""Language models: causality, positions, caches, and what they refuse."""

import keras
import numpy as np
import pytest
from conformance import saved_and_loaded, to_numpy
from keras import ops
from slow_cases import slow_but

from keras_tnattn import layers
from keras_tnattn.models import LANGUAGE_MODELS, language_model
from keras_tnattn.ops.time_graph import Exponential, PowerLaw, Window
from keras_tnattn.search import BeamSearch, Generator

SIZES = {"model_dim": 8, "num_heads": 2, "feedforward_dim": 12, "num_layers": 2}
PLGA = {"residual_units": 1, "residual_dim": 4}
KINDS = {
    "plga": {**PLGA, "causal_metric": True},
    "plga, halves": {**PLGA, "causal_metric": True, "rotary": "halves"},
    "sdpa": {},
    "sdpa, sinusoidal": {"attention": "sdpa", "position_encoding": "sinusoidal"},
    "tsa": {},
    "tsa, order 3": {"attention": "tsa", "filter_order": 3, "time_graph": Window(3)},
    "tsa, power law": {"attention": "tsa", "time_graph": PowerLaw(1.0)},
    "rgtn": {},
    "rgtn, projected": {
        "attention": "rgtn",
        "propagation_rank": 3,
        "time_graph": Exponential(0.1, trainable=True),
    },
    "rgtn, window": {"attention": "rgtn", "time_graph": Window(2)},
    "tn": {"bond_dim": 3},
    "tn, open": {"attention": "tn", "bond_dim": 3, "boundary": "open", "normalize": False},
    "none": {},
    "ada": {},
}
FAST = ("plga", "sdpa")
KEEPING = [kind for kind in KINDS if kind != "ada"]
VARIANTS = [
    {"norm_first": True, "feedforward": "relu", "tie_logits": True},
    {"embedding_norm": True, "embedding": "low_rank", "embedding_tt_ranks": 3, "tie_logits": True},
]
PROMPTS = [[5, 3, 9, 4, 7], [6], [2, 2, 8]]


def make(kind, **options):
    options = {"attention": kind.split(",")[0], **SIZES, **KINDS[kind], **options}
    model = language_model(11, **options)
    rng = np.random.default_rng(1)
    for weight in model.weights:  # biases, too
        if "metric" not in weight.path:
            weight.assign_add(0.1 * rng.normal(size=weight.shape))
    return model


@pytest.mark.parametrize("kind", slow_but(FAST, KINDS))
def test_no_logit_depends_on_a_later_id_or_on_padding(kind):
    model = make(kind)
    ids = np.array([[5, 3, 9, 4, 7, 6]])
    want = to_numpy(model(ids))
    changed = ids.copy()
    changed[0, 4] = 2
    got = to_numpy(model(changed))
    np.testing.assert_allclose(got[:, :4], want[:, :4], rtol=1e-4, atol=1e-5)
    assert np.abs(got[:, 4:] - want[:, 4:]).max() > 1e-3
    padded = to_numpy(model(np.pad(ids, ((0, 0), (0, 2)))))
    np.testing.assert_allclose(padded[:, :6], want, rtol=1e-4, atol=1e-5)
    logits = to_numpy(model.compute_logits(model.run_decoders(ops.array(ids))))
    np.testing.assert_allclose(logits, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", slow_but(FAST, KEEPING))
def test_the_state_gives_the_logits_of_the_whole_sequence(kind):
    model = make(kind)
    cached, whole = (Generator(model, 6, key_value_cache=keep) for keep in (True, False))
    assert cached.steps.keeps_state
    got, want = cached(PROMPTS), whole(PROMPTS)
    np.testing.assert_array_equal(got.ids, want.ids)
    # The logits of each prompt and what was generated, by the model alone.
    steps = cached.steps
    inputs = steps.pack([np.array(prompt) for prompt in PROMPTS])
    start = steps.start(ops.array(inputs, "int32"))
    position, state = inputs.shape[1], steps.with_room(start.state, 2)
    ids = np.concatenate([inputs, got.ids[:, :2]], axis=1)
    ids[:, -1] = 0
    first, state = steps.step(ops.array(ids), ops.convert_to_tensor(position), {}, state)
    ids[:, -1] = got.ids[:, 1]
    second, _ = steps.step(ops.array(ids), ops.convert_to_tensor(position + 1), {}, state)
    for row, prompt in enumerate(PROMPTS):
        alone = np.array([prompt + got.ids[row, :2].tolist()])
        want = to_numpy(model(alone))[0, -3:]
        logits = np.stack([to_numpy(x)[row] for x in (start.logits, first, second)])
        np.testing.assert_allclose(logits, want, rtol=1e-4, atol=2e-5)


def test_a_model_without_a_state_generates_from_the_whole_sequence():
    model = make("ada")
    search = Generator(model, 3)
    assert not search.steps.keeps_state
    # Keras warns about a softmax over a single id.
    prompts = [prompt for prompt in PROMPTS if len(prompt) > 1]
    for prompt, ids in zip(prompts, search(prompts).ids, strict=True):
        for i, token in enumerate(ids):
            logits = to_numpy(model(np.array([[*prompt, *ids[:i]]])))[0, -1]
            assert logits[1:].argmax() + 1 == token


@pytest.mark.parametrize("options", slow_but(VARIANTS[:1], VARIANTS))
def test_variants_train_and_come_back(options, tmp_path):
    model = make("sdpa", num_layers=1, **options)
    assert (model.logits is None) == options["tie_logits"]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile("adam", loss)
    ids = np.array([[5, 3, 9, 4], [6, 2, 0, 0]])
    before = [w.copy() for w in model.get_weights()]
    model.fit(ids[:, :-1], ids[:, 1:], epochs=2, verbose=0)
    moved = [np.abs(a - b).max() for a, b in zip(before, model.get_weights(), strict=True)]
    assert min(moved) > 0
    want = to_numpy(model(ids))
    saved_and_loaded(model, ids, tmp_path)
    x = to_numpy(model.compute_logits(model.run_decoders(ops.array(ids))))
    real = ids != 0
    np.testing.assert_allclose(x[real], want[real], rtol=1e-4, atol=1e-5)


def test_tied_logits_are_products_with_the_embedding():
    model = make("sdpa", tie_logits=True)
    ids = ops.array([[5, 3, 9]])
    x = to_numpy(model.run_decoders(ids))
    want = x @ to_numpy(model.embedding.embeddings).T
    np.testing.assert_allclose(to_numpy(model(ids)), want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_beams_continue_prompts():
    model = make("rgtn")
    beams = BeamSearch(model, 3, end_id=None, extra_tokens=4, length_penalty=0.0)
    prompts = np.array([[5, 3, 9, 4, 7], [6, 0, 0, 0, 0]])
    result = beams(prompts)
    greedy = BeamSearch(model, 1, end_id=None, extra_tokens=4)(prompts)
    assert result.ids.shape == (2, 3, 4)

    def cost(prompt, ids):
        logs = to_numpy(ops.log_softmax(model(np.array([[*prompt, *ids]]))))
        return -logs[0, len(prompt) - 1 : -1][np.arange(len(ids)), ids].sum()

    for row, prompt in enumerate(([5, 3, 9, 4, 7], [6])):
        for ids, score in zip(result.ids[row], result.scores[row], strict=True):
            assert cost(prompt, ids) == pytest.approx(score, rel=1e-4)
        assert result.scores[row, 0] <= cost(prompt, greedy.ids[row, 0]) + 1e-5


def test_the_published_model_has_the_published_size():
    options = {**LANGUAGE_MODELS["pldr-v510"], "num_layers": 1}
    model = language_model(50, **options)
    d, f, k, h = 896, 2389, 64, 14
    block = 4 * (d * d + d) + (2 * (d * f + f) + f * d + d) + 4 * d
    net = 2 * k + 8 * (2 * (2 * (k * 170 + 170) + 170 * k + k) + 2 * k) + 5 * h * k * k
    assert model.count_params() == 50 * d + 2 * d + block + net + 50 * d + 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "lstm"}, "attention='lstm'"),
        ({"attention": "tsa", "position_encoding": "rotary"}, "position_encoding='rotary'"),
        ({"position_encoding": "learned"}, "position_encoding='learned'"),
        ({"attention": layers.GraphTensorNetwork()}, "self_attention=<GraphTensorNetwork"),
        (
            {"attention": layers.GraphTensorNetwork(receive_from="earlier"), "damping": 0.5},
            "no further options",
        ),
        ({"num_heads": 3}, "num_heads=3, model_dim=128"),
        ({"feedforward": "conv"}, "feedforward='conv'"),
        ({"num_heads": 128}, "rotary='neighbors', key_dim=1"),
        ({"rotary": "pairs"}, "rotary='pairs'"),
        ({"max_length": 0}, "max_length=0"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        language_model(11, **{"attention": "sdpa", **options})


def test_caches_that_do_not_suit_are_refused():
    with pytest.raises(ValueError, match="key_value_cache=True with <MultiHeadAdditive"):
        Generator(make("ada"), key_value_cache=True)
    with pytest.raises(ValueError, match="metric_cache=True with <MetricAttention"):
        Generator(make("sdpa"), metric_cache=True)
