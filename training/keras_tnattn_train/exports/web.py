"""Writes static pages on which a model runs in the browser."""

import contextlib
import gzip
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_tnattn.export.partial import partial_folder
from keras_tnattn.text.words import WordVectorizer
from keras_tnattn_train.exports.packing import packed_model, packed_words
from keras_tnattn_train.exports.portable import export_portable
from keras_tnattn_train.exports.portable_translator import export_portable_translator

# The package of npm whose files run the model, and which of them are shipped.
RUNTIME = "onnxruntime-web@1.30.0"
_RUNTIME_FILES = ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
_PAGE = Path(__file__).with_name("page")
_PAGE_FILES = ("index.html", "page.js", "reader.js", "unpacking.js")


def export_web(
    model: keras.Model,
    vectorizer: WordVectorizer,
    class_names: Sequence[str],
    folder: str | os.PathLike,
    texts: Sequence[str] = (),
    card: Mapping[str, Any] | None = None,
    runtime: str | os.PathLike | None = None,
) -> Path:
    """Writes a folder with a page that classifies texts, for any static server.

    Nothing leaves the visitor's device, and once the page is loaded no network is needed. Besides
    the page, the folder has what `export_portable` writes, and `onnxruntime-web`. Its weights take
    fewer bytes with the extra `coded`.

    Args:
        model: A model from ids `(B, L)` to class probabilities `(B, C)`.
        vectorizer: What turns texts into ids.
        class_names: The `C` names.
        folder: The new folder.
        texts: Texts with which the model is tried.
        card: Further entries of the model card; `name` is the title of the page, and the first of
            `examples` its first text.
        runtime: The folder of an unpacked `onnxruntime-web`, or its `.tgz` file. Default: it is
            fetched by `npm`, once, into the user's cache.

    Returns:
        The folder. To see the page: `python -m http.server --directory FOLDER`.

    Raises:
        FileExistsError: If the folder exists.
        FileNotFoundError: If `runtime` has no such files, or `npm` is needed and missing.
        ImportError: If the extra `onnx` is not installed.
        RuntimeError: If `npm` fails; or as `export_portable`.

    Example:
        ```python notest
        export_web(model, vectorizer, ["sports", "science"], "page")
        ```
    """

    def write(target: Path) -> Path:
        return export_portable(model, vectorizer, class_names, target, texts=texts, card=card)

    return write_page(folder, runtime, write)


def export_web_translator(
    model: keras.Model,
    source_tokenizer: Any,
    target_tokenizer: Any,
    folder: str | os.PathLike,
    runtime: str | os.PathLike | None = None,
    **options: Any,
) -> Path:
    """Writes a folder with a page that translates sentences, for any static server.

    As `export_web`: nothing leaves the visitor's device, and no network is needed.

    Args:
        model: A model of `keras_tnattn.models.translator`.
        source_tokenizer: The tokenizer of the source language.
        target_tokenizer: The tokenizer of the target language.
        folder: The new folder.
        runtime: As in `export_web`.
        **options: `beam_size`, `extra_tokens`, `length_penalty`, `texts` and `card`, as in
            `export_portable_translator`.

    Returns:
        The folder.

    Raises:
        FileExistsError: If the folder exists.
        FileNotFoundError: As `export_web`.
        ImportError: As `export_web`.
        RuntimeError: If `npm` fails; or as `export_portable_translator`.

    Example:
        ```python notest
        export_web_translator(model, source_tokenizer, target_tokenizer, "page", beam_size=4)
        ```
    """

    def write(target: Path) -> Path:
        return export_portable_translator(
            model, source_tokenizer, target_tokenizer, target, **options
        )

    return write_page(folder, runtime, write, ("pieces.js", "translator.js"))


def write_page(
    folder: str | os.PathLike,
    runtime: str | os.PathLike | None,
    write: Callable[[Path], Path],
    scripts: Sequence[str] = (),
) -> Path:
    """Writes a page around what `write` writes for onnxruntime into the folder that it gets.

    `scripts` are those that only pages of this kind have.
    """
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(
            f"Expected a new folder, because exports never overwrite. Received: {folder}"
        )
    with partial_folder(folder) as partial, _runtime_files(runtime) as files:
        whole = write(partial / "page")
        (whole / "reader.py").unlink()
        _pack(whole)
        for file in (
            *(_PAGE / name for name in (*_PAGE_FILES, *scripts)),
            *(files / name for name in _RUNTIME_FILES),
        ):
            shutil.copyfile(file, whole / file.name)
        return whole.rename(folder)


def _pack(folder: Path) -> None:
    """Replaces the text and the model's files of a folder by smaller ones."""
    text = folder / "text.json"
    content = json.loads(text.read_text("utf-8"))
    for rules in (content[key] for key in ("words", "pieces") if key in content):
        rules["vocabulary"] = packed_words(rules["vocabulary"])
    for entry in content["files"].values():
        file = folder / entry["name"]
        packed, entry["parts"] = packed_model(file)
        entry["name"] = f"{file.name}.gz"
        (folder / entry["name"]).write_bytes(packed)
        file.unlink()
    whole = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    (folder / "text.json.gz").write_bytes(gzip.compress(whole, mtime=0))
    text.unlink()


@contextlib.contextmanager
def _runtime_files(runtime: str | os.PathLike | None) -> Iterator[Path]:
    """Yields the folder with the runtime's files."""
    source = fetch_runtime() if runtime is None else Path(runtime)
    with tempfile.TemporaryDirectory() as unpacked:
        folder = source
        if not source.is_dir():
            folder = Path(unpacked)
            with tarfile.open(source) as archive:
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since 3.10.12
                archive.extractall(folder)
        folders = [path.parent for path in folder.rglob(_RUNTIME_FILES[0])]
        missing = [n for n in _RUNTIME_FILES if not folders or not (folders[0] / n).is_file()]
        if missing:
            raise FileNotFoundError(
                f"Expected the files of {RUNTIME}. Received: {source}, without {missing[0]}"
            )
        yield folders[0]


def fetch_runtime() -> Path:
    """Returns the file of the package, which npm fetches if it is not in the user's cache.

    Raises:
        FileNotFoundError: If `npm` is needed and missing.
        RuntimeError: If `npm` fails.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "keras_tnattn"
    path = cache / f"{RUNTIME.replace('@', '-')}.tgz"
    if path.is_file():
        return path
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError(
            f"Expected npm, which fetches {RUNTIME}. Install Node.js, or pass the folder of an "
            "unpacked package as runtime"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as partial:
        process = subprocess.run(
            [npm, "pack", RUNTIME], cwd=partial, capture_output=True, text=True, check=False
        )
        packed = list(Path(partial).glob("*.tgz"))
        if process.returncode or not packed:
            reason = (process.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise RuntimeError(f"npm could not fetch {RUNTIME}: {reason}")
        packed[0].rename(path)
    return path
