"""A real data set of texts that needs no download: docstrings of the installed libraries."""

import ast
import importlib.util
import random
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from keras_tnattn_train.data.texts.labeled import LabeledTexts

# All of them are installed with the project's extra `dev`.
LIBRARIES = ("python", "numpy", "scipy", "sklearn", "matplotlib", "keras", "tensorflow", "jax")
MIN_WORDS = 20
# Bounds the time to read and to train; the files of a library are read in a shuffled order.
TEXTS_PER_LIBRARY = 1000
NOT_LIBRARY_CODE = {"site-packages", "test", "tests", "testing", "_vendor"}


def load_docstrings() -> LabeledTexts:
    """Reads docstrings of at least `MIN_WORDS` words, labeled by their library.

    Sources are parsed, not imported. Repeated texts, in the same library or in another, are
    dropped. The same installation always gives the same rows in the same order.
    """
    texts = {}
    for library in LIBRARIES:
        count = 0
        for text in _docstrings(library):
            if count == TEXTS_PER_LIBRARY:
                break
            if text not in texts:
                texts[text] = library
                count += 1
    note = f"a library gives at most {TEXTS_PER_LIBRARY} docstrings; repeated ones are dropped"
    return LabeledTexts.from_rows(texts.items(), (note,))


def _docstrings(library: str) -> Iterator[str]:
    root = _source_folder(library)
    if root is None:
        return
    files = sorted(
        path
        for path in root.rglob("*.py")
        if NOT_LIBRARY_CODE.isdisjoint(path.relative_to(root).parts) and "test" not in path.stem
    )
    random.Random(0).shuffle(files)
    for path in files:
        yield from _long_docstrings(_parse(path))


def _long_docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """Yields the long docstrings of a module, its classes, methods and functions."""
    text = ast.get_docstring(node)
    if text and len(text.split()) >= MIN_WORDS:
        yield text
    if not isinstance(node, ast.FunctionDef):
        for inner in node.body:
            if isinstance(inner, ast.ClassDef | ast.FunctionDef):
                yield from _long_docstrings(inner)


def _source_folder(library: str) -> Path | None:
    if library == "python":
        return Path(sysconfig.get_path("stdlib"))
    spec = importlib.util.find_spec(library)
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) if folders else None


def _parse(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        # Ignore warnings about the sources, for instance about invalid escapes.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # deliberately broken files, Python 2 templates
            return ast.Module(body=[], type_ignores=[])
