"""Preparations in several processes, and interrupted ones."""

import contextlib
import dataclasses
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from import_path import IMPORT_PATH

from keras_tnattn_train.data.pairs import prepared, tokenizing
from keras_tnattn_train.data.pairs.corpus import ParallelCorpus
from keras_tnattn_train.data.pairs.prepared import Preparing, prepare
from keras_tnattn_train.options.errors import InputError

TRAIN = [(f"O gato {i} {'dorme ' * (i % 9)}.", f"The cat {i} sleeps.") for i in range(45)]
CORPUS = ParallelCorpus(
    ("pt", "en"), TRAIN, [("O cão", "A dog " * 9)] * 11, [("O gato", "The cat")], ("a note",)
)
OPTIONS = Preparing(vocabulary_size=150, max_length=14)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    for module in (prepared, tokenizing):
        monkeypatch.setattr(module, "CHUNK_SIZE", 8)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A corpus that was prepared in one go, in one chunk."""
    return prepare(CORPUS, tmp_path_factory.mktemp("whole") / "corpus", OPTIONS)


def files(corpus):
    return {path.name: path.read_bytes() for path in corpus.folder.iterdir()}


def told_by(whole, folder, **options):
    """What a preparation tells that ends with the files of `whole`, and nothing beside them."""
    progress = Interrupting()
    corpus = prepare(CORPUS, folder, OPTIONS, progress=progress, **options)
    assert files(corpus) == files(whole)
    assert [path.name for path in folder.parent.iterdir()] == ["corpus"]
    return progress.told


class Interrupting:
    """Interrupts a preparation after some pairs, and notes what it was told."""

    def __init__(self, what=None, after=0, error=KeyboardInterrupt):
        self.stop, self.error, self.told = (what, after), error, []

    def __call__(self, what, done, total):
        self.told.append((what, done, total))
        if self.stop[0] == what and done >= self.stop[1]:
            raise self.error


def test_chunks_change_nothing(whole, tmp_path):
    progress = Interrupting()
    chunked = prepare(CORPUS, tmp_path / "corpus", OPTIONS, progress=progress)
    assert files(chunked) == files(whole)
    assert chunked.notes == (
        "a note",
        "4 train pairs longer than 14 word pieces left out",
        "11 validation pairs longer than 14 word pieces cut",
    )
    assert progress.told == [
        *(("counted", done, 45) for done in (0, 8, 16, 24, 32, 40, 45)),
        *(("tokenized", done, 57) for done in (0, 8, 16, 24, 32, 40, 45, 53, 56, 57)),
    ]


def test_the_arrays_are_those_of_numpy(whole):
    for path in whole.folder.glob("*.npy"):
        array = np.load(path)
        np.save(path.with_suffix(".again"), array)
        again = path.with_suffix(".again.npy")
        assert again.read_bytes() == path.read_bytes()
        again.unlink()


@pytest.mark.parametrize(("what", "after"), [("counted", 16), ("tokenized", 40)])
def test_an_interrupted_preparation_continues(whole, tmp_path, what, after):
    folder = tmp_path / "corpus"
    first = Interrupting(what, after)
    with pytest.raises(KeyboardInterrupt):
        prepare(CORPUS, folder, OPTIONS, progress=first)
    assert [path.name for path in tmp_path.iterdir()] == [".partial-corpus"]
    # It continues at the chunk at which it was interrupted.
    assert told_by(whole, folder)[0] == first.told[-1]


@pytest.mark.parametrize(
    "changed",
    [(CORPUS, dataclasses.replace(OPTIONS, max_length=15)), (CORPUS.swap_sides(), OPTIONS)],
)
def test_another_corpus_starts_anew(tmp_path, changed):
    with pytest.raises(KeyboardInterrupt):
        prepare(CORPUS, tmp_path / "corpus", OPTIONS, progress=Interrupting("tokenized", 24))
    progress = Interrupting()
    corpus, options = changed
    prepare(corpus, tmp_path / "corpus", options, progress=progress)
    assert progress.told[0] == ("counted", 0, 45)


@pytest.mark.parametrize(
    ("what", "chunk"),
    [("counted", "words-train-0000000008"), ("tokenized", "ids-train-0000000008")],
)
@pytest.mark.parametrize("content", [b"", b"PK", b"{}"])
def test_a_damaged_chunk_can_be_deleted(whole, tmp_path, what, chunk, content):
    folder = tmp_path / "corpus"
    with pytest.raises(KeyboardInterrupt):
        prepare(CORPUS, folder, OPTIONS, progress=Interrupting(what, 24))
    damaged = tmp_path / ".partial-corpus/chunks" / chunk
    damaged.write_bytes(content)
    for _ in range(2):
        with pytest.raises(InputError, match=rf"{chunk}, which is damaged .*Delete it, then"):
            prepare(CORPUS, folder, OPTIONS)
    damaged.unlink()
    told_by(whole, folder)


def test_two_preparations_do_not_share_a_folder(whole, tmp_path):
    folder = tmp_path / "corpus"

    def prepare_another(what, done, total):
        with pytest.raises(InputError, match=f"no other process.*Received: {folder}. Wait"):
            prepare(CORPUS, folder, OPTIONS)

    assert files(prepare(CORPUS, folder, OPTIONS, progress=prepare_another)) == files(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_what_another_process_has_just_prepared_is_taken(whole, tmp_path, monkeypatch):
    def late(folder):
        shutil.copytree(whole.folder, folder)
        return contextlib.nullcontext(True)

    monkeypatch.setattr(prepared, "folder_lock", late)
    assert told_by(whole, tmp_path / "corpus") == []


def test_an_interrupt_at_the_very_end_loses_nothing(whole, tmp_path, monkeypatch):
    def interrupt(path):
        raise KeyboardInterrupt

    sha256 = prepared._sha256
    monkeypatch.setattr(prepared, "_sha256", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare(CORPUS, tmp_path / "corpus", OPTIONS)
    monkeypatch.setattr(prepared, "_sha256", sha256)
    assert told_by(whole, tmp_path / "corpus") == []


@pytest.mark.parametrize("step", range(2))
def test_an_interrupt_while_a_damaged_folder_is_replaced_loses_nothing(
    whole, tmp_path, monkeypatch, step
):
    folder, renamed = tmp_path / "corpus", []
    shutil.copytree(whole.folder, folder)
    (folder / "texts.json").unlink()

    def interrupt(path, target):
        if len(renamed) == step:
            raise KeyboardInterrupt
        renamed.append(path)
        rename(path, target)

    rename = Path.rename
    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "rename", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(CORPUS, folder, OPTIONS)
    assert told_by(whole, folder) == []


def test_what_was_computed_survives_a_full_disk(whole, tmp_path):
    folder = tmp_path / "corpus"
    full = OSError(28, "No space left on device")
    with pytest.raises(InputError, match=r"no space left on device.*continue with the same"):
        prepare(CORPUS, folder, OPTIONS, progress=Interrupting("tokenized", 24, full))
    assert told_by(whole, folder)[0] == ("tokenized", 24, 57)


@pytest.mark.slow
def test_two_processes_prepare_the_same(whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        prepare(CORPUS, tmp_path / "corpus", OPTIONS, 2, progress=Interrupting("tokenized", 24))
    assert multiprocessing.active_children() == []
    what, done, _ = told_by(whole, tmp_path / "corpus", workers=2)[0]
    assert (what, done >= 24) == ("tokenized", True)


# What the processes below compute, without TensorFlow, which takes long to start.
CODE = """
import os, sys, time
from pathlib import Path
from keras_tnattn_train.data.pairs import tokenizing
from keras_tnattn_train.data.pairs.corpus import ParallelCorpus
from keras_tnattn_train.processes.workers import Workers

def work(chunk, pairs, kind):
    if kind == "fails" and chunk.start == 16:
        raise ValueError(f"what={pairs[0]}")
    if kind == "dies" and chunk.start == 16:
        os._exit(1)
    if kind == "waits" and chunk.start == 16:
        Path("waiting").write_text(str(os.getpid()))
        time.sleep(60)
    chunk.path.write_text(repr(pairs))
    return len(pairs)

if __name__ == "__main__":
    tokenizing.CHUNK_SIZE = 8
    corpus = ParallelCorpus(("a", "b"), [(str(i), "") for i in range(100)], [], [])
    chunks = tokenizing.chunks_of(corpus, ["train"], Path("chunks"), "x")
    with Workers(2, "fewer --workers", tokenizing.start_worker) as workers:
        told = lambda *told: print(*told, flush=True)
        tokenizing.compute(workers, work, corpus, chunks, told, sys.argv[1])
"""


@pytest.fixture
def compute(tmp_path):
    """Starts 13 chunks of work in two processes."""
    (tmp_path / "script.py").write_text(CODE)
    (tmp_path / "chunks").mkdir()
    return lambda kind: subprocess.Popen(
        [sys.executable, "script.py", kind],
        env={**os.environ, "PYTHONPATH": IMPORT_PATH},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_every_chunk_is_computed_once(compute, tmp_path):
    output, errors = compute("all").communicate(timeout=60)
    assert errors == ""
    lines = output.splitlines()
    assert len(lines) == 14
    assert (lines[0], lines[-1]) == ("0 100", "100 100")
    rows = [eval(path.read_text()) for path in sorted((tmp_path / "chunks").iterdir())]
    assert [pair for some in rows for pair in some] == [(str(i), "") for i in range(100)]
    (tmp_path / "chunks/x-train-0000000088").unlink()
    (tmp_path / "chunks/x-train-0000000096").unlink()
    output, _ = compute("all").communicate(timeout=60)
    assert output.splitlines()[0] == "88 100"


def test_the_error_of_a_process_is_told(compute):
    _, errors = compute("fails").communicate(timeout=60)
    assert errors.endswith("ValueError: what=('16', '')\n")


def test_a_killed_process_is_told(compute):
    _, errors = compute("dies").communicate(timeout=60)
    assert "one that was killed or crashed" in errors


def test_no_process_outlives_its_parent(compute, tmp_path):
    process, waiting = compute("waits"), tmp_path / "waiting"
    deadline = time.monotonic() + 60
    while not (waiting.exists() and waiting.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()  # its output is open as long as a worker lives
    while Path("/proc", waiting.read_text()).exists():
        assert time.monotonic() < deadline, "a process outlived its parent"
        time.sleep(0.05)
    process.communicate()
