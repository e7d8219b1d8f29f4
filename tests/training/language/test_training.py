"""What a language model is trained on and how: tokens, places of rows, rates; and its limits."""

import math
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_tnattn.models import language_model
from keras_tnattn_train.language import train
from keras_tnattn_train.language.config import LanguageConfig
from keras_tnattn_train.language.corpus import Corpus, PackedBatches, Part
from keras_tnattn_train.language.loading import LanguageRun
from keras_tnattn_train.language.tokens import END, RESERVED, Tokens
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.run import Run


def test_frequent_characters_come_first():
    tokens = Tokens.learn("characters", ["zzz", "yzb", "yba", "\n"])
    assert tokens.characters == "zby\na"  # 4, 2, 2, 1 and 1 times; then by code point
    assert tokens.encode("azb").tolist() == [RESERVED + 4, RESERVED, RESERVED + 1]


def test_the_place_of_the_rows_moves_from_epoch_to_epoch():
    """23 ids are cut into 4 rows of 4; the first begins at one of 7 places."""
    part = Part(np.arange(100, 123, dtype="int32"), 23, 1)
    batches = PackedBatches(part, 4, 2, seed=5)
    assert len(batches) == 2
    firsts, orders = [], set()
    for epoch in range(60):
        batches.set_epoch(epoch)
        rows = np.concatenate([batches[i][0] for i in range(2)]) - 100
        labels = np.concatenate([batches[i][1] for i in range(2)]) - 100
        np.testing.assert_array_equal(labels, rows + 1)
        firsts.append(rows.min())
        np.testing.assert_array_equal(np.sort(rows.ravel()), firsts[-1] + np.arange(16))
        np.testing.assert_array_equal(rows, rows[:, :1] + np.arange(4))
        orders.add(tuple((rows[:, 0] - firsts[-1]) // 4))
    assert set(firsts) == set(range(7))  # the label of the last id is the last one
    assert len(orders) > 15  # of 24
    assert len(PackedBatches(part, 4, 2, seed=5, batches_per_epoch=1)) == 1
    assert len(PackedBatches(part, 4, 2)) == 3


@pytest.mark.parametrize(("steps", "warmup"), [(5, 1), (60, 6), (3000, 100)])
def test_the_learning_rate_rises_and_then_falls_as_a_cosine(steps, warmup):
    model = language_model(9, "none", model_dim=4, num_heads=1, feedforward_dim=4, num_layers=1)
    train.compile_model(model, LanguageConfig(learning_rate=0.02), steps)
    config = model.optimizer.get_config()
    schedule = keras.optimizers.schedules.deserialize(config["learning_rate"])
    places = sorted({0, 1, warmup // 2, warmup, (warmup + steps) // 2, steps - 1, steps})
    want = [
        0.02 * step / warmup
        if step < warmup
        else 0.01 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
        for step in places
    ]
    assert [float(schedule(step)) for step in places] == pytest.approx(want, rel=1e-3, abs=1e-7)
    assert config["clipnorm"] == 1.0
    assert config["beta_2"] == pytest.approx(0.98)


def test_the_rate_falls_over_all_steps_of_the_run(tmp_path, monkeypatch):
    class CompiledError(Exception):
        pass

    def compile_model(model, config, num_steps):
        raise CompiledError(num_steps)

    monkeypatch.setattr(train, "compile_model", compile_model)
    part = Part(np.arange(1, 90, dtype="int32") % 9, 89, 1)
    corpus = Corpus(Tokens("characters", "abcdef"), dict.fromkeys(("train", "validation"), part))
    options = {"length": 4, "batch_size": 8, "epochs": 7, "model_dim": 4, "num_heads": 1}
    for more, steps in (({}, 7 * 3), ({"batches_per_epoch": 2}, 7 * 2)):
        with pytest.raises(CompiledError) as stopped:  # of 21 rows in 3 batches
            train.train_language_model(LanguageConfig(**options, **more), Run(tmp_path), corpus)
        assert stopped.value.args == (steps,)


@pytest.mark.parametrize(
    ("options", "frozen", "told"),
    [
        ({"freeze_metric": True}, {"layers": 2}, False),
        ({"freeze_metric": True}, {"layers": 1}, True),
        ({"freeze_metric": True}, {"layers": 0, "reason": "..."}, True),
        ({}, None, True),
        ({"causal_metric": True}, None, False),
    ],
)
def test_a_metric_that_is_frozen_in_part_still_reads_ahead(options, frozen, told):
    config = LanguageConfig(attention="plga", num_layers=2, **options)
    measured = {"bits_per_byte": 1.5, "perplexity": 3.0}
    results = {"test": measured, "validation": {**measured, "bits_per_byte": 1.25}}
    results |= {"parameters": {"all": 1234}, "tokens_per_second": 10.0, "seconds": 3.0}
    if frozen:
        results["frozen"] = frozen
    text = train.summary(results, config)
    assert ("reads ahead" in text) == told
    assert "1.5000 on the test part, 1.2500 on the validation part" in text


@pytest.fixture
def reading_8_tokens():
    """A run of an untrained model of 8 tokens, whose continuations depend on all of them."""
    tokens = Tokens("characters", "abcdefgh")
    sizes = {"model_dim": 16, "num_heads": 2, "feedforward_dim": 16, "num_layers": 1}
    model = language_model(tokens.vocabulary_size, "sdpa", max_length=8, **sizes)
    rng = np.random.default_rng(0)
    model(np.ones((1, 4), "int32"))
    model.set_weights([rng.normal(size=weight.shape) for weight in model.get_weights()])
    run = object.__new__(LanguageRun)
    run.tokens, run.model, run.folder = tokens, model, SimpleNamespace()
    return run


def test_the_end_of_a_long_text_is_continued(reading_8_tokens):
    run = reading_8_tokens
    predict = run.predictor(3, 1, None)
    texts = ["abcdefgh" * 3 + tail for tail in ("abcd", "hgfe", "aaaa", "bdfh", "cgcg", "eeef")]
    found = [one.cells["continuation"] for (one,) in predict(texts)]
    # Half of what the model reads is for the continuation.
    generator = run.generator(max_new_tokens=4)
    want = [run.tokens.decode(generator([run.tokens.encode(text[-4:])]).ids[0]) for text in texts]
    assert found == want
    assert len(set(found)) > 1
    assert [one.cells["continuation"] for (one,) in predict(["hgfe"])] == want[1:2]
    assert all(len(text) <= 4 for text in found)


def test_a_prompt_that_is_too_long_is_refused(reading_8_tokens):
    assert len(list(reading_8_tokens.stream("abcde", max_tokens=3))) <= 3
    with pytest.raises(InputError, match="at most 5 ids"):
        list(reading_8_tokens.stream("abcdef", max_tokens=3))
    assert END not in reading_8_tokens.tokens.prompt("ab")
