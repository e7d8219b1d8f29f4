"""The study `long-texts`: its texts, its tables, and how it is continued."""

import json
import os
import sys

import keras
import numpy as np
import pytest

from keras_tnattn_studies import alone, long_texts, recall_training
from keras_tnattn_studies.recall import (
    FIRST_LETTER,
    LETTERS,
    QUESTION,
    REACH,
    SECTION,
    recall_texts,
)
from keras_tnattn_studies.reproduce import main
from keras_tnattn_train.options.errors import InputError

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def is_letter(token):
    return FIRST_LETTER <= token < FIRST_LETTER + LETTERS


class TestTexts:
    def test_the_answer_is_the_last_letter_before_the_question(self):
        ids, labels, weights = recall_texts(40, 4 * SECTION, np.random.default_rng(0))
        assert ids.shape == labels.shape == weights.shape == (40, 256)
        before, after, others = [], [], []
        for text, answers, asked in zip(ids, labels, weights, strict=True):
            letters = np.flatnonzero([is_letter(token) for token in text])
            questions = np.flatnonzero(text == QUESTION)
            assert len(questions) == 4
            np.testing.assert_array_equal(questions, np.flatnonzero(asked))
            for question in questions:
                last = letters[letters < question].max()
                assert text[last] - FIRST_LETTER == answers[question]
                following = letters[letters > question].min()
                assert text[following] != text[last]
                before.append(question - last)
                after.append(following - question)
                # The letters of other sections that the model sees are further away.
                others += (question - letters[letters < last]).tolist()
        assert set(before) | set(after) <= set(range(1, REACH + 1))
        assert len(set(before)) > 4
        assert len(set(after)) > 4
        assert min(others) > 3 * REACH

    def test_all_answers_are_equally_frequent(self):
        _, labels, weights = recall_texts(100, 640, np.random.default_rng(1))
        counts = np.bincount(labels[weights > 0], minlength=LETTERS)
        assert counts.sum() == 1000
        assert counts.min() > 80

    @pytest.mark.parametrize("length", [0, 100])
    def test_lengths_without_whole_sections_are_refused(self, length):
        with pytest.raises(ValueError, match=f"length={length}"):
            recall_texts(1, length, np.random.default_rng(0))


class TestTraining:
    def test_a_token_receives_from_earlier_ones_only(self):
        ids, _, _ = recall_texts(1, 2 * SECTION, np.random.default_rng(0))
        changed = ids.copy()
        changed[0, -1] = QUESTION
        for model, sees in {
            "tsa": False,
            "mha": False,
            "window": False,
            "convolution": False,
            "gru": False,
            "tsa_symmetric": True,
        }.items():
            settings = {"learning_rate": 0.01, "num_heads": 8}
            reader = recall_training.recall_model(model, settings)
            one, other = (keras.ops.convert_to_numpy(reader(x)) for x in (ids, changed))
            assert np.allclose(one[0, :-1], other[0, :-1], atol=1e-6) != sees, model

    def test_local_attention_is_attention_to_the_tokens_of_a_window(self):
        layer = recall_training.LocalAttention(2, 8)
        x = np.random.default_rng(0).normal(size=(2, 3 * SECTION, recall_training.DIM))
        x = x.astype("float32")
        local = keras.ops.convert_to_numpy(layer(x))
        distance = np.subtract.outer(np.arange(3 * SECTION), np.arange(3 * SECTION))
        mask = ((distance >= 0) & (distance <= SECTION))[None]
        whole = keras.ops.convert_to_numpy(layer.attention(x, x, attention_mask=mask))
        np.testing.assert_allclose(local, whole, atol=1e-5)

    @pytest.mark.slow
    @needs_linux
    def test_is_repeated_by_its_seed_and_ends_in_time(self):
        def train(max_seconds):
            settings = {"learning_rate": 0.01}
            return recall_training.train_recall("none", settings, 64, 0, 3, 256, max_seconds)

        one, again = train(1e9), train(1e9)
        assert one["accuracy"] == again["accuracy"]
        assert one["steps"] == 3
        assert one["seconds"] >= one["seconds_per_step"] > 0
        assert 0 <= one["megabytes"] < 200  # without what the backend took before
        assert train(1e-9)["steps"] == 1

    def test_the_texts_depend_on_seed_and_part(self):
        def first(*key):
            ids, _, _ = next(recall_training._batches(64, 128, *key))
            assert ids.shape == (2, 64)
            return ids.tobytes()

        keys = [(seed, part) for seed in range(2) for part in range(3)]
        assert len({first(*key) for key in keys}) == 6
        assert first(0, 0) == first(0, 0)

    def test_compiling_changes_nothing(self):
        reader = recall_training.recall_model("none", {"learning_rate": 0.01})
        before = [keras.ops.convert_to_numpy(w).copy() for w in reader.weights]
        recall_training._compile_steps(reader)
        assert int(reader.optimizer.iterations) == 0
        for weight, start in zip(reader.weights, before, strict=True):
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), start)

    @pytest.mark.slow
    @needs_linux
    def test_order_and_distance_are_learned(self):
        def accuracy(model, **settings):
            settings = {"learning_rate": 0.01, **settings}
            return recall_training.train_recall(model, settings, 256, 0, 200, 4096, 1e9)["accuracy"]

        assert accuracy("tsa", num_heads=8) > 0.9
        assert 0.4 < accuracy("tsa_symmetric", num_heads=8) < 0.65
        assert accuracy("none") < 0.2


@needs_linux
def test_a_process_reports_its_memory_and_its_lack_of_it():
    before = alone.restart_peak()
    assert 0 <= alone.peak_memory() - before < 50
    data = np.ones(25_000_000)  # 200 MB, touched
    assert 150 < alone.peak_memory() - before < 260
    del data
    assert alone.run_alone(np.ones, 10**9, gigabytes=0.5) is None


@needs_linux
def test_the_limit_is_one_of_what_a_process_allocates_itself():
    """And not of what the backend took before."""
    assert alone.run_alone(_mean_of_ones, 37_500_000, gigabytes=0.4) == 1  # 300 MB


def _mean_of_ones(size):
    return float(np.ones(size).mean())


@needs_linux
@pytest.mark.parametrize(
    ("written", "too_large"),
    [("terminate called after throwing std::bad_alloc", True), ("Segmentation fault", False)],
)
def test_a_crash_is_no_lack_of_memory(monkeypatch, capsys, written, too_large):
    monkeypatch.setattr(alone, "_start", _redirected)
    if too_large:
        assert alone.run_alone(_crash, written, gigabytes=1.0) is None
    else:
        with pytest.raises(InputError, match=r"kept: .* fewer --gigabytes than 1"):
            alone.run_alone(_crash, written, gigabytes=1.0)
    # What the process wrote is shown where it explains an error.
    assert capsys.readouterr().err == ("" if too_large else written)


def _redirected(gigabytes, errors):
    """Begins a process as `alone._start` does, but without a backend and a limit."""
    os.dup2(os.open(errors, os.O_WRONLY), 2)


def _crash(written):
    os.write(2, written.encode())
    os._exit(139)


def cell(accuracy, seconds, megabytes, outcome="trained"):
    return {
        "outcome": outcome,
        "accuracy": accuracy,
        "steps": 5,
        "seconds": 5 * seconds,
        "seconds_per_step": seconds,
        "megabytes": megabytes,
    }


CELLS = {
    ("mha", 128, 0): cell(0.5, 2.0, 100.0),
    ("mha", 128, 1): cell(0.7, 4.0, 300.0),
    ("tsa", 128, 0): cell(0.9, 0.3, 10.0),
    ("tsa", 256, 0): cell(0.25, 0.4, 20.0, "out of time"),
    ("mha", 256, 0): {"outcome": "out of memory"},
}


class TestTables:
    def test_ratios_are_those_to_multi_head_attention(self):
        text = long_texts.table(CELLS)
        lines = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()]
        assert lines[2:] == [
            ["128", "TSA", "90.0", "5", "0.300", "10", "0.100", "0.050"],
            ["128", "MHA", "60.0 ± 14.1", "5", "3.000", "200", "1.000", "1.000"],
            ["256", "TSA", "25.0 (out of time)", "5", "0.400", "20", "-", "-"],
            ["256", "MHA", "out of memory", "-", "-", "-", "-", "-"],
        ]


@pytest.fixture
def measured(monkeypatch):
    """Stands in for the trainings; lists those that were run."""
    run = []

    def run_alone(function, model, *arguments, gigabytes):
        if function.__name__ == "choose_settings":
            run.append(model)
            return {"accuracies": [0.1 * i % 0.3 for i in range(len(arguments[0]))]}
        settings, length, seed = arguments[:3]
        run.append((model, length, seed, settings))
        return None if (model, length) == ("mha", 128) else cell(0.5, 0.1, 10.0)

    monkeypatch.setattr(alone, "run_alone", run_alone)
    return run


class TestCommand:
    arguments = ("long-texts", "--step-tokens", "128", "--steps", "5", "--search-length", "64")

    def run(self, folder, *more):
        return main([*self.arguments, "--run-dir", str(folder), *more])

    def test_continues_where_it_was_interrupted(self, tmp_path, measured, capsys):
        folder = tmp_path / "study"
        options = ["--models", "tsa", "mha", "--lengths", "64", "128", "--seeds"]
        assert self.run(folder, *options, "0") == 0
        # Of equal accuracies, the first counts.
        best = {"learning_rate": 0.003, "num_heads": 8}
        assert measured == [
            "tsa",
            "mha",
            *((model, n, 0, best) for n in (64, 128) for model in ("tsa", "mha")),
        ]
        assert json.loads((folder / "settings.json").read_text())["tsa"]["settings"] == best
        assert {p.name for p in folder.iterdir()} == {
            "config.json",
            "data.json",
            "settings.json",
            "cells.csv",
            "table.md",
            "long_texts.png",
        }
        first = (folder / "cells.csv").read_text().splitlines()
        assert "mha,128,0,out of memory,,,,," in first
        measured.clear()
        assert self.run(folder, *options, "0", "1") == 0
        assert [(model, n, seed) for model, n, seed, _ in measured] == [
            (model, n, 1) for n in (64, 128) for model in ("tsa", "mha")
        ]
        assert set(first) < set((folder / "cells.csv").read_text().splitlines())
        assert (folder / "table.md").read_text().strip() in capsys.readouterr().out

    def test_fewer_steps_than_asked_for_are_out_of_time(self, tmp_path, measured, capsys):
        folder = tmp_path / "study"
        some = ["--models", "none", "--lengths", "64", "--seeds", "0", "--steps", "6"]
        assert self.run(folder, *some) == 0
        assert "none,64,0,out of time,0.5,5,0.5,0.1,10.0" in (folder / "cells.csv").read_text()
        assert "seed 0: out of time, 50.0% after 5 steps" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("more", "part"),
        [
            (["--lengths", "100"], "lengths=100 with step_tokens=128"),
            (["--lengths", "192"], "lengths=192 with step_tokens=128"),
            (["--search-length", "65"], "search_length=65"),
        ],
    )
    def test_refuses_lengths_that_do_not_fill_a_batch(self, tmp_path, capsys, more, part):
        assert self.run(tmp_path / "study", *more) == 2
        assert part in capsys.readouterr().err

    def test_the_search_has_batches_of_its_own(self, tmp_path, measured):
        # 192 does not divide the 128 tokens of a batch.
        more = ["--models", "none", "--lengths", "64", "--seeds", "0", "--search-length", "192"]
        assert self.run(tmp_path / "study", *more) == 0

    def test_other_systems_are_refused(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr(sys, "platform", "darwin")
        assert self.run(tmp_path / "study") == 2
        assert "Expected Linux" in capsys.readouterr().err
        assert not (tmp_path / "study").exists()

    def test_refuses_other_options(self, tmp_path, measured, capsys):
        options = ["--models", "none", "--lengths", "64", "--seeds", "0"]
        assert self.run(tmp_path / "study", *options) == 0
        assert self.run(tmp_path / "study", *options, "--steps", "6") == 2
        assert "steps=5" in capsys.readouterr().err
