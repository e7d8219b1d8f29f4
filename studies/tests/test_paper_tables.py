"""The studies `table-1`, `rules-table` and `table-2`: options, long studies and tables."""

import pytest

from keras_tnattn_studies import compare, paper_tables, paper_translators, rules, tensorized
from keras_tnattn_studies.papers import POWER_LAW_TABLE_2, TENSORIZED_TABLE_1
from keras_tnattn_studies.reproduce import main
from keras_tnattn_train.data.texts.labeled import LabeledTexts
from keras_tnattn_train.rules import train as rule_training


def cells(path):
    lines = [line for line in path.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


@pytest.fixture
def studies(monkeypatch):
    """Stands in for the long studies; lists what they were started with."""
    started = []
    monkeypatch.setattr(tensorized, "study", started.append)
    for module in (paper_translators, rules):
        monkeypatch.setattr(module, "finish_all", lambda *_: pytest.fail("trains"))
    monkeypatch.setattr(paper_translators, "start", started.append)
    return started


def test_the_long_study_of_table_1_has_the_papers_setting(studies, tmp_path):
    command = ["table-1", "--data-dir", "data", "--run-dir", str(tmp_path / "study")]
    assert main(command) == 0
    (options,) = studies
    assert options.settings == ("paper",)
    assert set(options.attentions) == set(TENSORIZED_TABLE_1)
    assert (options.data_dir, options.run_dir) == ("data", str(tmp_path / "study"))
    assert options.datasets == tensorized.DATASETS


def test_the_long_study_of_table_2_has_all_models(studies, monkeypatch):
    assert main(["table-2", "--data-dir", "data"]) == 0
    assert studies == [{"data_dir": "data", "run_dir": "runs/table-2"}]


@pytest.mark.parametrize("name", ["table-1", "table-2"])
def test_the_long_studies_need_data_and_the_quick_ones_none(name, studies, capsys):
    assert main([name]) == 2
    error = capsys.readouterr().err
    assert "Expected --data-dir" in error
    assert "--quick" in error
    assert main([name, "--quick", "--data-dir", "data"]) == 2
    assert "data_dir=data" in capsys.readouterr().err
    assert not studies


@pytest.mark.parametrize("name", ["table-1", "rules-table", "table-2"])
def test_the_help_says_what_the_long_study_needs(name, capsys):
    assert main([name, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"keras-tnattn reproduce {name}" in text
    assert "--quick" in text
    assert "core" in text


def test_table_1_has_the_papers_rows_beside_ours(tmp_path, monkeypatch, capsys):
    texts = [f"the {word} {n}" for n in range(20) for word in ("good film", "bad film")]
    data = LabeledTexts.from_rows(zip(texts, ["good", "bad"] * 20, strict=True))
    monkeypatch.setattr(paper_tables, "read_texts", lambda config: data)

    def trained(configs, folder, data, call):
        assert [config.attention for config in configs] == [*TENSORIZED_TABLE_1, "none"]
        assert {config.dataset for config in configs} == {"docstrings"}
        folder.mkdir(parents=True)
        counts = {"attention": 320, "embedding": 640, "all": 1_000}
        shares = {"train_accuracy": 0.9, "test_accuracy": 0.75, "seconds_per_step": 0.1}
        return [shares | {"parameters": counts} for _ in configs]

    monkeypatch.setattr(compare, "train_all", trained)
    assert main(["table-1", "--quick", "--run-dir", str(tmp_path / "quick")]) == 0
    path = tmp_path / "quick/paper.md"
    printed = capsys.readouterr().out
    assert path.read_text().rstrip() in printed
    assert f"wrote {path}" in printed
    header, _, *lines = cells(path)
    assert header[4:] == ["docstrings", *(f"paper, {n}" for n in ("RN", "NG", "DR", "RA", "SA"))]
    assert [line[:5] for line in lines] == [
        ["TSA", "64", "320", "1,000", "90.0 / 75.0"],
        ["DPA", "6", "320", "1,000", "90.0 / 75.0"],
        ["ADA", "6", "320", "1,000", "90.0 / 75.0"],
        ["no attention", "64", "320", "1,000", "90.0 / 75.0"],
    ]
    assert lines[0][5:] == [
        *("85.3 / 73.9", "96.9 / 82.8", "96.3 / 87.7", "90.2 / 72.7", "97.4 / 80.6")
    ]
    assert lines[3][5:] == ["-"] * 5


def test_table_2_has_the_papers_rows_beside_ours(tmp_path, monkeypatch):
    def trained(configs, folder, train):
        (config,) = configs
        assert (config.corpus, config.model_dim, config.max_length) == ("cldr:pt-en", 48, 16)
        assert train.keywords == {"multiple": 16}
        folder.mkdir(parents=True, exist_ok=True)
        return [{"parameters": 12_345, "val_loss": 2.5}]

    def translated(options):
        assert options.part == "validation"
        model = options.run.rpartition("cldr-pt-en-")[2]
        return {"bleu": {"plga-2-0": 4.0, "sdpa-0": 5.25}[model]}

    monkeypatch.setattr(paper_tables, "finish_all", trained)
    monkeypatch.setattr(paper_tables, "evaluate_run", translated)
    assert main(["table-2", "--quick", "--run-dir", str(tmp_path / "quick")]) == 0
    _, _, *lines = cells(tmp_path / "quick/paper.md")
    assert [line[0] for line in lines] == list(POWER_LAW_TABLE_2["pt_en"])
    by_model = {line[0]: line[1:] for line in lines}
    assert by_model["sdpa"] == ["12,345", "5.2", "2.50", "27.97", "2.15", "16.82", "2.43"]
    assert by_model["plga-2"][1] == "4.0"
    assert by_model["plga-6"] == ["-", "-", "-", "16.02", "3.40", "-", "-"]


def test_the_table_of_rules_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(rule_training, "TEST_CELLS", 600)
    monkeypatch.setattr(rule_training, "TIMES", 2)
    # Rule 204 changes nothing: it is learned in a moment.
    options = {"rules": (204,), "models": ("tn",), "epochs": 3, "batches_per_epoch": 20}
    options |= {"length": 6, "learning_rate": 0.05, "boundaries": ("fixed",)}
    monkeypatch.setattr(paper_tables, "AUTOMATA", paper_tables.AUTOMATA | options)
    assert main(["rules-table", "--quick", "--run-dir", str(tmp_path / "quick")]) == 0
    _, _, line = cells(tmp_path / "quick/paper.md")
    assert (line[0], line[2:]) == ("tn", ["100", "100", "yes", "exact at other lengths"])
