"""The command line where a package is missing, or another program was called."""

import os
import re
import sys
from pathlib import Path

import pytest
from import_path import IMPORT_PATH, run_python

import keras_tnattn
from keras_tnattn_runtime.extras import EXTRAS, missing_backend
from keras_tnattn_train import cli
from keras_tnattn_train.cli import PROGRAMS, main
from keras_tnattn_train.tasks import TASKS

ROOT = Path(__file__).parents[2]
MISSING = """
import sys
sys.modules[sys.argv[1]] = None
from keras_tnattn_train.cli import main
sys.exit(main(sys.argv[2:]))
"""


def without(package, *arguments):
    """Runs the command line without a package; returns its status and what it says on stderr."""
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    environment["PYTHONPATH"] = IMPORT_PATH
    if package == "jax":
        environment["KERAS_BACKEND"] = "numpy"  # which imports it
    finished = run_python("-c", MISSING, package, *arguments, status=None, env=environment)
    return finished.returncode, finished.stderr


@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [
        ("cyclopts", ["classify"], "train"),
        ("cyclopts", ["--help"], "train"),
        ("pydantic", ["--help"], "train"),
        ("cyclopts", ["predict", "runs/x"], "train"),
        ("cyclopts", ["launch", "--", "classify"], "train"),
        ("fastapi", ["serve", "saved_models"], "serve"),
    ],
)
def test_a_missing_package_is_told_in_one_line(package, command, extra):
    status, error = without(package, *command)
    assert status == 2
    told = f"Install the extra {extra} in a checkout: pip install '.[{extra}]'"
    assert error.endswith(f"error: {package} is not installed. {told}\n")
    assert "Traceback" not in error


def test_every_package_of_an_extra_has_a_hint():
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())
    modules = {"scikit_learn": "sklearn"}
    for extra, packages in project["project"]["optional-dependencies"].items():
        if extra in ("all", "docs", "dev"):
            continue
        names = {re.match(r"[\w-]+", package)[0].replace("-", "_") for package in packages}
        own = {modules.get(name, name) for name in names if name != "keras_tnattn"}
        shared = {"tensorflow"} if extra in ("serve", "text") else set()
        assert {EXTRAS[name] for name in own - shared} == {extra}
    named = re.findall(r"\w+", " ".join(project["project"]["optional-dependencies"]["all"]))
    assert set(EXTRAS.values()) - {"hub", "jax", "torch"} <= set(named)


# The ways out without a backend, on the machine of this test.
OTHERS = {name: missing_backend(name).partition("', ")[2] + "\n" for name in ("jax", "tensorflow")}


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_the_library_names_the_missing_backend_in_one_sentence(backend):
    code = f"import sys; sys.modules[{backend!r}] = None; import keras_tnattn"
    done = run_python("-c", code, status=1, backend=backend)
    assert done.stderr.endswith(f"\nModuleNotFoundError: {missing_backend(backend)}\n")
    assert len(done.stderr.splitlines()) == 5
    ways_out = r"pip install '\.\[\w+\]'(, or set KERAS_BACKEND=\w+, which is installed)?\n$"
    assert re.search(ways_out, done.stderr)


@pytest.mark.parametrize(
    ("package", "command", "file", "extra"),
    [
        ("tensorflow", "compress", "model.keras", f"'.[tensorflow]', {OTHERS['tensorflow']}"),
        ("jax", "compress", "model.keras", f"'.[jax]', {OTHERS['jax']}"),
        ("pyarrow", "classify", "a.parquet", "'.[parquet]'\n"),
    ],
)
def test_what_is_missing_names_its_extra(package, command, file, extra, tmp_path):
    (tmp_path / file).touch()
    status, error = without(package, command, str(tmp_path / file))
    assert status == 2
    last = error.splitlines(True)[-1]
    assert last.startswith(f"error: {package} is not installed. Install the extra ")
    assert last.endswith(f" in a checkout: pip install {extra}")


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{keras_tnattn.__version__}\n"


def test_every_command_is_listed(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f" {name} " in out for name in (*TASKS, *PROGRAMS))
    assert all(f"extra {name})" in " ".join(out.split()) for name in ("serve", "text"))


def test_help_begins_with_the_words_to_type(capsys):
    for name in (*TASKS, *PROGRAMS.keys() - {"serve"}):
        assert main([name, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"Usage: keras-tnattn {name} ")


@pytest.mark.parametrize("program", ["evaluate", "explain"])
def test_the_missing_folder_of_a_run_is_named(program, tmp_path, capsys):
    folder = tmp_path / "none"
    assert main([program, str(folder), "a text"]) == 2
    assert f"Received: {folder}, which does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["evaluate", "explain"])
def test_a_model_of_the_package_is_no_run(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([program, "docstrings", "a text"]) == 2
    said = f"Received: docstrings, a model that comes with the package, without a run to {program}"
    error = capsys.readouterr().err
    assert said in error
    assert "Expected the folder of a run of classify or translate" in error


def test_a_run_to_resume_that_does_not_exist(tmp_path, capsys):
    folder = tmp_path / "none"
    assert main(["classify", "--resume", "--run-dir", str(folder)]) == 2
    assert f"Received: {folder}. Leave out --resume" in capsys.readouterr().err


def test_studies_are_found_in_the_present_folder(tmp_path, monkeypatch, capsys):
    installed = tmp_path / "site-packages/keras_tnattn_train/cli.py"
    monkeypatch.setattr(cli, "__file__", str(installed))
    monkeypatch.chdir(tmp_path)
    assert cli.reproduce(["--help"]) == 2
    assert f"in the folder of a clone. Received: {tmp_path}" in capsys.readouterr().err
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.path", list(sys.path))
    assert cli.reproduce(["--help"]) == 0
    assert sys.path[-1] == str(ROOT / "studies")
