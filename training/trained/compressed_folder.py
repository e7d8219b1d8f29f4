"""The folder that `compress.py` writes: a small model, its reports and what a run needs."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.base.errors import InputError
from training.base.files import writing

# In the order in which they are written: a folder with `config.json` is complete.
_REPORTS = ("report.txt", "report.csv", "report.json", "curves.png")
_RUN_FILES = ("results.json", "data.json", "config.json")
# What `evaluate.py` and `explain.py` write about a model.
_MEASURED = ("evaluation-*", "hypotheses-*", "n_best-*", "explained")


def check_output(folder: Path, original: Path, replaces: bool) -> None:
    """Refuses a folder whose model would be overwritten or get the reports of another one.

    Args:
        folder: The folder to write.
        original: The model that is compressed.
        replaces: Whether a small model is written, and not only reports.

    Raises:
        InputError: If the folder has a trained model or, without `replaces`, any model.
    """
    from training.engine.runs import Run

    model, config = folder / "model.keras", folder / "config.json"
    compressed = (folder / "report.json").exists() and model.resolve() != original.resolve()
    if config.exists():
        compressed = compressed and "compressed" in (Run(folder).results or {})
    if (model.exists() or config.exists()) and not (replaces and compressed):
        what = "a trained model, which would be overwritten" if replaces else "a model"
        raise InputError(
            f"Expected an output folder without {what}. Received: output={folder}. Choose another "
            "with --output"
        )


def write(result: Any, folder: Path, replaces: bool, run_files: Mapping[str, str]) -> None:
    """Writes reports and, if asked for, the model; at no time next to those of another model.

    Args:
        result: What `compress` returned.
        folder: The folder, which exists.
        replaces: Whether to write the model, and not only the reports.
        run_files: The contents of `config.json`, `data.json` and `results.json`; empty for a model
            that is no run.

    Raises:
        WriteError: If a file cannot be written; the files of an earlier model are then unchanged.
    """
    partial = folder / ".partial"
    texts = {
        "report.txt": f"{result.report}\n",
        "report.csv": result.report.to_csv(),
        "report.json": result.report.to_json(),
        **run_files,
    }
    try:
        with writing(folder):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            for name, text in texts.items():
                (partial / name).write_text(text, encoding="utf-8")
            result.report.plot(partial / "curves.png")
            if replaces:
                result.model.save(partial / "model.keras")
                _delete_earlier(folder)
            for name in (*_REPORTS, "model.keras", *_RUN_FILES):
                if (partial / name).exists():
                    os.replace(partial / name, folder / name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _delete_earlier(folder: Path) -> None:
    """Deletes a compressed model, what makes its folder a run first and its reports last."""
    for name in reversed(_RUN_FILES):
        (folder / name).unlink(missing_ok=True)
    for path in [path for pattern in _MEASURED for path in folder.glob(pattern)]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for name in ("model.keras", *_REPORTS):
        (folder / name).unlink(missing_ok=True)
