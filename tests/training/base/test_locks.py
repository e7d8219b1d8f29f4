"""The lock of a folder, between processes and threads."""

import subprocess
import sys
import threading

import pytest

from training.base.errors import InputError
from training.base.locks import locked


def test_one_at_a_time(tmp_path):
    folder = tmp_path / "new" / "run"
    with locked(folder) as first:
        assert first
        with locked(folder) as second, locked(tmp_path / "other") as of_another:
            assert not second
            assert of_another
        with locked(folder) as third:
            assert not third
    with locked(folder) as again:
        assert again
    assert not list(tmp_path.iterdir())


def test_what_was_written_beside_the_lock_stays(tmp_path):
    with locked(tmp_path / "new" / "run"):
        (tmp_path / "new" / "run").mkdir()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run"]


def test_waiting(tmp_path):
    order, is_free = [], threading.Event()

    def wait():
        with locked(tmp_path / "run", wait=True) as free:
            order.append(free)

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    with locked(tmp_path / "run"):
        for thread in waiting:
            thread.start()
        is_free.wait(0.2)
        order.append("first")
    for thread in waiting:
        thread.join(10)
    assert order == ["first", True, True, True]
    assert not list(tmp_path.iterdir())


def test_a_killed_process_leaves_no_lock(tmp_path):
    code = (
        "import pathlib, sys, time\n"
        "from training.base.locks import locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with locked(tmp_path / "run") as free:
            assert not free
        process.kill()
        process.wait()
    with locked(tmp_path / "run") as free:
        assert free


@pytest.mark.parametrize("found", [OSError(95, "Operation not supported"), None])
def test_without_locks(tmp_path, monkeypatch, found):
    def unsupported(file, operation):
        raise found

    if found:
        monkeypatch.setattr("fcntl.flock", unsupported)
    else:
        monkeypatch.setitem(sys.modules, "fcntl", None)
    message = "operation not supported" if found else "this system has no locks"
    with pytest.raises(InputError, match=message), locked(tmp_path / "run", required=True):
        pass
    with locked(tmp_path / "run") as free:
        assert free
    assert not list(tmp_path.iterdir())
