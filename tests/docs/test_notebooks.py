"""The notebooks of the documentation run from the first cell to the last."""

import os
from pathlib import Path

import pytest
from import_path import IMPORT_PATH

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(path):
    cells = nbformat.read(path, as_version=4).cells
    assert not any(cell.get("outputs") for cell in cells)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the notebook server, not of ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", IMPORT_PATH)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        pytest.skip("the notebooks use the default backend")
    notebook = nbformat.read(path, as_version=4)
    # An error in a cell raises; so does a picture that a failed command did not write.
    resources = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
    commands = [cell for cell in notebook.cells if "\n!" in f"\n{cell.source}"]
    for cell in commands:
        assert cell.outputs, cell.source
