"""The lock of a folder, between processes and threads."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.system.locks import folder_lock


def test_one_at_a_time(tmp_path):
    folder = tmp_path / "new" / "run"
    with folder_lock(folder) as first:
        assert first
        with folder_lock(folder) as second, folder_lock(tmp_path / "other") as of_another:
            assert not second
            assert of_another
        with folder_lock(folder) as third:
            assert not third
    with folder_lock(folder) as again:
        assert again


@pytest.mark.parametrize("name", [".", "../run", "link", "sub/..", "../run/"])
def test_another_name_of_the_same_folder(tmp_path, monkeypatch, name):
    (tmp_path / "run" / "sub").mkdir(parents=True)
    (tmp_path / "run" / "link").symlink_to(tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    with folder_lock(Path(name)), folder_lock(tmp_path / "run") as free:
        assert not free


def test_waiting(tmp_path):
    order = []

    def wait():
        with folder_lock(tmp_path / "run", wait=True) as free:
            order.append(free)

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    with folder_lock(tmp_path / "run"):
        for thread in waiting:
            thread.start()
        time.sleep(0.2)
        order.append("first")
    for thread in waiting:
        thread.join(10)
    assert order == ["first", True, True, True]


def test_a_killed_process_leaves_no_lock(tmp_path):
    code = (
        "import pathlib, sys, time\n"
        "from keras_tnattn_train.system.locks import folder_lock\n"
        "with folder_lock(pathlib.Path(sys.argv[1])):\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with folder_lock(tmp_path / "run") as free:
            assert not free
        process.kill()
        process.wait()
    with folder_lock(tmp_path / "run") as free:
        assert free


def test_a_folder_that_cannot_be_locked(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"run by .*lock: "), folder_lock(tmp_path / "run"):
        pass
