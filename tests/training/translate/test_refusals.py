"""What `translate` refuses before a run's folder exists."""

import pytest
from run_folders import assert_refused
from translate_commands import command, table


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--corpus", "no_such_corpus"], ["corpus='no_such_corpus'"]),
        (["--num-heads", "3"], ["num_heads=3", "model_dim=8"]),
        (["--num-heads", "0"], ["num_heads=0"]),
        (["--attention", "sdpa"], ["residual_units=1", "attention='sdpa'"]),
        (["--preset", "sdpa", "--causal-metric"], ["attention='sdpa'"]),
        (["--preset", "sdpa", "--key-dropout", "0.1"], ["attention='sdpa'"]),
        (["--dropout", "1"], ["dropout=1.0"]),
        (["--learning-rate", "0"], ["learning_rate=0"]),
        (["--learning-rate", "nan"], ["learning_rate=nan"]),
        (["--warmup-steps", "0"], ["warmup_steps=0"]),
        (["--cooldown-epochs", "99"], ["cooldown_epochs=99"]),
        (["--epochs-after-best", "-1"], ["epochs_after_best=-1"]),
        (["--epochs-after-best", "3", "--early-stopping", "2"], ["early_stopping=2"]),
        (["--vocabulary-size", "3"], ["vocabulary_size=3"]),
        (["--max-length", "3"], ["max_length=3"]),
        (["--checkpoint-epochs", "2", "9"], ["checkpoint_epochs=[2, 9]"]),
        (["--batch-size", "0"], ["batch_size=0"]),
        (["--export-beam", "2"], ["export_beam=2"]),
        (["--export", "--export-beam", "0"], ["export_beam=0"]),
        (["--data-dir", "x"], ["data_dir='x'"]),
        (["--decoder-attention", "lstm"], ["--decoder-attention", '"lstm"', '"rgtn"']),
    ],
)
def test_bad_options_leave_no_folder(tmp_path, capsys, options, parts):
    corpus = table(tmp_path / "pairs.tsv")
    arguments = command(corpus, tmp_path / "runs/run", *options)
    prepared = "preparing" in assert_refused(capsys, arguments, *parts)
    assert prepared == (options[0] in ("--vocabulary-size", "--max-length"))
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.tsv"]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("pt\ten\num\tone\n", "at least 3 pairs"),
        ("pt\ten\n\tone\num\tone\n", "empty source"),
        ("pt\ten\n", "none"),
    ],
)
def test_bad_tables_leave_no_folder(tmp_path, capsys, content, part):
    (tmp_path / "pairs.tsv").write_text(content)
    arguments = command(str(tmp_path / "pairs.tsv"), tmp_path / "runs/run")
    assert_refused(capsys, arguments, part)
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.tsv"]


def test_files_of_unequal_length(tmp_path, capsys):
    (tmp_path / "a.pt").write_text("um\ndois\n")
    (tmp_path / "a.en").write_text("one\n")
    corpus = f"{tmp_path / 'a.pt'},{tmp_path / 'a.en'}"
    assert_refused(
        capsys, command(corpus, tmp_path / "run"), "same number of lines", "2 in", "1 in"
    )


def test_a_preparation_alone_has_its_own_options(tmp_path, capsys):
    arguments = ["translate", "--prepared", str(tmp_path), "--lower-case"]
    assert_refused(capsys, arguments, "lower_case=True", "prepared alone")
    arguments = ["translate", "--prepared", str(tmp_path), "--workers", "2"]
    assert_refused(capsys, arguments, "workers=2", "alone")
    arguments = ["translate", "--prepared", str(tmp_path), "--name", "x"]
    assert_refused(capsys, arguments, "prepared.json")
    assert_refused(capsys, ["translate", "--workers", "0"], "workers=0")
