"""Writes formulas as MathML, which browsers draw themselves, so that pages need no network.

The end of a build warns of pages that ask another host for a script or a style.
"""

import re
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

REMOTE = re.compile(r"<(?:script|link)\b[^>]*\b(?:src|href)=[\"'](?:https?:)?//[^>]*>")


def visit_inline(translator, node):
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_block(translator, node):
    translator.body.append(
        f'<div class="formula">{convert(node.astext(), display="block")}</div>\n'
    )
    raise nodes.SkipNode


def warn_of_remote(app, error):
    for path in [] if error else sorted(Path(app.outdir).rglob("*.html")):
        for tag in REMOTE.findall(path.read_text(encoding="utf-8")):
            logging.getLogger(__name__).warning("%s needs a network: %s", path, tag)


def setup(app):
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("build-finished", warn_of_remote)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
