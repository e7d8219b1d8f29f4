"""The processes that share a port."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from serving_servers import ROOT, wait_for

# As the first process of a container, this one has a child that is no worker.
OWNER = """
import os
import sys
import time

from keras_tnattn_serving.workers import run_workers

foreign = os.fork()
if not foreign:
    sys.stdin.readline()
    os._exit(3)
print(foreign, flush=True)


def serve(first):
    os.write(1, f"{os.getpid()} {first}\\n".encode())
    time.sleep(60)


run_workers(2, serve)
"""


def test_only_the_end_of_a_worker_begins_another(tmp_path):
    lines = tmp_path / "lines"
    with (
        lines.open("w") as stdout,
        subprocess.Popen(
            [sys.executable, "-c", OWNER], cwd=ROOT, stdin=subprocess.PIPE, stdout=stdout
        ) as owner,
    ):
        try:
            wait_for(lambda: lines.read_text().count("\n") == 3)
            foreign, *workers = lines.read_text().splitlines()
            owner.stdin.write(b"\n")
            owner.stdin.flush()
            wait_for(lambda: not Path("/proc", foreign).exists())
            time.sleep(0.5)
            assert lines.read_text().splitlines() == [foreign, *workers]
            os.kill(int(workers[0].split()[0]), signal.SIGKILL)
            wait_for(lambda: lines.read_text().count("\n") == 4)
            first = [line.split()[1] for line in lines.read_text().splitlines()[1:]]
            assert sorted(first) == ["False", "False", "True"]
            owner.terminate()
            assert owner.wait(20) == 0
        finally:
            owner.kill()
