"""The recurrent peer of the studies of translators: its model, its steps and its run."""

import keras
import numpy as np
import pytest
from translator_runs import make_run

from keras_tnattn.search import BeamSearch
from keras_tnattn_studies import translators
from keras_tnattn_studies.translators_rnn import (
    RecurrentSteps,
    load_recurrent,
    recurrent_translator,
)
from keras_tnattn_train.translate.config import TranslateConfig
from keras_tnattn_train.translate.evaluate import EvaluateOptions, evaluate_run

SOURCES = [[2, 9, 4, 17, 3], [2, 5, 8, 21, 7, 6, 11, 3], [2, 12, 3]]


@pytest.fixture
def model():
    model = recurrent_translator(TranslateConfig(preset="sdpa", model_dim=8), (30, 40))
    rng = np.random.default_rng(0)
    for weight in model.weights:  # so large that it has preferences
        if "seed" not in weight.path:
            weight.assign(3 * rng.normal(size=weight.shape) / np.sqrt(weight.shape[0]))
    return model


def padded(rows, width=8):
    return np.array([row + [0] * (width - len(row)) for row in rows])


def test_the_size_is_that_of_the_other_models():
    sizes = (3666, 3635)  # those of Multi30k
    config = translators.TranslatorsTraining(corpus="cldr:pt-en").config_of("rnn", 0)
    assert 0.95 < recurrent_translator(config, sizes).count_params() / 1_866_291 < 1.06


def test_no_logits_depend_on_padding_or_on_later_tokens(model):
    target = np.array([[2, 7, 5, 9]] * 3)
    together = np.array(model({"source": padded(SOURCES), "target": target}))
    for row, source in enumerate(SOURCES):
        alone = model({"source": np.array([source]), "target": target[:1, :2]})
        np.testing.assert_allclose(together[row, :2], alone[0], rtol=1e-4, atol=1e-4)
    assert np.abs(together[0] - together[1]).max() > 0.1


@pytest.mark.parametrize("beam", [1, 3])
def test_the_scores_of_the_search_are_those_of_the_model(model, beam):
    found = BeamSearch(RecurrentSteps(model), beam, extra_tokens=5)(padded(SOURCES))
    for source, hypotheses, scores in zip(SOURCES, found.ids, found.scores, strict=True):
        for ids, score in zip(hypotheses, scores, strict=True):
            ids = ids[: np.flatnonzero(ids)[-1] + 1]
            logits = model({"source": np.array([source]), "target": ids[None, :-1]})[0]
            probable = np.array(keras.ops.log_softmax(logits))
            cost = -probable[np.arange(len(ids) - 1), ids[1:]].sum()
            assert score == pytest.approx(cost / ((5 + len(ids)) / 6) ** 0.6, rel=1e-4)
            if beam == 1:
                assert (probable.argmax(-1) == ids[1:]).all()


def test_a_run_is_evaluated(tmp_path):
    _, corpus = make_run(tmp_path / "run", "sdpa")
    config = TranslateConfig(preset="sdpa", model_dim=8)
    new = recurrent_translator(config, corpus.vocabulary_sizes)
    new.save(tmp_path / "run/model.keras")
    options = EvaluateOptions(run=str(tmp_path / "run"), part="validation", beam=2)
    results = evaluate_run(options, load=load_recurrent)
    assert (results["sentences"], results["beam_size"]) == (2, 2)
    loaded = load_recurrent(tmp_path / "run").model.model
    inputs = {"source": padded(SOURCES), "target": padded(SOURCES)}
    np.testing.assert_array_equal(loaded(inputs), new(inputs))
