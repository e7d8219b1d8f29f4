"""Runs functions in other processes.

Each is started anew, because a fork could not use TensorFlow, ends with this process, and leaves
Ctrl-C to it.
"""

import concurrent.futures
import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.processes.backend import start_backend

CALLS = 20  # after which `replaced_process` replaces its process


@contextlib.contextmanager
def other_processes(
    number: int, hint: str, start: Callable[..., None] = start_backend, *arguments: Any
) -> Iterator[concurrent.futures.Executor]:
    """Yields an executor of other processes, each of which first calls `start(*arguments)`.

    `hint` ends the error message if one is killed: what to do.
    """
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(number, context, _start, (start, arguments))
    try:
        yield pool
    except BrokenProcessPool as error:
        raise InputError(
            "Expected another process to reach its end. Received: one that was killed or crashed, "
            f"perhaps because the machine has too little memory. What is finished is kept: {hint}"
        ) from error
    except KeyboardInterrupt:
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start(start: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    start(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextlib.contextmanager
def replaced_process(calls: int) -> Iterator[Callable[..., Any]]:
    """Calls functions in another process, which is replaced after every `CALLS` calls.

    With TensorFlow, a process keeps some memory of every training step that it compiled until it
    ends, 20 to 100 MB for a classifier, so that after hundreds of trainings no memory would be
    left. If there are not more calls than `CALLS`, they are made in this process.
    """
    if calls <= CALLS:
        yield lambda function, *arguments: function(*arguments)
        return
    numbers = itertools.count()
    with contextlib.ExitStack() as process:
        pool: concurrent.futures.Executor

        def call(function: Callable[..., Any], *arguments: Any) -> Any:
            nonlocal pool
            if next(numbers) % CALLS == 0:
                process.close()
                pool = process.enter_context(other_processes(1, "run the same command again"))
            return pool.submit(function, *arguments).result()

        yield call


class Workers:
    """Processes that work at once. Use it in a `with` statement."""

    def __init__(self, number: int, hint: str, start: Callable[[], None]) -> None:
        self._number = number
        self._pool = other_processes(number, hint, start) if number > 1 else None

    def __enter__(self) -> "Workers":
        self._executor = self._pool.__enter__() if self._pool else None
        return self

    def __exit__(self, *error: Any) -> None:
        if self._pool is not None:
            self._pool.__exit__(*error)

    def results(self, work: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yields the results in the order in which they are finished."""
        if self._executor is None:
            yield from (work(*job) for job in jobs)
            return
        running: set[concurrent.futures.Future[Any]] = set()
        for job in jobs:
            if len(running) == 2 * self._number:
                finished, running = concurrent.futures.wait(
                    running, return_when=concurrent.futures.FIRST_COMPLETED
                )
                yield from (future.result() for future in finished)
            running.add(self._executor.submit(work, *job))
        for future in concurrent.futures.as_completed(running):
            yield future.result()
