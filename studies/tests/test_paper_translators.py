"""The study `paper-translators`: its configs, its tables and how it continues."""

import csv
import lzma

import pytest

from keras_tnattn.models import PRESETS
from keras_tnattn_studies import paper_translators
from keras_tnattn_studies.reproduce import main
from keras_tnattn_studies.translators_rnn import recurrent_translator
from keras_tnattn_train.runs.run import Run


def row(greedy, beam=None):
    result = {
        "weights": 1000,
        "val_loss": 3.0,
        "own_1": greedy,
        "ted_1": greedy / 4,
        "seconds": 9.0,
    }
    return result if beam is None else result | {"own_4": beam, "ted_4": beam / 4}


def cells(text):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]


@pytest.mark.parametrize("model", paper_translators.MODELS)
def test_sizes_are_in_proportion_to_the_paper_s(model):
    common = paper_translators.PaperTranslatorsTraining(model_dim=128)
    config = common.config_of("multi30k_pt_en", model, 3)
    preset = PRESETS.get(model)
    name = (f"multi30k_pt_en-{model}-3", 3, model if preset else "sdpa")
    assert (config.name, config.seed, config.preset) == name
    assert (config.model_dim, config.feedforward_dim) == (128, 512)
    if model == "rnn":
        assert recurrent_translator(config, (40, 40)).get_layer("decoder").units == 128
        return
    overrides = {**preset, **config.overrides}
    assert overrides["num_heads"] == preset["num_heads"]
    assert overrides["num_layers"] == preset["num_layers"]
    assert overrides.get("residual_units") == preset.get("residual_units")
    assert 4 * overrides.get("residual_dim", 0) == preset.get("residual_dim", 0)


def test_the_table_has_the_paper_s_figures_beside_ours(tmp_path):
    rows = {
        ("multi30k_pt_en", "plga-1", 0): row(20.0),
        ("multi30k_pt_en", "plga-2", 0): row(24.0, 25.0),
        ("multi30k_pt_en", "plga-2", 1): row(26.0, 27.0),
        ("multi30k_pt_en", "rnn", 0): row(16.0, 18.0),
        ("tatoeba_tr_en", "plga-2", 0): row(9.0, 9.0),
    }
    run = Run(tmp_path / "multi30k_pt_en-plga-2-1")
    run.folder.mkdir()
    run.write_metrics([{"epoch": i + 1, "val_loss": x} for i, x in enumerate((4.0, 3.0, 3.5))])
    _, _, *lines = cells(paper_translators.table(rows, "multi30k_pt_en", tmp_path))
    one = ["plga-1", "1", "16", "10", "1,000", "3.000", "-", "20.0", "-", "5.0", "-", "27.0", "-"]
    two = ["plga-2", "1", "8", "9", "1,000", "3.000", "- 2", "25.0 ± 1.4", "26.0 ± 1.4"]
    rnn = ["rnn", "1", "-", "-", "1,000", "3.000", "-", "16.0", "18.0", "4.0", "4.5", "-", "26.2"]
    assert lines == [
        [*one, "0"],
        [*two, "6.2 ± 0.4", "6.5 ± 0.4", "27.8", "28.3", "0 1"],
        [*rnn, "0"],
    ]


@pytest.fixture
def trained(monkeypatch):
    """Stands in for the trainings; lists those that were run."""
    run = []

    def train_and_measure(model, config, folder):
        run.append(config.name)
        assert model in config.name
        assert config.prepared == str(folder / f"prepared-{config.corpus}")
        return row(20.0, 21.0 if "plga-2" in config.name else None)

    monkeypatch.setattr(paper_translators, "train_and_measure", train_and_measure)
    return run


@pytest.fixture
def data(tmp_path):
    """A folder of tiny corpora, with the test parts of TED."""
    for name, parts in {
        "multi30k_pt_en": ("train", "validation", "test"),
        "tatoeba_tr_en": ("data",),
        "ted_hrlr_pt_en": ("validation", "test"),
        "ted_hrlr_tr_en": ("validation", "test"),
    }.items():
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        count = 60 if "ted" not in name else 4
        lines = [f"{name} {i} um\t{name} {i} one" for i in range(count)]
        table = "\n".join(["source\ttarget", *lines]) + "\n"
        for part in parts:
            (folder / f"{part}.tsv.xz").write_bytes(lzma.compress(table.encode()))
    return tmp_path / "data"


def test_the_paper_s_models_are_trained_once(trained, data, tmp_path, capsys):
    study = tmp_path / "study"
    command = ["paper-translators", "--data-dir", str(data), "--run-dir", str(study)]
    assert main([*command, "--models", "plga-1", "plga-2"]) == 0
    # The paper has no model #1 for Turkish.
    both = ["multi30k_pt_en-plga-1-0", "multi30k_pt_en-plga-2-0", "tatoeba_tr_en-plga-2-0"]
    assert trained == both
    assert main([*command, "--corpora", "multi30k_pt_en", "--models", "sdpa", "plga-2"]) == 0
    assert trained == [*both, "multi30k_pt_en-sdpa-0"]
    text = (study / "multi30k_pt_en.md").read_text()
    assert text.strip() in capsys.readouterr().out
    assert [line[0] for line in cells(text)[2:]] == ["plga-1", "plga-2", "sdpa"]
    assert [line[0] for line in cells((study / "tatoeba_tr_en.md").read_text())[2:]] == ["plga-2"]
    rows = list(csv.DictReader((study / "results.csv").read_text().splitlines()))
    assert [r["own_4"] for r in rows] == ["", "21.0", "", "21.0"]
    (study / "multi30k_pt_en.md").unlink()  # as if the process had been killed before it
    assert main([*command, "--models", "plga-1"]) == 0
    assert (study / "multi30k_pt_en.md").read_text() == text
    capsys.readouterr()
    assert main([*command, "--epochs", "3"]) == 2
    assert "epochs" in capsys.readouterr().err
    assert len(trained) == 4


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--model-dim", "24"], "model_dim=24"),
        (["--epochs", "1"], "cooldown_epochs"),
        (["--models", "plga-7"], "plga-7"),
        (["--models", "plga-1", "--corpora", "tatoeba_tr_en"], "models=plga-1, corpora=tatoeba"),
        (["--data-dir", "nowhere"], "data_dir=nowhere"),
    ],
)
def test_bad_options_are_refused_before_a_training(
    arguments, part, trained, data, tmp_path, capsys
):
    command = ["paper-translators", "--data-dir", str(data), "--run-dir", str(tmp_path / "study")]
    assert main([*command, *arguments]) != 0
    assert part in capsys.readouterr().err
    assert not trained
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_a_training_is_measured_on_both_test_parts(data, tmp_path, monkeypatch):
    common = {**paper_translators.COMMON, "vocabulary_size": 60}
    monkeypatch.setattr(paper_translators, "COMMON", common)
    study = tmp_path / "study"
    command = ["paper-translators", "--data-dir", str(data), "--run-dir", str(study)]
    command += ["--epochs", "1", "--cooldown-epochs", "0", "--model-dim", "16"]
    assert main([*command, "--corpora", "multi30k_pt_en", "--models", "plga-2", "rnn"]) == 0
    with (study / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == ["plga-2", "rnn"]
    for row in rows:
        assert all(0 <= float(row[name]) <= 100 for name in paper_translators.BLEU)
        folder = study / f"multi30k_pt_en-{row['model']}-0"
        assert (folder / "hypotheses-ted_hrlr_pt_en-test-beam4.txt").read_text().count("\n") == 4
        assert (folder / "hypotheses-test-beam1.txt").read_text().count("\n") == 60
