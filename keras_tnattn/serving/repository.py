"""The models below a folder: found, loaded, swapped and unloaded while requests are served."""

import contextlib
import dataclasses
import enum
import logging
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from keras_tnattn.serving.errors import not_found
from keras_tnattn.serving.servable import Servable

_ENDED = 100  # unloaded or failed versions that are remembered for each model
_log = logging.getLogger(__name__)


class State(enum.Enum):
    """The states of a version, as TensorFlow Serving names them."""

    START = enum.auto()
    LOADING = enum.auto()
    AVAILABLE = enum.auto()
    UNLOADING = enum.auto()
    END = enum.auto()


@dataclasses.dataclass(eq=False)
class Version:
    """One version of a model.

    Args:
        number: Its number.
        path: Its folder.
        files: The files found in the folder; a version that could not be loaded is tried again
            when they change.
        state: Its state.
        error_code: TensorFlow's name for the error; `"OK"` if nothing failed.
        error_message: What failed.
        loaded: The model, or `None` while it is not loaded.
        requests: How many requests use it now.
    """

    number: int
    path: Path
    files: tuple
    state: State = State.START
    error_code: str = "OK"
    error_message: str = ""
    loaded: Servable | None = None
    requests: int = 0

    @property
    def servable(self) -> Servable:
        """The loaded model; a version in use always has one."""
        if self.loaded is None:
            raise RuntimeError(f"Expected a version in use. Received: state={self.state}")
        return self.loaded

    @property
    def failed(self) -> bool:
        """Whether it could not be loaded."""
        return self.error_code != "OK"


class Repository:
    """The models of every `NAME/VERSION/` below a folder.

    The newest versions that load are served. A new version is loaded and warmed up while the old
    one still answers; the old one is unloaded after its last request.

    Args:
        root: The folder.
        served_versions: How many of the newest versions of a model are served.
        max_batch: The batch that versions are warmed up with.

    Attributes:
        scanned: Whether the folder has been scanned once and its models loaded.
    """

    def __init__(self, root: str | os.PathLike, served_versions: int, max_batch: int) -> None:
        self.root = Path(root).resolve()
        self._served_versions, self._max_batch = served_versions, max_batch
        self._models: dict[str, dict[int, Version]] = {}
        self._lock = threading.Lock()  # guards states and counts; never held during loading
        self.scanned = False

    def names(self) -> list[str]:
        """The names of the models that are, or were, in the folder."""
        with self._lock:
            return sorted(self._models)

    def versions(self, name: str) -> list[Version]:
        """All known versions of a model, newest first; none if the model is unknown."""
        with self._lock:
            return sorted(self._models.get(name, {}).values(), key=lambda v: -v.number)

    def available(self, name: str) -> list[int]:
        """The versions of a model that answer requests, newest first."""
        return [v.number for v in self.versions(name) if v.state is State.AVAILABLE]

    @contextlib.contextmanager
    def use(self, name: str, number: int | None = None) -> Iterator[Version]:
        """Keeps a version loaded while a request uses it.

        Args:
            name: The model.
            number: The version. Default: the newest that is available.

        Raises:
            RequestError: With 404, if it is not available.
        """
        with self._lock:
            versions = self._models.get(name, {})
            numbers = [n for n, v in versions.items() if v.state is State.AVAILABLE]
            if not numbers or (number is not None and number not in numbers):
                raise not_found(name, number)
            version = versions[max(numbers) if number is None else number]
            version.requests += 1
        try:
            yield version
        finally:
            with self._lock:
                version.requests -= 1
                self._release(version)

    def refresh(self) -> None:
        """Scans the folder once: loads new versions, unloads those that are gone or outdated."""
        try:
            found = self._scan()
        except OSError as error:  # keep serving what is loaded
            _log.warning("Could not read %s: %s", self.root, error)
            return
        for name in sorted({*self._models, *found}):
            self._refresh(name, found.get(name, {}))
        self.scanned = True

    def _refresh(self, name: str, found: dict[int, tuple[Path, tuple]]) -> None:
        with self._lock:
            versions = self._models.setdefault(name, {})
        served: list[Version] = []
        for number in sorted(found, reverse=True):
            if len(served) == self._served_versions:
                break
            path, files = found[number]
            with self._lock:
                version = versions.get(number)
                if version and version.state is State.UNLOADING:
                    version.state = State.AVAILABLE
                if version is None or (
                    version.state is State.END and (not version.failed or version.files != files)
                ):
                    version = versions[number] = Version(number, path, files)
            if version.state is State.START:
                self._load(name, version)
            if version.state is State.AVAILABLE:
                served.append(version)
        with self._lock:
            for version in versions.values():
                if version.state is State.AVAILABLE and version not in served:
                    version.state = State.UNLOADING
                    self._release(version)
            ended = sorted(n for n, v in versions.items() if v.state is State.END)
            for number in ended[: max(0, len(ended) - _ENDED)]:
                del versions[number]

    def _load(self, name: str, version: Version) -> None:
        version.state = State.LOADING
        try:
            servable = Servable(version.path)
            servable.warm_up(self._max_batch)
        except Exception as error:
            _log.warning("%s version %d cannot be served: %s", name, version.number, error)
            with self._lock:
                version.error_code = _code(error)
                version.error_message = f"{type(error).__name__}: {error}"[:1000]
                version.state = State.END
            return
        with self._lock:
            version.loaded = servable
            version.state = State.AVAILABLE
        _log.info("%s version %d is available", name, version.number)

    def _release(self, version: Version) -> None:
        """Unloads a version marked for it if no request uses it; the caller holds the lock."""
        if version.state is State.UNLOADING and not version.requests:
            version.loaded = None
            version.state = State.END

    def _scan(self) -> dict[str, dict[int, tuple[Path, tuple]]]:
        """Returns path and files of each version, by model and number; leaves out models whose
        folder cannot be read, and that are not loaded either."""
        found = {}
        for folder in _folders(self.root):
            if not re.fullmatch(r"\w[\w.-]*", folder.name):
                continue
            try:
                numbers = self._scan_model(folder)
            except OSError as error:  # keep serving what is loaded of this model
                _log.warning("Could not read %s: %s", folder, error)
                loaded = self.versions(folder.name)
                numbers = {v.number: (v.path, v.files) for v in loaded if v.loaded is not None}
            if numbers:
                found[folder.name] = numbers
        return found

    def _scan_model(self, folder: Path) -> dict[int, tuple[Path, tuple]]:
        numbers = {}
        for path in _folders(folder):
            # A link must not lead out of the folder. `01` is not a version: the protocols name
            # versions by their number.
            inside = path.resolve().is_relative_to(self.root)
            if re.fullmatch(r"[1-9][0-9]{0,17}", path.name) and inside:
                numbers[int(path.name)] = (path, _files(path))
        return numbers


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _files(folder: Path) -> tuple:
    """The names, sizes and times of a folder's files, which show whether it has changed."""
    files = []
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(OSError):
            status = path.stat()
            files.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return tuple(files)


def _code(error: Exception) -> str:
    """TensorFlow's name for this kind of error."""
    if isinstance(error, FileNotFoundError):
        return "NOT_FOUND"
    names = {
        "DataLossError": "DATA_LOSS",
        "NotFoundError": "NOT_FOUND",
        "InvalidArgumentError": "INVALID_ARGUMENT",
        "ResourceExhaustedError": "RESOURCE_EXHAUSTED",
        "ImportError": "FAILED_PRECONDITION",
    }
    return names.get(type(error).__name__, "UNKNOWN")
