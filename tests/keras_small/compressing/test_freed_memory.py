"""Freed memory goes back to the system."""

import platform
from pathlib import Path

import numpy as np
import pytest

from keras_small.survey.freed_memory import give_back_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries keep less")
def test_blocks_between_others_are_given_back():
    blocks = [np.ones(2**13) for _ in range(2000)]
    kept = blocks[::2]
    del blocks
    before = own_bytes()
    give_back_memory()
    assert own_bytes() < before - sum(block.nbytes for block in kept) / 2


def own_bytes():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])
