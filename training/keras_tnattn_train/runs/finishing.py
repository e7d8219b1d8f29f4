"""Saves and exports a trained model.

Only runs that export import TensorFlow.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import ExportConfig, RunConfig
from keras_tnattn_train.runs.run import RESUME_HINT, Run
from keras_tnattn_train.system.files import WriteError, read_object, reason, replacing, write_json

if TYPE_CHECKING:
    import keras

NOTE = "export.json"  # what a run knows of its export


def finish(
    config: RunConfig,
    run: Run,
    model: "keras.Model",
    results: dict[str, Any],
    write: Callable[[Path, int], Path] | None = None,
) -> dict[str, Any]:
    """Saves the model, exports it if requested, and writes the results.

    Returns:
        The results; `exported` is the path of the exported model, if there is one.
    """
    from keras_small.coding.archives import saved_archive

    try:
        with replacing(run.folder / "model.keras") as path:
            path.write_bytes(saved_archive(model).getbuffer())
        if write is not None and isinstance(config, ExportConfig) and config.export:
            results["exported"] = str(_export_once(config, run, write))
        run.finish(results)
    except WriteError as error:
        raise InputError(f"{error}. {RESUME_HINT}") from error
    return results


def _export_once(config: ExportConfig, run: Run, write: Callable[[Path, int], Path]) -> Path:
    """Exports the model once. The version is written to the run's folder before and after, so that
    a resumed run does not export a second time, unless the options have changed. A version that
    another run has written in the meantime is not taken for its own."""
    from keras_tnattn.export.signatures import next_version

    folder = config.export_folder
    try:
        note = export_note(run)
        same = note.get("options") == config.export_options
        written = folder / str(note.get("version"))
        if same and written.exists() and note.get("complete"):
            return written
        if not same or written.exists():
            note = {"options": config.export_options, "version": next_version(folder)}
            write_json(run.folder / NOTE, {**note, "complete": False})
        target = write(folder, note["version"])
        write_json(run.folder / NOTE, {**note, "complete": True})
        return target
    except InputError:
        raise
    except OSError as error:
        raise WriteError(f"Could not export to {folder}: {reason(error)}") from error
    except Exception as error:  # the exporter of TensorFlow raises errors of any class
        from keras_tnattn.errors import cause_of

        raise WriteError(
            f"Could not export to {folder}: {cause_of(error)} ({type(error).__name__}). The "
            f"trained model is {run.folder / 'model.keras'}"
        ) from error


def export_note(run: Run) -> dict[str, Any]:
    """Returns the options and the version of the last export that was started, and whether it is
    complete; empty if there is none."""
    path = run.folder / NOTE
    if not path.exists():
        return {}
    return read_object(path, "Delete it, then continue with --resume")
