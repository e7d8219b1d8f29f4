"""`make notebooks`: runs the notebooks of the documentation, and keeps them with their outputs.

    python docs/run_notebooks.py

The pages show the outputs that are kept, so that building them runs nothing. A notebook has the
digest of the code that made its outputs, by which a test tells that the code is still the same.
"""

import base64
import hashlib
import io
import os
import re
from pathlib import Path

import nbclient
import nbformat
from nbformat import NotebookNode
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
# What Keras writes before the figures of an epoch: the steps, a bar and the time.
PROGRESS = re.compile(r"^\d+/\d+ .* \S+/step - ", re.M)
COLOR = re.compile(r"\x1b\[[\d;]*m")
# TensorFlow prints its warnings in a notebook.
WARNING = re.compile(r"^WARNING:tensorflow:.*\n", re.M)


def digest(notebook: NotebookNode) -> str:
    """Returns the SHA-256 of the code cells."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\n\n".join(sources).encode()).hexdigest()


def run(path: Path) -> NotebookNode:
    """Returns a notebook with the outputs of its cells, as a reader should see them."""
    notebook = nbformat.read(path, as_version=4)
    language = notebook.metadata.language_info
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "training")])
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = tidy(cell.outputs)
    notebook.metadata.language_info = language  # without the version of Python
    notebook.metadata.digest_of_code = digest(notebook)
    return notebook


def tidy(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Returns outputs without messages to the error stream and warnings of TensorFlow.

    A line that was written over, such as a bar of progress, is there once.
    """
    printed = "".join(x.text for x in outputs if x.output_type == "stream" and x.name == "stdout")
    others = [x for x in outputs if x.output_type != "stream"]
    for output in others:
        if "image/png" in output.data:
            output.data["image/png"] = in_256_colors(output.data["image/png"])
    if not printed:
        return others
    plain = COLOR.sub("", printed).replace("\b", "\r").replace("\r\n", "\n")
    last = "\n".join(line.rstrip("\r").rpartition("\r")[2].rstrip() for line in plain.split("\n"))
    text = WARNING.sub("", PROGRESS.sub("", last))
    return [nbformat.v4.new_output("stream", name="stdout", text=text), *others]


def in_256_colors(picture: str) -> str:
    """Returns a picture, a PNG in base64, in a third of the bytes."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    file = io.BytesIO()
    image.quantize(256, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def main() -> None:
    """Runs all notebooks."""
    for path in NOTEBOOKS:
        notebook = run(path)
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
