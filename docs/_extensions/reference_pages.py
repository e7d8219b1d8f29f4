"""Writes a reference page for each public module or subpackage, so that none is forgotten.

A page written by hand, `reference/NAME.md`, replaces the generated one.
"""

import importlib
import pkgutil
from pathlib import Path

import keras_tnattn

_INTERNAL = {"checks", "typing"}
_PAGE = "# {title}\n{parts}"
_PART = "\n{heading}```{{eval-rst}}\n.. automodule:: {name}\n```\n"


def write_pages(folder):
    """Writes `folder/NAME.md` for each part, and removes the pages of parts that no longer exist.

    Args:
        folder: Path of the folder.
    """
    pages = {
        f"{part.name}.md": _page(f"keras_tnattn.{part.name}", part.ispkg)
        for part in pkgutil.iter_modules(keras_tnattn.__path__)
        if part.name not in _INTERNAL and not (folder.parent / f"{part.name}.md").exists()
    }
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        # An unchanged file stays, because Sphinx would read it again.
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _page(name, is_package):
    """Returns the page of a module, or of a package with what its `__all__` or its folder lists."""
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", None)
    if not is_package:
        parts = [name]
    elif listed is None:
        parts = [f"{name}.{part.name}" for part in pkgutil.iter_modules(module.__path__)]
    else:
        inner = [f"{name}.{part.name}" for part in pkgutil.iter_modules(module.__path__)]
        parts = [part for part in inner if part.rpartition(".")[2] in listed] or [name]
    sections = [
        _PART.format(name=part, heading=f"## {part}\n\n" if len(parts) > 1 else "")
        for part in parts
    ]
    return _PAGE.format(title=name, parts="".join(sections))


def setup(app):
    write_pages(Path(app.srcdir, "reference/generated"))
    return {"parallel_read_safe": True}
