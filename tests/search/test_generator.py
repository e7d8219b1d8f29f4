"""Generation beside slow and obvious choices, made outside of the loop."""

import keras
import numpy as np
import pytest
from conformance import to_numpy
from keras import ops
from slow_cases import slow_but

from keras_tnattn.models import language_model
from keras_tnattn.search import Generator
from keras_tnattn.search.filters import draw, penalize

PROMPTS = [[5, 3, 9, 4, 7], [6], [2, 2, 8]]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1)
    model = language_model(
        11, "sdpa", model_dim=8, num_heads=2, feedforward_dim=8, num_layers=1, max_length=32
    )
    model.logits.kernel.assign(4 * to_numpy(model.logits.kernel))
    return model


def logits_after(model, ids):
    # Of one length, because JAX compiles each operation for each shape.
    padded = np.pad(ids, (0, 25 - len(ids)))[None]
    return to_numpy(model(padded))[0, len(ids) - 1].astype("float64")


def choose(logits, u, temperature, top_k=None, top_p=None, min_p=None):
    """An id by the definitions, in float64."""
    logits = logits.copy()
    logits[0] = -np.inf
    p = np.exp((logits - logits.max()) / temperature)
    order = np.argsort(-p, kind="stable")[:top_k]
    p = p[order] / p[order].sum()
    keep = np.ones(len(p), bool)
    if top_p is not None:
        keep &= np.cumsum(p) - p < top_p
    if min_p is not None:
        keep &= p >= min_p * p[0]
    p = np.where(keep, p, 0)
    return order[np.searchsorted(np.cumsum(p), u * p.sum(), side="right")]


OPTIONS = [
    {"temperature": 1.5, "top_k": 4, "top_p": 0.8},
    {"temperature": 0.7},
    {"temperature": 2.0, "min_p": 0.2},
]


@pytest.mark.usefixtures("eagerly_once")
@pytest.mark.parametrize("options", slow_but(OPTIONS[:1], OPTIONS))
def test_samples_are_those_of_the_definitions(model, options):
    search = Generator(model, 6, seed=3, **options)
    got = search(PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        noise = np.random.default_rng([3, row]).random(6).astype("float32")
        ids = list(prompt)
        for u in noise:
            ids.append(int(choose(logits_after(model, ids), u, **options)))
        assert got.ids[row].tolist() == ids[len(prompt) :]
    np.testing.assert_array_equal(Generator(model, 6, seed=3, **options)(PROMPTS, 1).ids, got.ids)
    assert list(search.stream(PROMPTS[0])) == got.ids[0].tolist()
    other = Generator(model, 6, seed=4, **options)(PROMPTS).ids
    assert (other != got.ids).any()


def test_the_share_of_each_id_is_its_probability():
    logits = np.log(np.array([0.5, 0.2, 0.2, 0.1], "float32"))
    noise = ((np.arange(1000) + 0.5) / 1000).astype("float32")
    many = ops.tile(ops.array(logits)[None], (1000, 1))
    for options, want in (
        ({}, [500, 200, 200, 100]),
        ({"top_k": 1}, [1000, 0, 0, 0]),
        ({"top_p": 0.6}, [714, 286, 0, 0]),
        ({"min_p": 0.3}, [556, 222, 222, 0]),
        ({"top_p": 1.0}, [500, 200, 200, 100]),
    ):
        ids = to_numpy(draw(many, ops.array(noise), **options))
        counts = np.bincount(ids, minlength=4)
        assert np.abs(counts - want).max() <= 1, options


def test_repetition_is_penalized(model):
    got = Generator(model, 5, repetition_penalty=1.8)(PROMPTS).ids
    for row, prompt in enumerate(PROMPTS):
        ids = list(prompt)
        for token in got[row]:
            logits = logits_after(model, ids)
            used = np.isin(np.arange(11), ids)
            want = np.where(used, np.where(logits > 0, logits / 1.8, logits * 1.8), logits)
            both = penalize(ops.array(logits[None], "float32"), ops.array(used[None]), 1.8)
            np.testing.assert_allclose(to_numpy(both)[0], want, rtol=1e-5)
            assert want[1:].argmax() + 1 == token
            ids.append(int(token))


@pytest.mark.usefixtures("eagerly_once")
def test_stop_sequences_end_a_text_where_they_are_complete(model):
    free = Generator(model, 20, temperature=1.0)(PROMPTS)
    assert not free.finished.any()
    stop = free.ids[0, 3:5].tolist()
    stopped = Generator(model, 20, temperature=1.0, stop=[stop, [free.ids[2, 0]]])(PROMPTS)
    first = next(i for i in range(1, 20) if free.ids[0, i - 1 : i + 1].tolist() == stop)
    if free.ids[2, 0] in free.ids[0, : first + 1]:
        first = free.ids[0].tolist().index(free.ids[2, 0])
    assert stopped.finished[0]
    assert stopped.ids[0].tolist() == free.ids[0, : first + 1].tolist() + [0] * (
        stopped.ids.shape[1] - first - 1
    )
    assert stopped.ids[2, 0] == free.ids[2, 0]
    assert not stopped.ids[2, 1:].any()
    end = int(free.ids[1, 0])
    ended = Generator(model, 20, temperature=1.0, end_id=end)(PROMPTS)
    assert ended.ids[1].tolist() == [end] + [0] * (ended.ids.shape[1] - 1)
    # A sequence that begins in the prompt is none of the text's.
    across = Generator(model, 20, temperature=1.0, stop=[[PROMPTS[1][-1], end]])(PROMPTS)
    assert across.ids[1, :2].tolist() == free.ids[1, :2].tolist()
    tokens = list(Generator(model, 20, temperature=1.0, end_id=end).stream(PROMPTS[1]))
    assert len(tokens) >= 1


def test_no_prompts_and_errors(model):
    assert Generator(model, 3)([]).ids.shape == (0, 0)
    for options, message in (
        ({"temperature": -1}, "temperature=-1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 0}, "top_p=0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"min_p": 2}, "min_p=2"),
        ({"repetition_penalty": 0}, "repetition_penalty=0"),
        ({"end_id": 11}, "end_id=11"),
        ({"stop": [[]]}, r"stop=\[\[\]\]"),
        ({"seed": -1}, "seed=-1"),
        ({"max_new_tokens": 0}, "extra_tokens=0|max_new_tokens=0"),
    ):
        with pytest.raises(ValueError, match=message):
            Generator(model, **options)
    with pytest.raises(ValueError, match="prompts with 11"):
        Generator(model, 3)([[11]])
    with pytest.raises(ValueError, match="none in 1"):
        Generator(model, 3)([[5], []])
    with pytest.raises(ValueError, match=r"at most 29 ids.*one of 30"):
        Generator(model, 3)([[5] * 30])
