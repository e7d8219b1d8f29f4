import json
import os
import signal
import threading
import time

import pytest

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.processes import workers
from keras_tnattn_train.processes.workers import replaced_process


def test_few_calls_are_made_in_this_process():
    with replaced_process(workers.CALLS) as call:
        assert call(os.getpid) == os.getpid()


def _call_and_crash():
    with replaced_process(3) as call:
        first = call(os.getpid)
        with pytest.raises(ValueError, match="Expecting value"):
            call(json.loads, "x")
        assert len({first, call(os.getpid), os.getpid()}) == 3
        call(os._exit, 1)


@pytest.mark.slow
def test_many_calls_are_made_in_processes_that_are_replaced(monkeypatch):
    monkeypatch.setattr(workers, "CALLS", 2)
    with pytest.raises(InputError, match="run the same command again"):
        _call_and_crash()


def _slow(path):
    time.sleep(30)
    path.touch()


def test_an_interrupt_ends_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "CALLS", 1)
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt), replaced_process(2) as call:
        call(_slow, tmp_path / "ended")
    assert not (tmp_path / "ended").exists()
