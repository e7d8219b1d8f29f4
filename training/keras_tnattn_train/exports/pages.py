"""Exports static pages on which a model runs in the browser."""

import contextlib
import dataclasses
import gzip
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from keras_tnattn_runtime import reader
from keras_tnattn_runtime.folders import partial_folder
from keras_tnattn_train.exports.packing import packed_model, packed_words
from keras_tnattn_train.exports.portable import Portable
from keras_tnattn_train.exports.task import Task

# The package of npm whose files run the model, and which of them are shipped.
RUNTIME = "onnxruntime-web@1.30.0"
_RUNTIME_FILES = ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
_PAGE = Path(__file__).with_name("page")
_PAGE_FILES = ("index.html", "page.js", "reader.js", "sha256.js", "unpacking.js")


@dataclasses.dataclass(frozen=True)
class Page:
    """The form of a folder with a page that answers texts, for any static server.

    Nothing leaves the visitor's device, and once the page is loaded no network is needed. Besides
    the page, the folder has what `Portable` writes, packed, and `onnxruntime-web`. The weights take
    fewer bytes with the extra `coded`. Of the model card `name` is the title of the page, and the
    first of `examples` its first text. To see the page:
    `python -m http.server --directory FOLDER`.

    Args:
        runtime: The folder of an unpacked `onnxruntime-web`, or its `.tgz` file. Default: it is
            fetched by `npm`, once, into the user's cache.
    """

    runtime: str | os.PathLike | None = None

    def write(self, task: Task, folder: Path) -> Path:
        """Writes the folder, completely or not at all.

        Raises:
            FileNotFoundError: If `runtime` has no such files, or `npm` is needed and missing.
            RuntimeError: If `npm` fails.
        """
        with partial_folder(folder) as partial, _runtime_files(self.runtime) as files:
            page = Portable("onnxruntime").write(task, partial / "page")
            (page / "reader.py").unlink()
            _pack(page)
            for name in (*_PAGE_FILES, *task.scripts):
                shutil.copyfile(_PAGE / name, page / name)
            for name in _RUNTIME_FILES:
                shutil.copyfile(files / name, page / name)
            return page.rename(folder)


def _pack(folder: Path) -> None:
    """Replaces the text and the model's files of a folder by smaller ones."""
    text = folder / "text.json"
    content = reader.read_sealed(text)
    for rules in (content[key] for key in ("words", "pieces") if key in content):
        rules["vocabulary"] = packed_words(rules["vocabulary"])
    for entry in content["files"].values():
        file = folder / entry["name"]
        packed, entry["parts"] = packed_model(file)
        entry["name"] = f"{file.name}.gz"
        (folder / entry["name"]).write_bytes(packed)
        file.unlink()
    (folder / "text.json.gz").write_bytes(gzip.compress(reader.sealed(content), mtime=0))
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
