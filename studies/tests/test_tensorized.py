import csv
import threading

import numpy as np

from keras_tnattn_studies import plots, tensorized
from keras_tnattn_studies.reproduce import main
from keras_tnattn_studies.tensorized import (
    MOST_FREQUENT,
    SETTINGS,
    SVM,
    TEST_ROW_RATIO,
    TensorizedOptions,
    accuracy_table,
    configs_of,
    difference_table,
    differences,
    report,
)
from keras_tnattn_train.data.texts.labeled import LabeledTexts
from keras_tnattn_train.runs.run import Run


def row(attention, seed, accuracy, dataset="reuters", dim=64):
    return {
        "setting": "tuned",
        "dataset": dataset,
        "attention": attention,
        "dim": dim,
        "seed": seed,
        "attention_weights": 4 * dim,
        "weights": 100 * dim,
        "train_accuracy": 0.9,
        "test_accuracy": accuracy,
        "seconds": 1.5,
    }


def rows():
    return [
        *(row("tsa", seed, a) for seed, a in enumerate((0.80, 0.84, 0.85))),
        *(row("none", seed, a) for seed, a in enumerate((0.79, 0.82, 0.82))),
        *(row(SVM, seed, a, dim=0) for seed, a in enumerate((0.9, 0.9, 0.9))),
        *(row("tsa", seed, 0.5, "ohsumed") for seed in range(3)),
    ]


def test_the_settings_of_the_configs():
    options = TensorizedOptions(attentions=("tsa", "dpa"), seeds=(3,))
    names = ("paper", "stopped", "svm_start", "tuned", "small")
    paper, stopped, svm_start, tuned, small = (
        configs_of(options, setting, "reuters") for setting in names
    )
    assert [c.embedding_dim for c in paper] == [64, 6]
    assert {c.recipe for c in paper} == {"paper"}
    assert {c.early_stopping for c in paper} == {None}
    for config in (stopped, svm_start, tuned, small):
        assert [c.embedding_dim for c in config] == [64, 64]
    assert {(c.recipe, c.early_stopping, c.epochs) for c in stopped} == {("paper", 5, 50)}
    assert {c.monitor for c in stopped} == {"accuracy"}
    assert {(c.recipe, c.embedding) for c in small} == {("tuned", "tensor_train")}
    starts = [{c.initial_weights for c in config} for config in (paper, svm_start, tuned, small)]
    assert starts == [{"random"}, {"svm"}, {"random"}, {"random"}]
    for config in (svm_start, tuned):
        assert {(c.word_dropout, c.dropout) for c in config} == {(0.6, 0.5)}
    assert {(c.word_dropout, c.dropout) for c in small} == {(0.5, 0.1)}
    assert len({c.name for c in (*paper, *stopped, *svm_start, *tuned, *small)}) == 10
    dims = configs_of(options.replace(embedding_dims=(4, 8)), "paper", "reuters")
    assert [(c.attention, c.embedding_dim) for c in dims] == [
        *(("tsa", 4), ("tsa", 8), ("dpa", 4), ("dpa", 8))
    ]


def test_differences_are_those_of_the_same_seeds():
    # 1, 2 and 3 points: the mean is 2, the deviation 1, and t of 2 degrees of freedom is 4.303.
    # The splits share texts, 40 for the test to 60 for training: 1/3 becomes 1/3 + 2/3.
    assert differences(rows(), "tsa", "none") == {"reuters": f"+2.0 ± {4.303:.1f}"}
    assert differences(rows(), "tsa", SVM)["reuters"].startswith("-7.0 ± ")
    one = [r for r in rows() if r["seed"] == 1]
    assert differences(one, "tsa", "none") == {"reuters": "+2.0"}


def test_tables():
    lines = [line.split("|") for line in accuracy_table(rows(), "test").splitlines()]
    cells = [[cell.strip() for cell in line[1:-1]] for line in lines]
    assert cells[0] == ["test %", "dim", "weights (largest)", "reuters", "ohsumed"]
    assert cells[2] == ["TSA", "64", "6,400", "83.0 ± 2.6", "50.0 ± 0.0"]
    assert cells[4] == [SVM, "-", "-", "90.0 ± 0.0", "-"]
    of_one_set = accuracy_table([*rows(), row("dpa", 0, 0.5, "ohsumed")], "test").splitlines()
    assert [line.split("|")[1].strip() for line in of_one_set[2:]] == [
        *("TSA", "DPA", "no attention", SVM)
    ]
    training = accuracy_table([{**r, "train_accuracy": 0.97} for r in rows()], "train")
    assert "train %" in training.splitlines()[0]
    assert training.count("97.0 ± 0.0") == 4
    text = difference_table(rows())
    assert "TSA - no attention" in text
    assert f"TSA - {SVM}" in text
    names = [line.split("|")[1].strip() for line in text.splitlines()]
    assert [name for name in names if name.startswith("no attention -")] == [
        f"no attention - {SVM}"
    ]
    assert "TSA - TSA" not in text
    others = [row("dpa", seed, a) for seed, a in enumerate((0.80, 0.80, 0.82))]
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in difference_table([*rows(), *others]).splitlines()
    ]
    # 0, 4 and 3 points.
    assert cells[-1][:2] == [
        "TSA - DPA",
        f"+2.3 ± {4.303 * 2.0817 * (1 / 3 + TEST_ROW_RATIO) ** 0.5:.1f}",
    ]
    assert [cells[3][0], cells[3][1].partition(" ")[0]] == ["DPA - no attention", "-0.3"]


def test_the_pictures_against_the_dimension(tmp_path):
    report(
        {
            (setting, "reuters", "tsa", dim, 0): {
                "attention_weights": 4 * dim,
                "weights": 100 * dim,
                "train_accuracy": 0.9,
                "test_accuracy": 0.1 * dim,
                "seconds": 1.5,
            }
            for setting in SETTINGS
            for dim in (4, 8)
        },
        tmp_path,
    )
    assert (tmp_path / "tuned-dimensions.png").is_file()
    assert (tmp_path / "cost.png").is_file()
    assert "difference" not in (tmp_path / "tuned.md").read_text()


def test_bars_of_the_picture_are_deviations_over_seeds(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plots, "save", lambda figure, path: figures.append(figure))
    accuracies = {4: (0.5, 0.6, 0.7), 8: (0.9,)}
    plots.by_dimension(
        [
            {"dataset": "reuters", "attention": "tsa", "dim": dim}
            | {"attention_weights": dim, "train_accuracy": 1.0, "test_accuracy": accuracy}
            for dim, values in accuracies.items()
            for accuracy in values
        ],
        tmp_path / "dimensions.png",
    )
    bars = figures[0].axes[2].containers[0].lines[2][0].get_segments()
    np.testing.assert_allclose(bars, [[[4, 0.5], [4, 0.7]], [[8, 0.9], [8, 0.9]]])


def test_eleven_models_have_eleven_colors(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plots, "save", lambda figure, path: figures.append(figure))
    rows = [{"epoch": 1} | dict.fromkeys(("loss", "val_loss", "accuracy", "val_accuracy"), 0.5)]
    plots.by_epoch({f"model {n}": [rows] for n in range(11)}, tmp_path / "curves.png")
    assert len({tuple(line.get_color()) for line in figures[0].axes[0].lines}) == 11
    costs = {"dataset": "reuters", "setting": "tuned", "dim": 4, "weights": 9, "seconds": 1.5}
    names = [f"attention {n}" for n in range(11)]
    table = [costs | {"attention": name, "test_accuracy": 0.5} for name in names]
    plots.by_cost(table, tmp_path / "cost.png")
    assert len({tuple(line.get_color()) for line in figures[1].axes[0].lines}) == 11


def test_a_study_continues(tmp_path, monkeypatch, capsys):
    texts = [f"the {word} {n}" for n in range(10) for word in ("good film", "bad film")]
    data = LabeledTexts.from_rows(zip(texts, ["good", "bad"] * 10, strict=True))
    monkeypatch.setattr(tensorized, "read_texts", lambda config: data)
    arguments = ["tensorized", "--datasets", "reuters", "--settings", "tuned", "--attentions"]
    arguments += ["none", "--run-dir", str(tmp_path / "study"), "--seeds", "0"]
    assert main(arguments) == 0
    arguments[-1] = "1"  # the tables keep what is not chosen
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "run 1 of 1: tuned-reuters-none-64-0" in out
    assert "run 1 of 1: tuned-reuters-none-64-1" in out
    table = tmp_path / "study/results.csv"
    assert f"tuned,reuters,{SVM},0,0," in table.read_text()
    with Run(tmp_path / "study").lock():  # another process writes the tables
        third = threading.Thread(target=main, args=([*arguments, "0"],))
        third.start()
        third.join(0.5)
        assert third.is_alive()
    third.join()
    assert "run " not in capsys.readouterr().out
    with table.open(newline="") as file:
        result = list(csv.DictReader(file))
    assert [(r["attention"], r["seed"]) for r in result] == [
        *(("none", "0"), ("none", "1"), (SVM, "0"), (SVM, "1")),
        *((MOST_FREQUENT, "0"), (MOST_FREQUENT, "1")),
    ]
    assert all(float(r["seconds"]) > 0 for r in result[:4])
    assert [r["test_accuracy"] for r in result[4:]] == ["0.5", "0.5"]
    assert "difference" in (tmp_path / "study/tuned.md").read_text()

    # A run with other options than those of its setting is of another kind.
    path = tmp_path / "study/tuned-reuters-none-64-0/config.json"
    path.write_text(path.read_text().replace('"num_layers": 1', '"num_layers": 2'))
    assert [key[-1] for key in tensorized.finished_runs(tmp_path / "study")] == [1]


def test_an_unknown_data_set_is_refused(capsys):
    assert main(["tensorized", "--datasets", "imdb"]) == 2
    assert "--datasets" in capsys.readouterr().err
