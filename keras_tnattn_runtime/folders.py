"""Folders that are written completely or not at all."""

import contextlib
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
