"""A run knows what it is: `predict` and `compress` ask its command."""

import json

import pytest
from run_folders import EXPORTS, assert_refused

from keras_tnattn_train.cli import main
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.tasks import TASKS, command_of, command_of_texts, task_commands

pytestmark = pytest.mark.usefixtures("eagerly")


def test_a_third_task_of_texts(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(TASKS, "questions", "invented_task")
    run = tmp_path / "run"
    assert main(["questions", "--run-dir", str(run)]) == 0
    assert json.loads((run / "config.json").read_text())["command"] == "questions"
    texts = ["is it far?", "it is early."]
    compressed = ["--target", "3", "--heal-epochs", "2"]
    compressed += (
        ["--export", "saved_model", "--saved-models", str(tmp_path / "saved")] if EXPORTS else []
    )
    assert main(["compress", str(run), *compressed]) == 0
    for folder in (run, run / "compressed"):
        capsys.readouterr()
        assert main(["predict", str(folder), *texts, "--format", "lines"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.partition("\t")[0] for line in lines] == ["question", "statement"]
    assert (tmp_path / "saved/questions-compressed/1").is_dir() is EXPORTS
    assert main(["evaluate", str(run)]) == 0
    assert capsys.readouterr().out == "10 texts\n"
    assert main(["explain", str(run), "text"]) == 2
    assert "classify or translate for explain. Received: " in capsys.readouterr().err
    assert main(["predict", str(run), *texts, "--beam", "2"]) == 2
    assert "Received: a run of questions, beam=2" in capsys.readouterr().err
    assert main(["compress", str(run), "--max-drop", "0.1"]) == 2
    assert "--max-drop needs" in capsys.readouterr().err


def test_the_run_of_another_command_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(TASKS, "questions", "invented_task")
    run = tmp_path / "run"
    assert main(["questions", "--run-dir", str(run), "--epochs", "1"]) == 0
    arguments = ["rules", "--run-dir", str(run), "--resume"]
    assert_refused(capsys, arguments, "Expected a run of rules. Received: one of questions")


def test_commands_that_read_texts():
    names = {command.name for command in task_commands() if command.loading is not None}
    assert {"classify", "translate"} <= names
    assert not names & {"rules", "nodes"}


def test_other_runs_are_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"command": "rules"}')
    with pytest.raises(InputError, match="classify or translate"):
        command_of_texts(tmp_path)
    with pytest.raises(InputError, match="of rules"):
        command_of(tmp_path).load(tmp_path)
