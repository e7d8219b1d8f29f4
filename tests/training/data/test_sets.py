"""Every named data set, and every form of a user's own files, read from small invented samples."""

import lzma
import os
from pathlib import Path

import pytest

from keras_tnattn_train.data.pairs.loading import check_trainable, has_own_parts, load_pairs
from keras_tnattn_train.data.pairs.registry import PARALLEL_SETS
from keras_tnattn_train.data.texts import load_texts
from keras_tnattn_train.data.texts.registry import TEXT_SETS
from keras_tnattn_train.options.errors import InputError

SETS = Path(__file__).parents[2] / "data" / "sets"
# Rows and classes of the samples.
TEXTS = {
    "reuters": (30, 3),
    "newsgroups": (24, 2),
    "twenty_newsgroups": (24, 2),
    "newsgroups_raw": (24, 2),
    "drug_review": (18, 3),  # 27 rows, 9 of which repeat others
    "drug_review_two": (18, 2),
    "spooky_authors": (24, 3),
    "ohsumed": (24, 3),
    "research_articles": (24, 3),  # and a row of no class
}
# Pairs for training, validation and test.
PAIRS = {
    "multi30k_pt_en": (36, 6, 6),
    "tatoeba_tr_en": (26, 2, 2),
    "ted_hrlr_pt_en": (0, 24, 24),
    "ted_hrlr_tr_en": (0, 12, 13),
}


@pytest.mark.parametrize("name", [name for name, entry in TEXT_SETS.items() if entry.file])
def test_a_named_set_of_texts(name):
    data = load_texts(name, str(SETS))
    assert (len(data.texts), len(data.class_names)) == TEXTS[name]


def test_ratings_become_two_classes():
    ratings, two = (load_texts(f"drug_review{x}", str(SETS)) for x in ("", "_two"))
    assert two.class_names == ("5 or less", "6 or more")
    high = [int(ratings.class_names[i]) > 5 for i in ratings.labels]
    assert two.labels.tolist() == high
    assert list(two.texts) == list(ratings.texts)


def test_raw_posts_have_their_headers():
    raw, stripped = (load_texts(x, str(SETS)) for x in ("newsgroups_raw", "newsgroups"))
    assert raw.labels.tolist() == stripped.labels.tolist()
    assert all("From:" in text for text in raw.texts)


def test_labels_stay_with_their_texts():
    data = load_texts("spooky_authors", str(SETS))
    authors = {
        data.class_names[i] for i, t in zip(data.labels, data.texts, strict=True) if "raven" in t
    }
    assert authors == {"EAP"}
    data = load_texts("research_articles", str(SETS))
    topics = {
        data.class_names[i] for i, t in zip(data.labels, data.texts, strict=True) if "lenses" in t
    }
    assert topics == {"Physics"}
    assert data.notes == ("1 row of no class left out",)


def test_repeated_rows_are_dropped_only_where_that_is_declared(tmp_path):
    (tmp_path / "spooky_authors").mkdir()
    with lzma.open(tmp_path / TEXT_SETS["spooky_authors"].file, "wt") as file:
        file.write("text\tauthor\nThe raven.\tEAP\nThe raven.\tEAP\nThe sea.\tHPL\n")
    assert len(load_texts("spooky_authors", str(tmp_path)).texts) == 3


@pytest.mark.parametrize(
    "name", [name for name, entry in TEXT_SETS.items() if entry.file and not entry.load]
)
def test_a_set_without_a_loader_needs_its_file(name):
    with pytest.raises(InputError, match=f"--data-dir.*{name}.*{TEXT_SETS[name].file}"):
        load_texts(name)


@pytest.mark.parametrize("name", ["commas.csv", "semicolons.csv", "tabs.tsv", "folders"])
def test_own_texts_in_every_form(name):
    data, other = load_texts(str(SETS / "own" / name)), load_texts(str(SETS / "own/commas.csv"))
    texts = {(data.class_names[i], t.strip()) for i, t in zip(data.labels, data.texts, strict=True)}
    assert len(texts) == 24
    assert texts == {
        (other.class_names[i], t) for i, t in zip(other.labels, other.texts, strict=True)
    }


@pytest.mark.parametrize("name", PARALLEL_SETS)
def test_a_named_corpus(name):
    corpus = load_pairs(name, str(SETS))
    assert corpus.languages == PARALLEL_SETS[name].languages
    assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == PAIRS[name]


@pytest.mark.parametrize("name", [*PARALLEL_SETS, "cldr:pt-en"])
def test_what_has_its_own_parts_is_the_same_for_all_seeds(name):
    own = has_own_parts(name, str(SETS))
    assert own == (name == "multi30k_pt_en")
    if name == "multi30k_pt_en" or name == "tatoeba_tr_en":
        corpora = [load_pairs(name, str(SETS), seed=seed) for seed in (0, 1)]
        assert own == (list(corpora[0].test) == list(corpora[1].test))


@pytest.mark.parametrize("name", PARALLEL_SETS)
def test_what_can_be_trained_on(name):
    if PAIRS[name][0]:
        check_trainable(name, str(SETS))
        return
    for corpus in (name, f"tfds:{PARALLEL_SETS[name].tfds}"):
        with pytest.raises(InputError, match=r"no train\.tsv\.xz.*multi30k_pt_en"):
            check_trainable(corpus, str(SETS))


def test_own_parallel_files():
    corpus = load_pairs(str(SETS / "own/parallel"), reverse=True)
    folder = SETS / "own/parallel"
    lines = load_pairs(f"{folder}/pt.train.txt,{folder}/en.train.txt")
    assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == (36, 6, 6)
    assert {*lines.train, *lines.validation, *lines.test} == set(corpus.train)


REAL = Path(os.environ.get("TNATTN_DATA", "no folder given"))


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="set TNATTN_DATA to a folder of the real data sets")
class TestReal:
    @pytest.mark.parametrize(
        ("name", "texts", "classes"),
        [
            ("reuters", 11228, 46),
            ("newsgroups", 18846, 20),
            ("drug_review", 4942, 10),
            ("spooky_authors", 19579, 3),
            ("ohsumed", 7400, 23),
        ],
    )
    def test_texts(self, name, texts, classes):
        data = load_texts(name, str(REAL))
        assert (len(data.texts), len(data.class_names)) == (texts, classes)

    @pytest.mark.parametrize(
        ("name", "sizes"),
        [
            ("multi30k_pt_en", (29000, 1014, 1000)),
            ("ted_hrlr_pt_en", (0, 1193, 1803)),
            ("ted_hrlr_tr_en", (0, 4045, 5029)),
        ],
    )
    def test_pairs(self, name, sizes):
        corpus = load_pairs(name, str(REAL))
        assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == sizes

    def test_pairs_without_parts(self):
        corpus = load_pairs("tatoeba_tr_en", str(REAL))
        assert len(corpus.train) + len(corpus.validation) + len(corpus.test) == 41098
