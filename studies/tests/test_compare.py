import numpy as np
from run_folders import assert_refused

from keras_tnattn_studies.compare import table, table_configs
from keras_tnattn_studies.reproduce import main
from keras_tnattn_train.runs.run import Run


def result(attention, embedding, total, test_accuracy):
    return {
        "train_accuracy": 0.9,
        "test_accuracy": test_accuracy,
        "seconds_per_step": 0.0123,
        "parameters": {"attention": attention, "embedding": embedding, "all": total},
    }


def test_the_table_has_the_papers_columns():
    configs = table_configs({}, ["tsa", "dpa"], [0, 1])
    assert [c.embedding_dim for c in configs] == [64, 64, 6, 6]
    assert len({c.name for c in configs}) == 4
    results = [result(320, 64000, 66000, 0.8), result(320, 64000, 66000, 0.9)]
    results += [result(288, 6000, 7000, 0.5)] * 2
    baselines = {
        name: {
            seed: {"train_accuracy": train, "test_accuracy": test, "parameters": parameters}
            for seed, (test, parameters) in enumerate(fits)
        }
        for name, train, fits in (
            ("TF-IDF + SVM", 1.0, ((0.9, 10_000), (0.92, 12_000))),
            ("most frequent class", 0.3, ((0.25, 0), (0.25, 0))),
        )
    }
    lines = table(configs, results, baselines).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[2] == [
        *("TSA", "64", "320", "64,000", "66,000", "264", "90.0 ± 0.0", "85.0 ± 7.1", "12.3 ± 0.0")
    ]
    assert cells[3][:3] == ["DPA", "6", "288"]
    assert cells[4] == [
        *("TF-IDF + SVM", "-", "-", "-", "11,000", "44", "100.0 ± 0.0", "91.0 ± 1.4", "-")
    ]
    assert cells[5] == [
        *("most frequent class", "-", "-", "-", "-", "-", "30.0 ± 0.0", "25.0 ± 0.0", "-")
    ]
    assert len({len(line) for line in lines}) == 1


def test_texts_in_which_the_baseline_finds_no_words_are_compared_without_it(tmp_path, capsys):
    rows = [f"{'a c' if i % 2 else 'g t'},{i % 2}" for i in range(40)]
    (tmp_path / "dna.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    folder = tmp_path / "runs"
    command = ["compare", "--dataset", str(tmp_path / "dna.csv"), "--run-dir", str(folder)]
    command += ["--attentions", "dpa", "--max-words", "5", "--epochs", "1", "--seeds", "0"]
    assert main(command) == 0
    assert "Could not fit TF-IDF + SVM" in capsys.readouterr().out
    assert "TF-IDF" not in (folder / "table.md").read_text(encoding="utf-8")


def test_finished_runs_are_taken_as_they_are(tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = [
        f"{' '.join(rng.choice(['xx', 'yy', ('aa', 'bb')[i % 2]], 5))},{i % 2}" for i in range(60)
    ]
    (tmp_path / "table.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    folder = tmp_path / "runs"
    command = ["compare", "--dataset", str(tmp_path / "table.csv"), "--run-dir", str(folder)]
    command += ["--attentions", "dpa", "--max-words", "5", "--epochs", "1", "--seeds"]
    assert main([*command, "0"]) == 0
    trained = Run(folder / "table-dpa-0").results
    assert trained["parameters"]["attention"] == 288
    capsys.readouterr()
    assert main([*command, "0", "1"]) == 0
    printed = capsys.readouterr().out
    assert "run 1 of 2" not in printed
    assert "run 2 of 2: table-dpa-1" in printed
    assert (folder / "table.md").read_text(encoding="utf-8") in printed
    assert Run(folder / "table-dpa-0").results == trained

    assert_refused(capsys, [*command, "0", "--batch-size", "7"], "batch_size=7", main=main)

    (tmp_path / "table.csv").write_text("\n".join(["text,label", *rows, "z,a"]) + "\n")
    assert main([*command, "0", "2"]) == 2
    captured = capsys.readouterr()
    assert "other texts" in captured.err
    assert captured.err.count("\n") == 1
    assert "run 2 of 2" not in captured.out


def test_the_recipe_is_that_of_the_paper(capsys):
    assert main(["compare", "--help-all"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "[choices: tuned, paper] [default: paper]" in text
    assert "rows per step (tuned: 64; paper: 32)" in text
