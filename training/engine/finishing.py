"""Exporting what a run trained: found out before the training, done once after it.

What exports needs TensorFlow, and is imported by a run that exports alone.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from training.engine.runs import Run
from training.errors import InputError
from training.files import replacing
from training.options import RunConfig


def prepare_export(config: RunConfig) -> None:
    """Finds out before the training whether the model can be exported after it, if it is to be.

    Raises:
        InputError: If the backend does not export, or the folder cannot be written to.
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
            f"Expected a folder to export to. Received: {folder} ({error}). "
            "Choose another with --saved-models"
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
        config: What was trained.
        run: The run that trained the model.
        model: The model.
        results: What was measured.
        write: Exports the model, given the folder and the version; returns the version's folder.

    Returns:
        The results; with `exported`, the path of the exported model, if there is one.

    Raises:
        InputError: If the exported model cannot be written.
    """
    with replacing(run.folder / "model.keras") as path:
        model.save(path)
    if config.export:
        results["exported"] = str(_export_once(config, run, write))
    run.finish(results)
    return results


def _export_once(config: RunConfig, run: Run, write: Callable[[Path, int], Path]) -> Path:
    """Exports under a version noted in the run first: a continued run exports no second time,
    unless by other options."""
    import tensorflow as tf

    from keras_tnattn.export import next_version

    folder = config.export_folder
    try:
        if (run.export_note or {}).get("options") != config.export_options:
            run.write_export_note(
                {"options": config.export_options, "version": next_version(folder)}
            )
        version = run.export_note["version"]
        target = folder / str(version)
        if target.exists():
            return target
        return write(folder, version)
    except (OSError, tf.errors.OpError) as error:
        raise InputError(
            f"Expected a folder to export to. Received: {folder} ({error}). "
            "Make room there, then go on with --resume"
        ) from error
