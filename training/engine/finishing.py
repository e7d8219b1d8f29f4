"""Exporting a trained model: checked before the training, done once after it.

Exporting needs TensorFlow, which is imported only by runs that export.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from training.engine.runs import RESUME, Run
from training.errors import InputError
from training.files import WriteError, reason, replacing
from training.options import RunConfig


def prepare_export(config: RunConfig) -> None:
    """Checks before the training that the model can be exported after it, if it should be.

    Raises:
        InputError: If the backend cannot export, or the folder cannot be written to.
    """
    if not config.export:
        return
    from keras_tnattn.export import check_backend

    folder = config.export_folder
    try:
        check_backend()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except RuntimeError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(
            f"Could not write to the export folder {folder}: {reason(error)}. Choose another with "
            "--saved-models"
        ) from error


def finish(
    config: RunConfig,
    run: Run,
    model: keras.Model,
    results: dict[str, Any],
    write: Callable[[Path, int], Path],
) -> dict[str, Any]:
    """Saves the model, exports it if the config says so, and writes the results.

    Args:
        config: The options of the run.
        run: The run that trained the model.
        model: The model.
        results: The measurements.
        write: Exports the model, given the folder and the version; returns the version's folder.

    Returns:
        The results, with the path of the exported model, if there is one, as `exported`.

    Raises:
        InputError: If a file cannot be written.
    """
    try:
        with replacing(run.folder / "model.keras") as path:
            model.save(path)
        results["model_bytes"] = (run.folder / "model.keras").stat().st_size
        if config.export:
            results["exported"] = str(_export_once(config, run, write))
        run.finish(results)
    except WriteError as error:
        raise InputError(f"{error}. {RESUME}") from error
    return results


def _export_once(config: RunConfig, run: Run, write: Callable[[Path, int], Path]) -> Path:
    """Exports under a version that is noted in the run first, so that a resumed run does not export
    a second time, unless with other options."""
    import tensorflow as tf

    from keras_tnattn.export import next_version

    folder = config.export_folder
    try:
        note = run.export_note or {}
        if note.get("options") != config.export_options:
            note = {"options": config.export_options, "version": next_version(folder)}
            run.write_export_note(note)
        version = note["version"]
        target = folder / str(version)
        if target.exists():
            return target
        return write(folder, version)
    except (OSError, tf.errors.OpError) as error:
        text = reason(error) if isinstance(error, OSError) else error.message
        raise WriteError(f"Could not export to {folder}: {text}") from error
