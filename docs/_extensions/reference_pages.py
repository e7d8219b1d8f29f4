"""Writes a reference page for each public module, and for each part of a package.

A page written by hand, `reference/NAME.md`, replaces the generated one.
"""

import importlib
import inspect
import pkgutil
from pathlib import Path

import keras_small
import keras_tnattn

_INTERNAL = {"checks", "errors", "typing"}
_WITH_OWN_PAGES = {"__version__", *keras_small.storage.__all__}
_PAGE = "# {title}\n\n```{{eval-rst}}\n.. {directive}:: {name}\n```\n"
_PACKAGE = "# {title}\n\n{summary}\n\n{lines}\n\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"


def write_pages(folder):
    """Writes the pages into a folder, and removes those of parts that no longer exist.

    Args:
        folder: Path of the folder.
    """
    pages = {}
    for part in pkgutil.iter_modules(keras_tnattn.__path__):
        if part.name not in _INTERNAL and not (folder.parent / f"{part.name}.md").exists():
            pages |= _pages(f"keras_tnattn.{part.name}", part.name)
    pages |= _pages("keras_small", "keras_small")
    pages |= _pages("keras_small.storage", "storage")
    pages |= _pages("keras_small.runtimes", "runtimes")
    for path in folder.rglob("*.md"):
        if str(path.relative_to(folder)) not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # An unchanged file stays, because Sphinx would read it again.
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _pages(name, part):
    """Returns the pages of a module by their paths in the folder, which begin with `part`."""
    module = importlib.import_module(name)
    listed = list(getattr(module, "__all__", ()))
    if module is keras_small:  # whose layers have a page of their own
        listed = [entry for entry in listed if entry not in _WITH_OWN_PAGES]
    if not listed and hasattr(module, "__path__"):
        listed = [entry.name for entry in pkgutil.iter_modules(module.__path__)]
    if len(listed) < 2:
        return {f"{part}.md": _PAGE.format(title=name, directive="automodule", name=name)}
    pages, lines = {}, []
    for entry in listed:
        thing, directive = _documented(f"{name}.{entry}", getattr(module, entry, None))
        path = f"{part}/{entry}.md"
        pages[path] = _PAGE.format(title=entry, directive=directive, name=f"{name}.{entry}")
        lines.append(f"- [{entry}]({path}): {_summary(thing)}")
    toctree = "\n".join(f"{part}/{entry}" for entry in listed)
    text = _PACKAGE.format(
        title=name, summary=inspect.getdoc(module) or "", lines="\n".join(lines), pages=toctree
    )
    return {f"{part}.md": text, **pages}


def _documented(name, thing):
    """Returns what a page documents, and the directive of autodoc for it."""
    if thing is None or inspect.ismodule(thing):
        return thing or importlib.import_module(name), "automodule"
    if inspect.isclass(thing):
        return thing, "autoclass"
    return thing, "autofunction" if callable(thing) else "autodata"


def _summary(thing):
    if isinstance(thing, dict):
        return ", ".join(f"`{name}`" for name in thing)
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def setup(app):
    write_pages(Path(app.srcdir, "reference/generated"))
    return {"parallel_read_safe": True}
