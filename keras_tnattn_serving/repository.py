"""The models below a folder: found, loaded, swapped and unloaded while requests are served."""

import contextlib
import dataclasses
import enum
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_tnattn_runtime.layout import is_version
from keras_tnattn_serving import errors
from keras_tnattn_serving.batching import Batcher
from keras_tnattn_serving.servable import Servable

_ENDED = 100  # unloaded or failed versions that are remembered for each model
_PATIENCE_S = 10.0  # for which the next version waits, so that usually one loads at a time
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
        files: The files found in the folder; when they change it is loaded again, and the one that
            is loaded serves until then.
        state: Its state.
        error_code: TensorFlow's name for the error; `"OK"` if nothing failed.
        error_message: What failed.
        loaded: The model, or `None` while it is not loaded.
        batcher: What computes its batches; it has one as long as it is loaded.
        requests: How many requests use it now.
        load_began: When it began to load, in seconds of `time.monotonic`.
    """

    number: int
    path: Path
    files: tuple
    state: State = State.START
    error_code: str = "OK"
    error_message: str = ""
    loaded: Servable | None = None
    batcher: Batcher | None = None
    requests: int = 0
    load_began: float = 0.0

    @property
    def servable(self) -> Servable:
        """The loaded model; a version in use always has one."""
        if self.loaded is None:
            raise RuntimeError(f"Expected a version in use. Received: state={self.state}")
        return self.loaded

    @property
    def batches(self) -> Batcher:
        """What computes the batches; a version in use always has it."""
        if self.batcher is None:
            raise RuntimeError(f"Expected a version in use. Received: state={self.state}")
        return self.batcher

    def ages(self) -> list[float]:
        """The seconds for which each batch has been computed that is computed now."""
        return self.batcher.ages() if self.batcher else []

    @property
    def has_failed(self) -> bool:
        """Whether it could not be loaded."""
        return self.error_code != "OK"


class Repository:
    """The models of every `NAME/VERSION/` below a folder.

    The newest versions that load are served. A new version is loaded and warmed up in a thread of
    its own while the old one still answers; the old one is unloaded after its last request.

    Attributes:
        scanned: Whether the folder has been scanned once and its models loaded.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        served_versions: int,
        max_batch: int,
        load_s: float = 600.0,
        batcher: Callable[[], Batcher] | None = None,
        engine: str = "tensorflow",
    ) -> None:
        self.root = Path(root).resolve()
        self._served_versions, self._max_batch = served_versions, max_batch
        self._load_s, self._batcher, self._engine = load_s, batcher, engine
        self._models: dict[str, dict[int, Version]] = {}
        self._lock = threading.Lock()  # guards states and counts; never held during loading
        self._pending: dict[str, set[int]] = {}  # new models that wait for others to load
        self._looked = self.scanned = False

    def names(self) -> list[str]:
        """The names of the models that are, or were, in the folder."""
        with self._lock:
            return sorted(self._models)

    def loading(self) -> list[str]:
        """The names of the models of which a version is loading."""
        states = (State.START, State.LOADING)
        return [n for n in self.names() if any(v.state in states for v in self.versions(n))]

    def versions(self, name: str) -> list[Version]:
        """All known versions of a model, newest first; none if the model is unknown."""
        with self._lock:
            return sorted(self._models.get(name, {}).values(), key=lambda v: -v.number)

    def available(self, name: str) -> list[int]:
        """The versions of a model that answer requests, newest first."""
        return [v.number for v in self.versions(name) if v.state is State.AVAILABLE]

    def find(self, name: str, number: int | None = None) -> Version:
        """Returns a version that answers requests.

        Raises:
            RequestError: With 404 if there is none, 503 if it is loading.
        """
        with self._lock:
            return self._find(name, number)

    def _find(self, name: str, number: int | None) -> Version:
        versions = self._models.get(name, {})
        numbers = [n for n, v in versions.items() if v.state is State.AVAILABLE]
        if number in numbers:
            return versions[number]
        if number is None and numbers:
            return versions[max(numbers)]
        coming = {n for n, v in versions.items() if v.state in (State.START, State.LOADING)}
        coming |= self._pending.get(name, set())
        if number in coming or (number is None and coming) or not self._looked:
            raise errors.loading(name)
        error = errors.not_found(name, number)
        if any(v.has_failed for n, v in versions.items() if number in (None, n)):
            error.message += f". It could not be loaded; GET /v1/models/{name} says why"
        raise error

    @contextlib.contextmanager
    def use(self, name: str, number: int | None = None) -> Iterator[Version]:
        """Keeps a version loaded while a request uses it."""
        with self._lock:
            version = self._find(name, number)
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
            folders = self._scan()
        except OSError as error:  # keep serving what is loaded
            _log.warning("Could not read %s: %s", self.root, error)
            return
        self._looked = True
        self._pending = {n: set(v) for n, v in folders.items() if n not in self._models}
        for name in sorted({*self._models, *folders}):
            self._serve(name, folders.get(name, {}))
            self._pending.pop(name, None)
        self.scanned = True

    def _serve(self, name: str, folders: dict[int, tuple[Path, tuple]]) -> None:
        """Loads the newest versions that are not loaded yet, and unloads the others."""
        with self._lock:
            versions = self._models.setdefault(name, {})
            for each in versions.values():
                self._give_up(name, each)
        served: list[Version] = []
        for number in sorted(folders, reverse=True):
            if len(served) == self._served_versions:
                break
            path, files = folders[number]
            replacement = None
            with self._lock:
                version = versions.get(number)
                if version and version.state is State.UNLOADING:
                    version.state = State.AVAILABLE
                changed = version is not None and version.files != files
                if version is None or (
                    version.state is State.END and (not version.has_failed or changed)
                ):
                    version = versions[number] = Version(number, path, files)
                elif changed and version.state is State.AVAILABLE:
                    replacement, version.files = Version(number, path, files), files
            if version.state is State.START:
                self._load(name, version)
            elif replacement is not None:
                self._load(name, replacement)  # which takes its place once it is loaded
                version = versions[number]
            if version.state is State.AVAILABLE:
                served.append(version)
        with self._lock:
            self._retire(versions, served)

    def _give_up(self, name: str, version: Version) -> None:
        """Marks a version that loads for too long as failed; the caller holds the lock."""
        seconds = time.monotonic() - version.load_began
        if version.state is State.LOADING and seconds > self._load_s:
            version.error_code = "DEADLINE_EXCEEDED"
            version.error_message = f"It did not load within {self._load_s:g} s (--load-s)"
            version.state = State.END
            _log.warning("%s version %d: %s", name, version.number, version.error_message)

    def _retire(self, versions: dict[int, Version], served: list[Version]) -> None:
        """Unloads all versions but those served; the caller holds the lock."""
        for version in versions.values():
            if version.state is State.AVAILABLE and version not in served:
                version.state = State.UNLOADING
                self._release(version)
        ends = sorted(n for n, v in versions.items() if v.state is State.END)
        for number in ends[: max(0, len(ends) - _ENDED)]:
            del versions[number]

    def _load(self, name: str, version: Version) -> None:
        """Loads a version in a thread of its own, and waits for it for a while."""
        version.state, version.load_began = State.LOADING, time.monotonic()
        # A daemon, so that a version that never loads does not delay the process's exit.
        thread = threading.Thread(
            target=self._load_now, args=(name, version), name=f"load {name}", daemon=True
        )
        thread.start()
        thread.join(_PATIENCE_S)

    def _load_now(self, name: str, version: Version) -> None:
        try:
            _check_files(version.path.resolve(), self.root)
            servable = Servable(version.path, self._engine)
            servable.warm_up(self._max_batch)
        except Exception as error:
            _log.warning("%s version %d cannot be served: %s", name, version.number, error)
            with self._lock:
                if version.state is State.LOADING:  # not given up meanwhile
                    version.error_code = _code(error.__cause__ or error)
                    version.error_message = f"{type(error).__name__}: {error}"[:1000]
                    version.state = State.END
            return
        with self._lock:
            if version.state is not State.LOADING:
                return
            version.loaded, version.batcher = servable, self._batcher and self._batcher()
            version.state = State.AVAILABLE
            before = self._models[name].get(version.number)
            self._models[name][version.number] = version
            if before is not None and before.state is State.AVAILABLE and before is not version:
                before.state = State.UNLOADING
                self._release(before)
        _log.info("%s version %d is available, by %s", name, version.number, servable.engine)

    def _release(self, version: Version) -> None:
        """Unloads a version marked for it if no request uses it; the caller holds the lock."""
        if version.state is State.UNLOADING and not version.requests:
            if version.batcher:
                version.batcher.close()
            version.loaded = version.batcher = None
            version.state = State.END

    def _scan(self) -> dict[str, dict[int, tuple[Path, tuple]]]:
        """Returns path and files of each version, by model and number; leaves out models whose
        folder cannot be read, and that are not loaded either."""
        numbers_of = {}
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
                numbers_of[folder.name] = numbers
        return numbers_of

    def _scan_model(self, folder: Path) -> dict[int, tuple[Path, tuple]]:
        numbers = {}
        for path in _folders(folder):
            # A link must not lead out of the folder. `01` is not a version: the protocols name
            # versions by their number.
            inside = path.resolve().is_relative_to(self.root)
            if is_version(path.name) and inside:
                numbers[int(path.name)] = (path, _files(path))
        return numbers


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _check_files(folder: Path, root: Path) -> None:
    """Refuses what must not be in a version: links that lead out, and what is no file or folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            target, inside = path.resolve(), folder if path.is_dir() else root
            if not target.is_relative_to(inside):
                raise ValueError(
                    f"Expected links that stay in {inside}. Received: {path.name}, a link to "
                    f"{target}. Copy what it leads to"
                )
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ValueError(f"Expected files and folders. Received: {path}, which is neither")


def _files(folder: Path) -> tuple:
    """The names, sizes and times of a folder's files, which show whether it has changed."""
    files = []
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(OSError):
            status = path.stat()
            files.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return tuple(files)


def _code(error: BaseException) -> str:
    """TensorFlow's name for this kind of error."""
    if isinstance(error, FileNotFoundError):
        return "NOT_FOUND"
    names = {
        "DataLossError": "DATA_LOSS",
        "NotFoundError": "NOT_FOUND",
        "InvalidArgumentError": "INVALID_ARGUMENT",
        "ResourceExhaustedError": "RESOURCE_EXHAUSTED",
        "ImportError": "FAILED_PRECONDITION",
        "ValueError": "FAILED_PRECONDITION",
    }
    return names.get(type(error).__name__, "UNKNOWN")
