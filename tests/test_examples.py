"""The scripts of `examples/` run, and do what they say."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name, **options):
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](**options)


@pytest.mark.slow
def test_text_classification(capsys):
    run("text_classification")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("food ")
    assert second.startswith("travel ")


def test_long_sequence(capsys):
    run("long_sequence", length=512)
    accuracy = re.search(r"512 tokens: (\d+)%", capsys.readouterr().out)
    assert int(accuracy[1]) >= 95


def test_smaller_dense_model(capsys):
    run("smaller_dense_model")
    lines = re.findall(r"([\d,]+) weights, test accuracy ([\d.]+)%", capsys.readouterr().out)
    weights = [int(count.replace(",", "")) for count, _ in lines]
    dense, converted, trained = [float(accuracy) for _, accuracy in lines]
    assert 10 * weights[1] < weights[0]
    assert weights[1] == weights[2]
    assert dense >= 95
    assert converted >= 40  # a guess is right in a quarter of the cases
    assert trained >= 95


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_is_short_and_run_here_or_in_readme(path):
    code = path.read_text(encoding="utf-8")
    assert len(code.splitlines()) < 60
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    assert f'run("{path.stem}"' in Path(__file__).read_text(encoding="utf-8") or code in readme
