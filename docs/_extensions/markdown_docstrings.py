"""Converts our docstrings, Markdown with Google's sections, to reStructuredText for autodoc.

In our docstrings, code has single backticks, examples can be fenced, and a block indented by four
spaces is a formula. reStructuredText needs two backticks and directives.

Also shows the signatures of Keras layers and models, which their `__new__` hides.
"""

import inspect
import re

_SECTION = re.compile(r"[A-Z][a-z]+( arguments)?:$")
_CODE = re.compile(r"(`+)(.+?)\1", re.S)


def to_restructured_text(lines):
    """Returns the lines of a docstring as reStructuredText; napoleon converts the sections."""
    result, in_section = [], False
    blocks = _blocks(lines)
    for i, (kind, block) in enumerate(blocks):
        indent = _indent(block[0])
        if kind == "fence":
            result += [" " * indent + ".. code-block:: python", "", *_indented(block[1:-1])]
        elif kind == "doctest":
            result += block
        elif kind == "text":
            if indent == 0:
                in_section = bool(_SECTION.match(block[0]))
            after_text = i > 1 and blocks[i - 1][0] == "blank"
            if indent >= 4 and not in_section and after_text:
                result += [".. code-block:: none", "", *block]
            else:
                result += _inline(block)
        else:
            result.append("")
    return result


def _blocks(lines):
    """Groups lines into `("text" | "doctest" | "fence" | "blank", lines)`."""
    blocks, fence = [], False
    for line in lines:
        stripped = line.strip()
        if fence:
            blocks[-1][1].append(line)
            fence = not stripped.startswith("```")
        elif stripped.startswith("```"):
            blocks.append(("fence", [line]))
            fence = True
        elif not stripped:
            blocks.append(("blank", [""]))
        elif blocks and blocks[-1][0] == "doctest":
            blocks[-1][1].append(line)
        elif stripped.startswith(">>>"):
            if blocks and blocks[-1][0] == "text":
                blocks.append(("blank", [""]))
            blocks.append(("doctest", [line]))
        elif blocks and blocks[-1][0] == "text":
            blocks[-1][1].append(line)
        else:
            blocks.append(("text", [line]))
    return blocks


def _inline(block):
    """Doubles the backticks of code and escapes what has a special meaning outside code."""
    pieces, last = [], 0
    text = "\n".join(block)
    for match in _CODE.finditer(text):
        pieces += [_escaped(text[last : match.start()]), f"``{match[2].strip()}``"]
        # Inline code may not touch a letter: `int`s.
        if text[match.end() : match.end() + 1].isalnum():
            pieces.append("\\ ")
        last = match.end()
    return "".join([*pieces, _escaped(text[last:])]).split("\n")


def _escaped(text):
    # Stars stay: `*args` starts a line of a section, others mark emphasis.
    text = re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", text)
    return text.replace("|", r"\|")


def _indented(lines):
    return [f"    {line}" for line in lines]


def _indent(line):
    return len(line) - len(line.lstrip())


def _process(app, what, name, obj, options, lines):
    # The docstring of a table of names would be that of `dict`.
    lines[:] = [] if what == "data" else to_restructured_text(lines)


def _signature(app, what, name, obj, options, signature, return_annotation):
    if what == "class" and signature == "(*args, **kwargs)":
        parameters = list(inspect.signature(obj.__init__).parameters.values())[1:]
        plain = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
        return str(inspect.Signature(plain)), return_annotation
    return None


def setup(app):
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"parallel_read_safe": True}
