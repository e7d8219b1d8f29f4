"""A full disk, or no room for temporary files: an error that names the folder, and nothing left.

A limit on the size of files stands for a full disk, in a process of its own: that HDF5 could not
write a file would end the process later.
"""

import errno
import os
import subprocess
import sys
import tempfile

import keras
import numpy as np
import pytest
from keras import layers

from keras_small import compress, load
from keras_small.building.saving import save_model
from keras_small.coding import archives

CODE = """
import os, resource, sys, tempfile
import keras, numpy as np
from keras import layers
from keras_small import compress, load

room, home = sys.argv[1:]
rows = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
model = keras.Sequential([keras.Input((64,)), layers.Dense(128, "relu"), layers.Dense(80)])
model.compile("adam", "mse")
result = compress(model, 2.0, data=rows, verbose=0)
suffixes = ("keras", "tnz")
try:
    import constriction
except ImportError:
    suffixes = ("keras",)
for suffix in suffixes:
    result.save(f"{home}/model.{suffix}")
steps = {f"save {x}": (lambda x=x: result.save(f"{room}/model.{x}")) for x in suffixes}
steps["compress"] = lambda: compress(model, 2.0, data=rows, verbose=0)
steps["heal"] = lambda: compress(model, 2.0, data=rows, verbose=0).heal(rows, epochs=1)
if "tnz" in suffixes:
    steps["coded"] = lambda: compress(model, 3.0, data=rows, coded=True, verbose=0)
    steps["load"] = lambda: load(f"{home}/model.tnz")
tempfile.tempdir = room
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
for most in (0, 5000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    for name, step in steps.items():
        try:
            step()
        except OSError as error:
            assert room in str(error), (name, error)
            assert "get_config" not in str(error), (name, error)
        else:
            raise AssertionError(f"{name} found room")
        assert not os.listdir(room), (name, os.listdir(room))
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
for name, step in steps.items():
    step()
print("alive")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on the size of files")
def test_a_full_disk_is_an_error_that_names_the_folder(tmp_path):
    room, home = tmp_path / "room", tmp_path / "home"
    room.mkdir()
    home.mkdir()
    command = [sys.executable, "-c", CODE, str(room), str(home)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("alive\n")
    assert set(os.listdir(room)) <= {"model.keras", "model.tnz"}


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def dense():
    return keras.Sequential([keras.Input((12,)), layers.Dense(10), layers.Dense(1)])


def test_what_to_do_is_said(tmp_path, monkeypatch):
    room = tmp_path / "room"
    room.mkdir()
    path = tmp_path / "model.keras"
    save_model(dense(), path)
    before = path.read_bytes()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    monkeypatch.setattr(archives.Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"Make room: '.*test_what") as caught:
        save_model(dense(), path, overwrite=True)
    assert (caught.value.errno, path.read_bytes()) == (errno.ENOSPC, before)
    assert sorted(os.listdir(tmp_path)) == ["model.keras", "room"]
    monkeypatch.setattr(archives.zipfile.ZipFile, "extractall", full)
    with pytest.raises(OSError, match=r"Make room, or set TMPDIR to another folder: '.*room'"):
        compress(dense(), 1.1, data=np.ones((8, 12)), verbose=0)
    assert not os.listdir(room)


def test_a_good_file_is_not_blamed(tmp_path, monkeypatch):
    pytest.importorskip("constriction")
    save_model(dense(), tmp_path / "model.tnz")
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    monkeypatch.setattr(archives.Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"No space left.*TMPDIR to another folder: '.*room'"):
        load(tmp_path / "model.tnz")
    assert not os.listdir(room)


def test_an_error_that_names_a_file_or_is_not_the_system_s_stays(tmp_path):
    with pytest.raises(OSError, match="the disk is full") as caught, archives.writing_to(tmp_path):
        raise OSError("the disk is full")
    assert caught.value.errno is None
    with pytest.raises(FileNotFoundError, match="none"), archives.writing_to(tmp_path):
        (tmp_path / "none").read_bytes()
