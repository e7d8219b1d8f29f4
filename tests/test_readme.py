"""README's blocks run as they stand there, and print what it shows."""

import os
import re
from pathlib import Path

import pytest
from import_path import run_python

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = ("classify_docstrings", "make_digits_small")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)
# A block, and what follows it as its output; of the last one, its last comment.
SHOWN = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", TEXT, re.M | re.S)
SHOWN.append((BLOCKS[-1], BLOCKS[-1].rpartition("#")[2]))


def numbers(text):
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]


def words(text):
    return re.sub(r"[\d,.]+", "", text).split()


@pytest.mark.parametrize(("block", "output"), SHOWN, ids=[*EXAMPLES, "load"])
def test_a_block_prints_what_is_shown(block, output, tmp_path):
    (tmp_path / "pasted.py").write_text(block, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("KERAS_BACKEND", None)  # a new user has not set it
    done = run_python("pasted.py", cwd=tmp_path, env=environment)
    assert words(done.stdout) == words(output)
    # Bytes within 2 %; accuracies, which differ between processors, within four points.
    for shown, printed in zip(numbers(output), numbers(done.stdout), strict=True):
        assert printed == pytest.approx(shown, rel=0.02, abs=4 if shown <= 100 else 0)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_blocks_are_those_of_make_demo(name):
    code = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert code in [block for block, _ in SHOWN]
    assert f"examples/{name}.py" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_each_block_chooses_the_backend_that_is_installed_first():
    first = [block for block in BLOCKS if "import keras" in block][:3]
    for block, backend in zip(first, ("jax", "jax", "numpy"), strict=True):
        assert f'os.environ.setdefault("KERAS_BACKEND", "{backend}")' in block


def test_the_block_of_keras_small_runs(tmp_path):
    text = (ROOT / "keras_small/README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "pasted.py").write_text(block, encoding="utf-8")
    assert 'os.environ.setdefault("KERAS_BACKEND", "jax")' in block  # which its README installs
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("KERAS_BACKEND", None)
    run_python("pasted.py", cwd=tmp_path, env=environment)
    assert (tmp_path / "small.keras").stat().st_size < 4 * (64 * 256 + 256 + 256 * 10 + 10) / 6
