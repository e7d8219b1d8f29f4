"""Several processes that answer on one port."""

import contextlib
import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from types import FrameType

# Where the processes count, for one page of metrics; prometheus_client reads it when imported.
METRICS = "PROMETHEUS_MULTIPROC_DIR"
_log = logging.getLogger(__name__)
_AGAIN_S = 1.0  # a worker that ends sooner after its start is replaced no sooner


def listen(host: str, port: int, shares: bool = False) -> socket.socket:
    """Binds a port; with `shares`, so that each worker can bind it, too.

    Raises:
        OSError: If somebody else listens there, with `shares` without sharing the port, or this
            system cannot share ports.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if shares and not (hasattr(os, "fork") and hasattr(socket, "SO_REUSEPORT")):
        raise OSError("this system shares no ports: use --workers 1")
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shares:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError):  # OverflowError: no port of that number
        listening.close()
        raise
    return listening


def run_workers(count: int, serve: Callable[[bool], None]) -> None:
    """Runs processes that serve, until this one receives SIGINT or SIGTERM.

    A process that ends before is replaced.

    Args:
        count: Their number.
        serve: What each does, told whether it is the first. It must not have begun to use
            threads.
    """
    stopping: list[int] = []
    workers: dict[int, float] = {}  # when each process began
    alive, owner = os.pipe()  # its end tells the workers that this process was killed

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.append(number)
        for process in list(workers):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(process, number)

    def start(first: bool = False) -> None:
        process = _fork(first, serve, alive, owner)
        workers[process] = time.monotonic()
        if stopping:
            os.kill(process, stopping[-1])

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with tempfile.TemporaryDirectory(prefix="keras_tnattn_serving") as folder:
        os.environ[METRICS] = folder
        for index in range(count):
            start(index == 0)
        while workers:
            process, status = os.wait()
            began = workers.pop(process, None)
            if stopping or began is None:  # the first process of a container gets others', too
                continue
            from prometheus_client import multiprocess

            multiprocess.mark_process_dead(process)
            _log.warning("worker %d ended with status %d", process, status)
            time.sleep(max(0.0, began + _AGAIN_S - time.monotonic()))
            start()


def _fork(first: bool, serve: Callable[[bool], None], alive: int, owner: int) -> int:
    """Returns the number of a new process that serves."""
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    process = os.fork()
    if process:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        return process
    status = 1
    try:  # whatever happens, the new process must not return to what the first one does
        os.close(owner)
        os.setsid()  # a terminal's interrupt reaches the first process alone, which hands it on
        for number in signals:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        threading.Thread(target=_end_with_owner, args=(alive,), daemon=True).start()
        serve(first)
        status = 0
    except Exception:
        _log.exception("A worker failed")
    finally:
        os._exit(status)


def _end_with_owner(alive: int) -> None:
    os.read(alive, 1)
    os.kill(os.getpid(), signal.SIGTERM)
