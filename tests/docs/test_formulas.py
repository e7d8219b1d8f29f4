"""Formulas of the pages become MathML, and no page asks another host for a script or a style."""

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.S)
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+?)\$", re.S)


@pytest.fixture
def mathml(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    return importlib.import_module("mathml")


def test_formulas_of_all_pages_are_converted(mathml):
    pages = [page for page in DOCS.glob("*/*.md") if "$" in page.read_text("utf-8")]
    assert len(pages) > 5
    for page in pages:
        for formula in FORMULA.findall(CODE.sub("", page.read_text("utf-8"))):
            text = mathml.convert("".join(formula))
            assert not re.findall(r">\\\w+<", text), (page.name, formula)  # an unknown command


@pytest.mark.parametrize(
    ("tag", "is_remote"),
    [
        ('<script src="https://cdn.example/mathjax.js"></script>', True),
        ('<script async="async" src="//cdn.example/mathjax.js"></script>', True),
        ('<link rel="stylesheet" href="https://cdn.example/katex.css" />', True),
        ('<script src="_static/documentation_options.js"></script>', False),
        ('<a href="https://arxiv.org/abs/2107.02039">a paper</a>', False),
    ],
)
def test_remote_files_are_found(mathml, tag, is_remote):
    assert bool(mathml.REMOTE.search(tag)) == is_remote


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_built_page_needs_no_network(tmp_path, mathml):
    from sphinx.application import Sphinx

    (tmp_path / "conf.py").write_text('extensions = ["myst_parser", "mathml"]\n')
    page = "# A page\n\nHere $x^2$ and\n\n$$y = \\sqrt{x}$$\n"
    (tmp_path / "index.md").write_text(page)
    options = {"html_math_renderer": "mathml", "myst_enable_extensions": ["dollarmath"]}
    built = tmp_path / "html"
    folders = (tmp_path, tmp_path, built, tmp_path / "trees")
    Sphinx(*folders, "html", options, None, None, warningiserror=True).build()
    html = (built / "index.html").read_text("utf-8")
    assert html.count("<math ") == 2
    assert "\\sqrt" not in html
    assert mathml.REMOTE.findall(html) == []
