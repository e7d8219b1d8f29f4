"""Trains many models one after another in processes that are replaced.

With TensorFlow, a process keeps some memory of every training step that it compiled until it ends,
20 to 100 MB for a classifier, so that after hundreds of trainings no memory would be left.
"""

import concurrent.futures
import contextlib
import itertools
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.system.children import end_with_parent

CALLS = 20  # after which a process is replaced


@contextlib.contextmanager
def replaced_process(calls: int) -> Iterator[Callable[..., Any]]:
    """Calls functions in another process, which is replaced after every `CALLS` calls.

    If there are not more calls than that, they are made in this process.

    Args:
        calls: How many calls there will be at most.

    Yields:
        A function that calls its first argument, a function of a module, with the others. These
        and the result are pickled.

    Raises:
        InputError: If the other process is killed or crashes.
    """
    if calls <= CALLS:
        yield lambda function, *arguments: function(*arguments)
        return
    context, made = multiprocessing.get_context("spawn"), itertools.count()
    with contextlib.ExitStack() as process:
        pool: concurrent.futures.Executor

        def call(function: Callable[..., Any], *arguments: Any) -> Any:
            nonlocal pool
            if next(made) % CALLS == 0:
                process.close()
                pool = process.enter_context(
                    concurrent.futures.ProcessPoolExecutor(1, context, _start)
                )
            return pool.submit(function, *arguments).result()

        try:
            yield call
        except BrokenProcessPool as error:
            raise InputError(
                "Expected the process of a training to reach its end. Received: one that was "
                "killed or crashed, perhaps because the machine has too little memory. What is "
                "finished is kept: run the same command again"
            ) from error
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    end_with_parent()
    start_backend()
