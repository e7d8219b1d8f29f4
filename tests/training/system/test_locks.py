"""The lock of a folder, between processes and threads."""

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.system.locks import locked


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


@pytest.mark.parametrize("name", [".", "../run", "link", "sub/..", "../run/"])
def test_another_name_of_the_same_folder(tmp_path, monkeypatch, name):
    (tmp_path / "run" / "sub").mkdir(parents=True)
    (tmp_path / "run" / "link").symlink_to(tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    with locked(Path(name)), locked(tmp_path / "run") as free:
        assert not free
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_lock_whose_file_is_deleted_meanwhile_is_taken_again(tmp_path, monkeypatch):
    path, attempts = tmp_path / ".lock-run", []

    def delete_first(file, operation):
        if not attempts:
            path.unlink()
        attempts.append(operation)
        flock(file, operation)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", delete_first)
    with locked(tmp_path / "run") as first, locked(tmp_path / "run") as second:
        assert (first, second) == (True, False)
    assert len(attempts) == 3


def test_a_lock_whose_folder_is_deleted_meanwhile_is_taken_again(tmp_path, monkeypatch):
    def delete_first(path, *arguments):
        if not attempts:
            Path(path).parent.rmdir()
        attempts.append(path)
        return open_file(path, *arguments)

    attempts, open_file = [], os.open
    monkeypatch.setattr(os, "open", delete_first)
    with locked(tmp_path / "new" / "run") as first, locked(tmp_path / "new" / "run") as second:
        assert (first, second) == (True, False)


def test_the_lock_of_another_user_counts(tmp_path, monkeypatch):
    def of_another_user(path, flags, *mode):
        if flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied", str(path))
        return open_file(path, flags, *mode)

    open_file = os.open
    with locked(tmp_path / "run"):
        monkeypatch.setattr(os, "open", of_another_user)
        with locked(tmp_path / "run") as free:
            assert not free


def test_a_folder_that_cannot_be_locked_is_told(tmp_path, monkeypatch, capsys):
    def refused(path, *arguments):
        raise OSError(30, "Read-only file system")

    (tmp_path / "run").mkdir()
    monkeypatch.setattr(os, "open", refused)
    with locked(tmp_path / "run") as free:
        assert free
    assert "could not lock" in capsys.readouterr().out
    with locked(tmp_path / ("x" * 300)) as free:  # whoever makes the folder will say why
        assert free
    with pytest.raises(InputError, match="read-only"), locked(tmp_path / "run", required=True):
        pass


def test_a_folder_where_no_file_can_be_made(tmp_path, monkeypatch, capsys):
    def denied(path, flags, *mode):
        if flags & os.O_CREAT and not os.path.exists(path):
            raise PermissionError(13, "Permission denied")
        return open_file(path, flags, *mode)

    open_file = os.open
    monkeypatch.setattr(os, "open", denied)
    with locked(tmp_path / "new" / "run") as free:
        assert free
    assert not capsys.readouterr().out  # whoever makes the folder will say why
    assert not list(tmp_path.iterdir())
    with (
        pytest.raises(InputError, match="permission denied"),
        locked(tmp_path / "run", required=True),
    ):
        pass


def test_what_was_written_beside_the_lock_stays(tmp_path):
    with locked(tmp_path / "new" / "run"):
        (tmp_path / "new" / "run").mkdir()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run"]


def test_waiting(tmp_path):
    order = []

    def wait():
        with locked(tmp_path / "run", wait=True) as free:
            order.append(free)

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    with locked(tmp_path / "run"):
        for thread in waiting:
            thread.start()
        time.sleep(0.2)
        order.append("first")
    for thread in waiting:
        thread.join(10)
    assert order == ["first", True, True, True]
    assert not list(tmp_path.iterdir())


def test_a_killed_process_leaves_no_lock(tmp_path):
    code = (
        "import pathlib, sys, time\n"
        "from keras_tnattn_train.system.locks import locked\n"
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


@pytest.mark.parametrize("error", [OSError(95, "Operation not supported"), None])
def test_without_locks(tmp_path, monkeypatch, capsys, error):
    def unsupported(file, operation):
        raise error

    if error:
        monkeypatch.setattr("fcntl.flock", unsupported)
    else:
        monkeypatch.setitem(sys.modules, "fcntl", None)
    message = "operation not supported" if error else "this system has no locks"
    with pytest.raises(InputError, match=message), locked(tmp_path / "run", required=True):
        pass
    (tmp_path / "run").mkdir()
    for folder in (tmp_path / "run", tmp_path / "new" / "run"):
        with locked(folder) as free:
            assert free
    assert not capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
