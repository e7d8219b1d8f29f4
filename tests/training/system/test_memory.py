import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource
from keras_tnattn_train.system.memory import keep_freed_memory
print(keep_freed_memory())
import numpy as np
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(25_000_000, "float32")  # 100 MB, 24,415 pages
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_kept_unless_the_environment_decides():
    def kept_and_faults(**variables):
        unset = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
        command = [sys.executable, "-c", SCRIPT]
        run = subprocess.run(command, env=unset | variables, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        kept, faults = run.stdout.split()
        return kept == "True", int(faults)

    kept, faults = kept_and_faults()
    assert kept
    assert faults < 100
    assert not kept_and_faults(MALLOC_ARENA_MAX="2")[0]
