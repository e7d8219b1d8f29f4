import contextlib
import functools
import gc
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from keras_tnattn_runtime.stored import stored_array
from keras_tnattn_train.data.pairs.corpus import StoredPairs, _numbers
from keras_tnattn_train.data.pairs.loading import load_pairs
from keras_tnattn_train.data.stored import StoredTexts
from keras_tnattn_train.data.texts import load_texts
from keras_tnattn_train.options.errors import InputError

TEXTS = ["", "two\nlines", "naïve ı\u2028", "\ud800 alone", "\0", ""]


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """Puts temporary files into `tmp_path`."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def open_files(folder):
    """The number of open files of this process in a folder, deleted ones included."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed in the meantime
            links.append(os.readlink(path))
    return sum(link.startswith(f"{folder}/") for link in links)


class TestTexts:
    def test_they_come_back(self):
        stored = StoredTexts(iter(TEXTS))
        assert [stored[i] for i in range(-6, 6)] == 2 * TEXTS
        assert list(stored) == TEXTS == stored
        assert stored[1:-1:2] == TEXTS[1:-1:2]
        assert stored[np.int64(1)] == TEXTS[1]
        with pytest.raises(IndexError):
            stored[6]

    def test_equality_is_that_of_the_texts(self):
        assert StoredTexts("ab") == StoredTexts(["a", "b"])
        assert StoredTexts("ab") != ["a", "c"]
        assert StoredTexts("ab") != ["a", "b", "c"]
        assert StoredTexts("ab") != 3

    def test_they_can_be_sent_to_another_process(self):
        assert list(pickle.loads(pickle.dumps(StoredTexts(TEXTS)))) == TEXTS

    @pytest.mark.parametrize("texts", [[], [""], ["", ""]])
    def test_without_a_single_byte(self, texts):
        assert list(StoredTexts(texts)) == texts

    def test_an_error_of_the_source_is_its_own(self):
        def texts():
            yield "a"
            raise OSError("of the source")

        with pytest.raises(OSError, match="of the source"):
            StoredTexts(texts())

    def test_a_full_disk_names_the_folder(self, monkeypatch):
        full = functools.partial(open, "/dev/full", "r+b")
        monkeypatch.setattr("tempfile.TemporaryFile", full)
        long = "x" * 100_000  # longer than the buffer
        for texts in (["short"], [long]):
            with pytest.raises(InputError, match=r"Could not store .*no space left.*TMPDIR"):
                StoredTexts(texts)

    def test_the_file_goes_with_the_texts(self, disk):
        stored = StoredTexts(["a"] * 1000)
        assert list(disk.iterdir()) == []  # the file has no name
        assert open_files(disk) == 1
        del stored
        gc.collect()
        assert open_files(disk) == 0


def test_an_array_of_blocks():
    whole = np.arange(35, dtype="int32").reshape(7, 5)
    stored = stored_array(iter([whole[:3], whole[3:]]), (7, 5))
    np.testing.assert_array_equal(stored, whole)
    assert stored.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        stored[0, 0] = 1


class TestPairs:
    def test_they_come_back(self):
        pairs = [("a", "b"), ("", "c"), ("d\n", "")]
        stored = StoredPairs(iter(pairs))
        assert list(stored) == pairs == stored
        assert stored[-1] == pairs[-1]
        assert stored[1:] == pairs[1:]
        assert StoredPairs([]) == []

    def test_sentences_are_numbered_as_numpy_does_it(self):
        draw = np.random.default_rng(0)
        letters = ["a", "b", "\0", "é", "\U0001f600", "\uffff", "\ud800"]
        sentences = [
            "same beginning "[: draw.integers(0, 15)]
            + "".join(draw.choice(letters, draw.integers(0, 4)))
            for _ in range(800)
        ]
        expected = np.unique(np.array(sentences, object), return_inverse=True)[1]
        assert 50 < expected.max() < 790
        np.testing.assert_array_equal(_numbers(sentences), expected)


class TestMemory:
    """What is read is larger than what is in memory while it is read."""

    ROWS = 10_000

    def peak(self, read):
        read()  # imports
        tracemalloc.start()
        try:
            content = read()
            return content, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def test_of_a_table(self, tmp_path):
        path = tmp_path / "table.tsv"
        lines = [f"{'word ' * 200}{i}\t{i % 3}\n" for i in range(self.ROWS)]
        path.write_text("text\tlabel\n" + "".join(lines))
        data, peak = self.peak(lambda: load_texts(str(path)))
        assert len(data.texts) == self.ROWS
        assert peak < 0.1 * path.stat().st_size

    def test_of_pairs(self, tmp_path):
        for name, number in (("train", self.ROWS), ("validation", 5), ("test", 5)):
            lines = [f"{name} {'word ' * 200}{i}\n" for i in range(number)]
            for side in ("a", "b"):
                (tmp_path / f"{side}.{name}.txt").write_text("".join(lines))
        corpus, peak = self.peak(lambda: load_pairs(str(tmp_path)))
        assert len(corpus.train) == self.ROWS
        assert peak < 0.1 * (tmp_path / "a.train.txt").stat().st_size

    def test_of_pairs_that_are_split(self, tmp_path):
        path = tmp_path / "pairs.tsv"
        path.write_text("a\tb\n" + "".join(f"{i} {'x' * 900}\t{i}\n" for i in range(self.ROWS)))
        corpus, peak = self.peak(lambda: load_pairs(str(path)))
        assert (len(corpus.validation), len(corpus.test)) == (500, 500)
        assert peak < 0.4 * path.stat().st_size
