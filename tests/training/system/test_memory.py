import os
import platform
import subprocess
import sys

import pytest

from keras_tnattn_train.system import memory

SCRIPT = """
import resource
import threading
from keras_tnattn_train.processes.backend import start_backend
start_backend()
import numpy as np
from keras_tnattn_train.system.memory import give_back_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(25_000_000, "float32")  # 100 MB
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

def twice():
    np.ones(25_000_000, "float32")
    faults()

twice()
thread = threading.Thread(target=twice)
thread.start()
thread.join()
give_back_memory()
faults()
"""
PAGES = 100_000_000 // 4096


def faults_with(**variables):
    """Counts the page faults of 100 MB: again, again in a thread, after memory is given back."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    kept |= {"NUMPY_MADVISE_HUGEPAGE": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", SCRIPT]
    run = subprocess.run(command, env=kept | variables, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return [int(line) for line in run.stdout.split()]


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_kept_until_it_is_given_back():
    again, in_thread, after = faults_with()
    assert max(again, in_thread) < 0.1 * PAGES
    assert after > 0.9 * PAGES
    assert min(faults_with(MALLOC_ARENA_TEST="8")) > 0.9 * PAGES


@pytest.mark.parametrize(
    ("name", "value", "decides"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "131072", True),
        ("MALLOC_TRIM_THRESHOLD_", "", False),
        ("GLIBC_TUNABLES", "glibc.malloc.perturb=1:glibc.malloc.mmap_max=9", True),
        ("GLIBC_TUNABLES", "glibc.malloc.perturb=1", False),
        ("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=512", False),
        ("MALLOC_PERTURB_", "1", False),
    ],
)
def test_only_variables_about_freed_memory_decide(name, value, decides, monkeypatch):
    calls = []
    library = type("", (), {"mallopt": lambda self, *arguments: calls.append(arguments) or 1})()
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda path: library)
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(memory.os, "environ", {name: value})
    assert memory.keep_freed_memory() != decides
    assert bool(calls) != decides


def test_other_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", None)
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(memory.os, "environ", {})
    assert not memory.keep_freed_memory()
    memory.give_back_memory()
