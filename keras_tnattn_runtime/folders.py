"""Files and folders that are written completely or not at all."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

# Seconds after which what a killed export left is removed by the next one.
_ABANDONED = 24 * 3600


@contextlib.contextmanager
def made_folder(path: Path) -> Iterator[None]:
    """Makes a folder and its parents; those that stay empty are removed in the end."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for folder in new:
                folder.rmdir()


@contextlib.contextmanager
def partial_folder(path: Path) -> Iterator[Path]:
    """Yields a new folder beside `path`, in which the caller writes before it moves the result.

    Each caller has a folder of its own, so that two exports at the same time do not disturb each
    other. It is removed in the end, and so are folders that killed processes left a day ago.

    Args:
        path: Where the result is moved to; its parents are made, and removed if they stay empty.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with partial_folder(Path(folder, "model.txt")) as partial:
        ...         text = (partial / "model.txt").write_text("complete")
        ...         moved = (partial / "model.txt").rename(Path(folder, "model.txt"))
        ...     [found.name for found in Path(folder).iterdir()]
        ['model.txt']
    """
    prefix = ".partial-"
    for old in path.parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # gone in the meantime
            if old.stat().st_mtime < time.time() - _ABANDONED:
                shutil.rmtree(old)
    with made_folder(path.parent):
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{path.name}-", dir=path.parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Names the folder in errors of the system that name no file, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        message = f"{error.strerror}: could not write a model. Make room"
        if folder == Path(tempfile.gettempdir()):
            message += ", or set TMPDIR to another folder"
        raise OSError(error.errno, message, str(folder)) from error


def checked_target(path: Path, overwrite: bool) -> Path:
    """Returns where to write a file: of a link the file to which it points.

    Raises:
        FileExistsError: If the file exists, without `overwrite`, or is a folder.
        FileNotFoundError: If the folder does not exist.
    """
    if path.is_dir() or (os.path.lexists(path) and not overwrite):
        way_out = "" if path.is_dir() else ". Pass overwrite=True to replace it"
        raise FileExistsError(f"Expected a new file. Received: path={path}, which exists{way_out}")
    target = path.resolve() if path.is_symlink() else path
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"Expected a folder that exists. Received: path={path}, without {target.parent}"
        )
    return target


def write_file(target: Path, content: bytes) -> None:
    """Writes a file in one step, or leaves the one that exists as it is.

    Raises:
        OSError: If it cannot be written; a full disk is named by its folder.
    """
    with writing_to(target.parent), partial_folder(target) as folder:
        partial = folder / target.name
        partial.write_bytes(content)
        os.replace(partial, target)
