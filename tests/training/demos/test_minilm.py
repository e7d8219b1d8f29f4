"""The texts and rows with which `make minilm` works; the whole is in the tests of the encoder."""

import bz2

import numpy as np

from keras_tnattn_runtime.reader import BertPieces
from keras_tnattn_train.demos import minilm

LICENCE = "  1 This software and database | is provided"
ENTRY = '00001740 03 n 01 physical_entity 0 001 @ 00001930 n 0000 | that exists; "a real one"  '
ARTICLE = """{{Infobox|{{flag|it}}
|name=a}}
'''Cats''' are [[Felidae|small]] [[animal]]s &amp;amp; pets.&lt;ref name="a"&gt;no&lt;/ref&gt;
== Names ==
* one of a list
[[File:Cat.jpg|thumb|a [[cat]]]]See [http://x.org a page].&lt;!-- hidden --&gt;
{| class="wikitable"
| a cell
|}
"""


def pieces():
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij"]
    return BertPieces(
        vocabulary, case="lower", keep_accents=False, unknown=1, start=2, end=3, max_length=256
    )


def test_glosses_have_their_word(tmp_path):
    folder = tmp_path / "package" / "dict"
    folder.mkdir(parents=True)
    for kind in ("noun", "verb", "adj", "adv"):
        (folder / f"data.{kind}").write_text(f"{LICENCE}\n{ENTRY}\n", "utf-8")
    assert minilm.glosses(tmp_path) == ['physical entity: that exists; "a real one"'] * 4


def test_articles_lose_their_markup(tmp_path):
    lines = [line for line in minilm.plain(ARTICLE).split("\n") if line.strip()]
    assert lines == ["Cats are small animals & pets.", "See a page."]


def test_prose_has_news_and_long_paragraphs(tmp_path):
    folder = tmp_path / "gensim" / "test" / "test_data"
    folder.mkdir(parents=True)
    news, paragraph = "word " * 40, "other " * 40
    (folder / "lee_background.cor").write_text(f"{news}\n", "utf-8")
    with bz2.open(folder / "enwiki-latest-pages-articles1.xml-a.bz2", "wt") as file:
        file.write(f'<page><text xml:space="preserve">short\n\n{paragraph}</text></page>')
    assert minilm.prose(tmp_path) == [news, paragraph.strip()]


def test_rows_are_full_and_go_on(monkeypatch):
    monkeypatch.setattr(minilm, "BATCH_SIZE", 2)
    texts = ["a b c", "d e f g h", "i j"]
    batches = list(minilm.rows_of(texts, pieces(), (4, 5)))
    np.testing.assert_array_equal(batches[0], [[2, 4, 5, 3], [2, 6, 7, 3]])
    np.testing.assert_array_equal(batches[1], [[2, 8, 9, 10, 3], [2, 11, 12, 13, 3]])
    assert len(batches) == 2


def test_two_batches_of_prose_come_for_one_of_glosses(monkeypatch):
    monkeypatch.setattr(minilm, "BATCH_SIZE", 1)
    batches = list(minilm.mixed([["a b c d"], ["j i h"]], pieces(), [3]))
    assert [batch[0, 1] for batch in batches] == [4, 5, 13, 6, 7, 12]
