"""The study `translators`: its options, its table and how it continues."""

import csv

import pytest
from translate_commands import table

from keras_tnattn_train.studies import translators
from keras_tnattn_train.studies.reproduce import main


def row(bleu, seconds=10.0):
    return {
        "weights": 1000,
        "loss": 2.0,
        "val_loss": 3.0,
        "bleu": bleu,
        "exact_match": 0.25,
        "seconds": seconds,
    }


def cells(text):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]


def test_the_table_compares_the_same_seeds():
    rows = {
        ("sdpa", 0): row(40.0),
        ("sdpa", 1): row(42.0),
        ("plga", 0): row(36.0),
        ("plga", 1): row(37.0),
        ("plga-causal", 7): row(39.0, seconds=20.0),
    }
    _, _, *lines = cells(translators.table(rows))
    assert lines == [
        ["sdpa", "1,000", "2.000", "3.000", "41.0 ± 1.4", "-", "25.0 ± 0.0", "10", "0 1"],
        ["plga", "1,000", "2.000", "3.000", "36.5 ± 0.7", "-4.5 ± 0.7", "25.0 ± 0.0", "10", "0 1"],
        ["plga-causal", "1,000", "2.000", "3.000", "39.0", "-", "25.0", "20", "7"],
    ]


@pytest.mark.parametrize("model", translators.MODELS)
def test_each_model_is_a_valid_run(model):
    config = translators.TranslatorsTraining(corpus="cldr:pt-en").config_of(model, 3)
    assert (config.name, config.seed) == (f"{model}-3", 3)
    assert config.attention == model.partition("-")[0]
    assert config.causal_metric == ("causal" in model)
    assert (config.encoder_attention is not None) == ("encoder" in model)
    assert (config.decoder_attention is not None) == ("decoder" in model)


@pytest.fixture
def trained(monkeypatch):
    """Stands in for the trainings; lists those that were run."""
    run = []

    def train_and_measure(config, folder):
        run.append(config.name)
        assert config.prepared == str(folder / "prepared")
        return row(40.0 if config.attention == "sdpa" else 36.0)

    monkeypatch.setattr(translators, "train_and_measure", train_and_measure)
    return run


def test_finished_trainings_are_kept(trained, tmp_path, capsys):
    command = ["translators", "--corpus", "cldr:pt-en", "--run-dir", str(tmp_path / "study")]
    assert main([*command, "--models", "plga", "sdpa", "--seeds", "0"]) == 0
    assert main([*command, "--models", "plga", "sdpa", "--seeds", "0", "1"]) == 0
    assert trained == ["plga-0", "sdpa-0", "plga-1", "sdpa-1"]
    text = (tmp_path / "study/table.md").read_text()
    assert text.strip() in capsys.readouterr().out
    assert [line[0] for line in cells(text)[2:]] == ["sdpa", "plga"]
    assert main([*command, "--epochs", "3"]) == 2
    assert "epochs" in capsys.readouterr().err
    assert len(trained) == 4


def read_table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.slow
def test_a_training_is_measured_on_the_validation_part(tmp_path, monkeypatch):
    corpus = table(tmp_path / "pairs.tsv")
    small = {"model_dim": 16, "num_heads": 2, "feedforward_dim": 16, "vocabulary_size": 60}
    monkeypatch.setattr(translators, "COMMON", {**translators.COMMON, **small})
    command = ["translators", "--corpus", corpus, "--epochs", "2"]
    command += ["--cooldown-epochs", "1", "--models", "plga", "sdpa", "--seeds", "0"]
    assert main([*command, "--run-dir", str(tmp_path / "study")]) == 0
    rows = read_table(tmp_path / "study/results.csv")
    assert [row["model"] for row in rows] == ["sdpa", "plga"]
    for row in rows:
        assert 0 <= float(row["bleu"]) <= 100
        last = read_table(tmp_path / f"study/{row['model']}-0/metrics.csv")[-1]
        assert float(row["val_loss"]) == pytest.approx(float(last["val_loss"]))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--epochs", "2"], "cooldown_epochs"),
        (["--corpus", "multi30k_pt_en"], "--data-dir"),
        (["--models", "lstm"], "lstm"),
    ],
)
def test_bad_options_are_refused_before_a_training(arguments, part, trained, tmp_path, capsys):
    command = ["translators", "--corpus", "cldr:pt-en", "--run-dir", str(tmp_path / "study")]
    assert main([*command, *arguments]) != 0
    assert part in capsys.readouterr().err
    assert not trained
    assert not (tmp_path / "study").exists()
