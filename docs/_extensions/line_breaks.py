"""Says where lines may break: nowhere in a shape, and between the words of a name in a title."""

import re

from docutils import nodes

SHAPE = re.compile(r"\([\w*?]+,(?: [\w*?.]+,?)*\)")
WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[._])(?=\w)")


def mark(app, doctree, name):
    for code in doctree.findall(nodes.literal):
        if SHAPE.fullmatch(code.astext()):
            code["classes"].append("shape")
    for title in doctree.findall(nodes.title):
        for text in list(title.findall(nodes.Text)):
            first, *others = WORDS.split(text)
            parts = [nodes.Text(first)]
            for other in others:
                parts += [nodes.raw("", "<wbr>", format="html"), nodes.Text(other)]
            text.parent.replace(text, parts)


def setup(app):
    app.connect("doctree-resolved", mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
