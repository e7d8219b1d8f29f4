"""Processes that this one starts."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Ends this process, one of `multiprocessing`, as soon as its parent has ended."""
    threading.Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
