"""The notebooks of the documentation have the outputs of their code, which runs."""

import re
import sys
from pathlib import Path

import keras
import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.append(str(DOCS))

from run_notebooks import NOTEBOOKS, digest, run, tidy  # noqa: E402  after the path is set

by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def outputs_of(notebook):
    return [cell.get("outputs", []) for cell in notebook.cells]


def printed(outputs):
    """Returns what outputs show, as lines of text; of a picture only that it is one."""
    shown = [x.text if x.output_type == "stream" else "".join(x.data.values()) for x in outputs]
    return "\n".join(
        "a picture" if "image/png" in x.get("data", {}) else text
        for x, text in zip(outputs, shown, strict=True)
    )


def words(outputs):
    """Returns what outputs show without figures, which differ between machines."""
    return re.sub(r"[\d.,]+", "#", printed(outputs))


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 3


@by_name
def test_outputs_are_of_the_present_code(path):
    notebook = nbformat.read(path, as_version=4)
    expected = "digest_of_code: run `make notebooks` after you changed the code of a notebook"
    assert notebook.metadata.digest_of_code == digest(notebook), expected


def test_another_digest_for_other_code():
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    before = digest(notebook)
    next(cell for cell in notebook.cells if cell.cell_type == "markdown").source += "More."
    assert digest(notebook) == before
    next(cell for cell in notebook.cells if cell.cell_type == "code").source += "\n1 + 1"
    assert digest(notebook) != before


@by_name
def test_outputs_are_for_readers(path):
    assert path.stat().st_size < 300_000
    outputs = [x for outputs in outputs_of(nbformat.read(path, as_version=4)) for x in outputs]
    assert any("image/png" in x.get("data", {}) for x in outputs)
    assert {x.get("name") for x in outputs} <= {None, "stdout"}
    text = printed(outputs)
    assert text
    for unwanted in (r"(?:^|[\s'\"(=])/\w+/", "WARNING", "\x1b", "\r", "\b", " at 0x"):
        assert not re.search(unwanted, text), unwanted


def test_only_the_last_state_of_a_line_is_kept():
    bar = "\x1b[1m1/2\x1b[0m ━━ \x1b[1m3s\x1b[0m 9ms/step - loss: 2"
    whole = "Epoch 1\r\n" + bar + "\b" * 20 + "\r" + bar.replace("1/2", "2/2") + "5\r\nend\r\n"
    outputs = [
        nbformat.v4.new_output("stream", name="stderr", text="a message"),
        nbformat.v4.new_output("stream", name="stdout", text=whole[:9]),
        nbformat.v4.new_output("stream", name="stdout", text=whole[9:]),
        nbformat.v4.new_output("stream", name="stdout", text="WARNING:tensorflow:slow\nlast\n"),
        nbformat.v4.new_output("display_data", data={"text/plain": "1"}),
    ]
    assert printed(tidy(outputs)) == "Epoch 1\nloss: 25\nend\nlast\n\n1"
    assert tidy(outputs[:1]) == []


@pytest.mark.slow
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the notebooks use the default backend"
)
@pytest.mark.filterwarnings("ignore")  # of the notebook server, not of ours
@by_name
def test_notebook_gives_its_outputs_again(path, monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    # An error in a cell raises; so does a picture that a failed command did not write.
    again = outputs_of(run(path))
    kept = outputs_of(nbformat.read(path, as_version=4))
    assert list(map(words, again)) == list(map(words, kept))
