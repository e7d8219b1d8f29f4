"""The words that the reader of exported folders sees are those of training, on many real texts."""

import importlib
import lzma
import os
from pathlib import Path

import numpy as np
import pytest

from keras_tnattn.text.reserved import RESERVED_PIECES
from keras_tnattn.text.word_pieces import WordPieceTokenizer
from keras_tnattn.text.words import SPLITS, split_characters, split_words
from keras_tnattn_runtime import reader
from keras_tnattn_train.exports.translator import pieces_of

DATA = Path(os.environ.get("TNATTN_DATA", "no folder given"))
SETS = {
    "reuters": "data",
    "drug_review": "data",
    "spooky_authors": "data",
    "twenty_newsgroups": "data",
    "ohsumed": "data",
    "tatoeba_tr_en": "data",
    "multi30k_pt_en": "train",
    "ted_hrlr_tr_en": "test",
}
OPTIONS = ({}, {"case": "turkish", "form": "NFKC"}, {"case": "lower", "keep_accents": False})


def check(texts):
    for name, split in (("words", split_words), ("characters", split_characters)):
        words = reader.Words([], SPLITS[name], 10**9)
        for text, expected in zip(texts, split(texts).to_list(), strict=True):
            assert words.split(text) == [word.decode() for word in expected]
    for options in OPTIONS:
        tokenizer = WordPieceTokenizer(RESERVED_PIECES, **options)
        pieces = reader.Pieces(**pieces_of(tokenizer))
        for text, expected in zip(texts, tokenizer.words(texts).to_list(), strict=True):
            assert pieces.words(text) == [word.decode() for word in expected]


def test_words_of_docstrings():
    texts = [
        x.__doc__ or ""
        for module in ("numpy", "keras.layers", "tensorflow.strings", "unicodedata")
        for x in vars(importlib.import_module(module)).values()
    ]
    assert len(texts) > 300
    check(texts[:300])


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="needs the data sets in the folder TNATTN_DATA")
@pytest.mark.parametrize("name", SETS)
def test_words_of_data_sets(name):
    with lzma.open(
        DATA / name / f"{SETS[name]}.tsv.xz", "rt", encoding="utf-8", newline="\n"
    ) as file:
        lines = file.read().rstrip("\n").split("\n")
    rows = np.random.default_rng(0).permutation(len(lines))[:1250]
    for start in range(0, len(rows), 250):
        check([lines[row] for row in rows[start : start + 250]])
