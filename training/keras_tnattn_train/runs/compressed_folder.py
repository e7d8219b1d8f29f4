"""The folder that `compress.py` writes: a small model, its reports and what a run needs."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_tnattn_runtime.folders import made_folder
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.system.files import writing

EARLIER = ".earlier"
DISCARDED = ".discarded"
_REPORTS = ("report.html", "report.txt", "report.csv", "report.json", "curves.png")
_RUN_FILES = ("results.json", "data.json", "config.json")
# What `--coded`, `--export`, `evaluate.py` and `explain.py` make of a model.
_DERIVED = (
    "model.tnz",
    "model.onnx",
    "model.tflite",
    "model.xml",
    "model.bin",
    "onnx",
    "litert",
    "evaluation-*.json",
    "confusion_matrix-*.png",
    "mistakes-*.csv",
    "hypotheses-*-beam*.txt",
    "n_best-*-beam*.tsv",
    "explained",
)


def check_output(folder: Path, original: Path, replaces: bool) -> None:
    """Refuses a folder whose model or other files are not those of an earlier compression.

    The files of a model that a killed process was about to replace are first moved back.
    """
    from keras_tnattn_train.runs.run import Run

    with writing(folder):
        _recover(folder)
    model = folder / "model.keras"
    config = folder / "config.json"
    compressed = (folder / "report.json").exists() and model.resolve() != original.resolve()
    if config.exists():
        compressed = compressed and "compressed" in (Run(folder).results or {})
    if (model.exists() or config.exists()) and not (replaces and compressed):
        what = "a trained model, which would be overwritten" if replaces else "a model"
        raise InputError(
            f"Expected an output folder without {what}. Received: output={folder}. Choose another "
            "with --output"
        )
    others = _names(folder)
    if others and not (folder / "report.json").exists():
        raise InputError(
            "Expected an output folder of an earlier compression, or without files of these names: "
            f"{', '.join(others)}. Received: output={folder}. Choose another with --output"
        )


@contextlib.contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Makes a folder before the long computations; new ones that stay empty are removed."""
    with contextlib.ExitStack() as stack:
        with writing(folder):
            stack.enter_context(made_folder(folder))
        yield


def write(
    result: Any,
    folder: Path,
    models: Sequence[str],
    run_files: Mapping[str, str],
    names: Sequence[str],
) -> None:
    """Writes reports and, if asked for, the model; all files of an earlier one give way, or none.

    Args:
        result: What `compress` returned.
        folder: Where to write.
        models: The names of the model's files, or none.
        run_files: Other files, as texts by name.
        names: What the page calls the model and, if there is one, its metric.

    Raises:
        WriteError: If a file cannot be written; the files of an earlier model are then unchanged.
            Those that cannot be moved back either stay in `.earlier`, and the next attempt moves
            them back.
    """
    partial, earlier, discarded = (folder / name for name in (".partial", EARLIER, DISCARDED))
    texts = {
        "report.html": result.report.to_html(*names),
        "report.txt": f"{result.report}\n",
        "report.csv": result.report.to_csv(),
        "report.json": result.report.to_json(),
        **run_files,
    }
    try:
        with writing(folder):
            _recover(folder)
            for path in (partial, discarded):
                shutil.rmtree(path, ignore_errors=True)
            for path in (partial, earlier):
                path.mkdir()
            for name, text in texts.items():
                (partial / name).write_text(text, encoding="utf-8")
            result.report.plot(partial / "curves.png")
            for name in models:
                result.save(partial / name)
            new = sorted(path.name for path in partial.iterdir())
            old = _names(folder) if models else [x for x in new if (folder / x).exists()]
            moves = [(folder / name, earlier / name) for name in old]
            moves += [(partial / name, folder / name) for name in new]
            # In one step: `_recover` must not find only some of the earlier files.
            moves.append((earlier, discarded))
            _move(moves)
        shutil.rmtree(discarded, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with contextlib.suppress(OSError):
            earlier.rmdir()  # unless an earlier file could not be moved back


def _recover(folder: Path) -> None:
    """Moves back the files of an earlier model that a write, which did not end, moved away."""
    earlier = folder / EARLIER
    if earlier.is_dir():
        for path in earlier.iterdir():
            os.replace(path, folder / path.name)
        earlier.rmdir()


def _names(folder: Path) -> list[str]:
    """Returns the names of the files in a folder that belong to a compressed model."""
    derived = [path.name for pattern in _DERIVED for path in folder.glob(pattern)]
    names = ("model.keras", *_REPORTS, *_RUN_FILES)
    return [name for name in names if (folder / name).exists()] + derived


def _move(moves: Sequence[tuple[Path, Path]]) -> None:
    """Moves files from sources to targets; undone if it fails."""
    done = []
    try:
        for source, target in moves:
            done.append((source, target))
            os.replace(source, target)
    except BaseException:
        for source, target in reversed(done):
            if os.path.lexists(target):
                os.replace(target, source)
        raise
