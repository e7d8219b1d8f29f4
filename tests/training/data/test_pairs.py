import gzip
import lzma
from types import SimpleNamespace

import numpy as np
import pytest

from keras_tnattn_train.data.pairs import cldr
from keras_tnattn_train.data.pairs.corpus import ParallelCorpus, cut_parts
from keras_tnattn_train.data.pairs.loading import load_pairs
from keras_tnattn_train.options.errors import InputError

PAIRS = [(f"fonte {i}", f"source {i}") for i in range(40)]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))
    return str(path)


def lines(pairs, side):
    return "".join(f"{pair[side]}\n" for pair in pairs)


def write_parts(folder, names=("a", "b"), **parts):
    for part, pairs in parts.items():
        for side, name in enumerate(names):
            write(folder / f"{name}.{part}.txt", lines(pairs, side))


def table(pairs, header=("source", "target")):
    return "".join("\t".join(row) + "\n" for row in [header, *pairs])


def all_pairs(corpus):
    return [*corpus.train, *corpus.validation, *corpus.test]


def assert_apart(corpus):
    for side in (0, 1):
        parts = [{pair[side] for pair in part} for part in (corpus.train, corpus.validation)]
        parts.append({pair[side] for pair in corpus.test})
        assert len(set.union(*parts)) == sum(map(len, parts))


@pytest.fixture(scope="module")
def portuguese():
    return load_pairs()


class TestCldr:
    @pytest.mark.parametrize("languages", ["pt-en", "tr-en"])
    def test_tens_of_thousands_of_pairs_in_parts_that_share_no_sentence(
        self, languages, portuguese
    ):
        corpus = portuguese if languages == "pt-en" else load_pairs(f"cldr:{languages}")
        assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == (20000, 1000, 1000)
        assert corpus.languages == tuple(languages.split("-"))
        assert_apart(corpus)
        for side in (0, 1):  # one source a target, and the other way round
            assert len({pair[side] for pair in all_pairs(corpus)}) == 22000
        assert all(" ".join(text.split()) == text for pair in corpus.test for text in pair)

    def test_says_the_same_in_both_directions(self, portuguese):
        assert load_pairs("cldr:en-pt") == portuguese.swap_sides()

    def test_says_other_things_by_another_seed(self, portuguese):
        assert load_pairs(seed=1).fingerprint() != portuguese.fingerprint()

    def test_everything_is_said(self, portuguese):
        english = " ".join(target for _, target in portuguese.train)
        for words in ("Monday, January", "PM", " ago", "in 5 ", "kilometers", "euros", "Brazil"):
            assert words in english
        for words in ("Portuguese", " or ", ", and ", " \u2013 ", "1,", "."):
            assert words in english

    @pytest.mark.parametrize("languages", ["pt-pt", "pt-de", "pt", ""])
    def test_languages(self, languages):
        with pytest.raises(InputError, match="en, pt, tr"):
            load_pairs(f"cldr:{languages}")

    def test_has_no_folder(self):
        with pytest.raises(InputError, match="data_dir='x'"):
            load_pairs("cldr:pt-en", data_dir="x")

    def test_names_that_are_not_told_apart_are_left_out(self):
        names = {"a": "xX", "b": "xY", "c": "zY", "d": "zZ", "e": "vV"}  # a letter a language
        pairs = cldr._told_apart(["e", *names, "none"], lambda code, i: names[code][i], (0, 1))
        assert pairs == ["a", "e"]


class TestFiles:
    def test_two_text_files(self, tmp_path):
        source = write(tmp_path / "train.pt", lines(PAIRS, 0))
        target = tmp_path / "train.en.gz"
        target.write_bytes(gzip.compress(lines(PAIRS, 1).replace("\n", "\r\n").encode()))
        corpus = load_pairs(f"{source},{target}")
        assert corpus.languages == ("pt", "en")
        assert sorted(all_pairs(corpus)) == sorted(PAIRS)
        assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == (36, 2, 2)
        assert corpus.notes == (
            "2 validation pairs split off the training part",
            "2 test pairs split off the training part",
        )
        assert load_pairs(f"{source},{target}", seed=1).test != corpus.test
        assert load_pairs(f"{source},{target}", reverse=True) == corpus.swap_sides()
        assert corpus.swap_sides().test == [pair[::-1] for pair in corpus.test]
        assert corpus.swap_sides().languages == ("en", "pt")

    def test_only_newlines_end_a_line(self, tmp_path):
        pairs = [("a\u2028b\x0b", f"c\u0085 {i}") for i in range(3)]
        pairs = [(f"{source}{i}", target) for i, (source, target) in enumerate(pairs)]
        source = write(tmp_path / "a.txt", lines(pairs, 0).removesuffix("\n"))
        target = write(tmp_path / "b.txt", lines(pairs, 1))
        corpus = load_pairs(f"{source}, {target}")
        assert sorted(all_pairs(corpus)) == pairs
        assert corpus.languages == ("a", "b")

    def test_unequal_length(self, tmp_path):
        source = write(tmp_path / "a", lines(PAIRS, 0))
        target = write(tmp_path / "b", lines(PAIRS[:-1], 1))
        with pytest.raises(InputError, match=r"Received: 40 in .*a, 39 in .*b"):
            load_pairs(f"{source},{target}")

    def test_one_file_as_both(self, tmp_path):
        path = write(tmp_path / "a.pt", lines(PAIRS, 0))
        (tmp_path / "link.en").symlink_to(path)
        for other in (path, tmp_path / "link.en"):
            with pytest.raises(InputError, match=r"a\.pt as both"):
                load_pairs(f"{path},{other}")

    @pytest.mark.parametrize(
        ("pairs", "problem"),
        [
            ([], "Received: none"),
            (PAIRS[:1], "1 pairs"),
            (PAIRS[:2], "2 pairs"),
            ([*PAIRS, ("", "x")], "row 42: an empty source"),
            ([*PAIRS, ("x", " ")], "row 42: an empty target"),
        ],
    )
    def test_bad_tables(self, tmp_path, pairs, problem):
        with pytest.raises(InputError, match=problem):
            load_pairs(write(tmp_path / "a.tsv", table(pairs)))

    @pytest.mark.parametrize(
        ("header", "languages"),
        [(("target", "source"), ("source", "target")), (("pt", "en"), ("pt", "en"))],
    )
    def test_table(self, tmp_path, header, languages):
        path = tmp_path / "mine.tsv.xz"
        path.write_bytes(lzma.compress(table(PAIRS, header).encode()))
        corpus = load_pairs(str(path))
        turned = [pair[::-1] for pair in PAIRS] if header[0] == "target" else PAIRS
        assert sorted(all_pairs(corpus)) == sorted(turned)
        assert corpus.languages == languages

    def test_table_with_other_columns(self, tmp_path):
        path = write(tmp_path / "a.tsv", "split\tsource\ttarget\n" + "x\ta\tb\n" * 3)
        with pytest.raises(InputError, match="3 pairs"):  # all of them the same
            load_pairs(path)
        with pytest.raises(InputError, match=r"columns=\['a', 'b', 'c'\]"):
            load_pairs(write(tmp_path / "b.tsv", "a\tb\tc\n"))
        with pytest.raises(
            InputError, match=r"look like a pair of sentences\. Add a line with names"
        ):
            load_pairs(write(tmp_path / "c.tsv", "eu vi um rio\tI saw a river\na\tb\n"))

    def test_translate_folder(self, tmp_path):
        write_parts(tmp_path, ("pt", "en"), train=PAIRS[:10], dev=PAIRS[10:20], test=PAIRS[20:30])
        corpus = load_pairs(str(tmp_path), reverse=True)
        assert corpus.languages == ("pt", "en")
        assert (corpus.train, corpus.validation) == (PAIRS[:10], PAIRS[10:20])
        assert corpus.test == PAIRS[20:30]
        write(tmp_path / "en.more.txt", "")
        with pytest.raises(InputError, match="same parts"):
            load_pairs(str(tmp_path))
        write(tmp_path / "tr.train.txt", "")
        with pytest.raises(InputError, match=r"languages=\['en', 'pt', 'tr'\]"):
            load_pairs(str(tmp_path))

    def test_parts_that_are_given_stay(self, tmp_path):
        write_parts(tmp_path, train=PAIRS[:10], validation=PAIRS[9:12], test=PAIRS[20:])
        corpus = load_pairs(str(tmp_path))
        assert corpus.validation == PAIRS[9:12]
        assert corpus.notes == ("1 validation pairs share a sentence with the training part",)

    def test_a_part_that_is_missing_is_cut(self, tmp_path):
        write_parts(tmp_path, train=PAIRS[:30], test=PAIRS[30:])
        corpus = load_pairs(str(tmp_path))
        assert corpus.test == PAIRS[30:]
        assert sorted([*corpus.train, *corpus.validation]) == sorted(PAIRS[:30])
        assert corpus.notes == ("2 validation pairs split off the training part",)
        assert_apart(corpus)

    def test_what_is_no_corpus(self, tmp_path):
        for corpus in ("nothing", ",a", "a,b,c"):
            with pytest.raises(InputError, match="cldr:pt-en"):
                load_pairs(corpus)
        with pytest.raises(InputError, match=r"no file .*none\.pt"):
            load_pairs(f"{tmp_path}/none.pt,{tmp_path}/none.en")
        with pytest.raises(InputError, match="data_dir='x'"):
            load_pairs(write(tmp_path / "a.tsv", table(PAIRS)), data_dir="x")


class TestParts:
    def test_sentences_never_straddle(self):
        draw = np.random.default_rng(0)
        rows = draw.integers(0, 150, (200, 2))
        pairs = [(f"s{a}", f"t{b}") for a, b in rows]  # sources and targets repeat
        parts = cut_parts(pairs, 0)
        assert_apart(SimpleNamespace(**parts))
        assert sorted(all_pairs(SimpleNamespace(**parts))) == sorted(pairs)

    def test_a_large_group_stays_in_the_training_part(self):
        common = [("yes", f"yes {i}") for i in range(30)]
        pairs = [*common, *((f"s{i}", f"t{i}") for i in range(100))]
        for seed in range(40):
            assert set(common) <= set(cut_parts(pairs, seed)["train"])

    def test_repeated_sentences_leave_no_way_to_cut(self):
        with pytest.raises(InputError, match="50 pairs, 1 without"):
            cut_parts([("a", "b")] * 50, 0)
        with pytest.raises(InputError, match="3 pairs"):
            cut_parts([("a", "b"), ("a", "c"), ("d", "c")], 0)

    def test_fingerprint_knows_parts_order_and_languages(self):
        base = ParallelCorpus(("a", "b"), [("x", "y"), ("z", "w")], [("m", "n")], [])
        others = [
            ParallelCorpus(("a", "c"), base.train, base.validation, []),
            ParallelCorpus(("a", "b"), base.train[::-1], base.validation, []),
            ParallelCorpus(("a", "b"), base.train, [], base.validation),
            ParallelCorpus(("a", "b"), [("xy", ""), ("z", "w")], base.validation, []),
            base.swap_sides(),
        ]
        assert len({corpus.fingerprint() for corpus in [base, *others]}) == 6


class TestDataFolder:
    @pytest.fixture
    def folder(self, tmp_path):
        for name in ("validation", "test"):
            path = tmp_path / "ted_hrlr_pt_en" / f"{name}.tsv.xz"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(lzma.compress(table([(f"a {name}", '"b\u2028')]).encode()))
        return str(tmp_path)

    @pytest.mark.parametrize("name", ["ted_hrlr_pt_en", "tfds:ted_hrlr_translate/pt_to_en"])
    def test_a_corpus_without_a_train_part(self, folder, name):
        corpus = load_pairs(name, data_dir=folder)
        assert corpus.languages == ("pt", "en")
        assert corpus.part("test") == [("a test", '"b\u2028')]
        with pytest.raises(InputError, match="0 train pairs, 1 validation pairs"):
            corpus.part("train")

    def test_missing(self, tmp_path):
        for data_dir in (None, str(tmp_path)):
            with pytest.raises(InputError, match="--data-dir with a folder that holds multi30k"):
                load_pairs("multi30k_pt_en", data_dir=data_dir)


class TestTfds:
    @pytest.fixture
    def builder(self, monkeypatch):
        import tensorflow_datasets as tfds

        rows = [{"pt": source.encode(), "en": target.encode()} for source, target in PAIRS]
        builder = SimpleNamespace(
            info=SimpleNamespace(
                features=tfds.features.Translation(["pt", "en"]),
                supervised_keys=("pt", "en"),
                splits={"train": 0, "validation": 1, "test": 2},
            ),
            download_and_prepare=lambda: None,
            as_dataset=lambda split, shuffle_files: {
                "train": [*rows[:10], {"pt": b"x", "en": b" "}],
                "validation": rows[10:12],
                "test": rows[12:15],
            }[split],
        )
        monkeypatch.setattr(tfds, "builder", lambda name, data_dir: builder)
        monkeypatch.setattr(tfds, "as_numpy", lambda dataset: dataset)
        return builder

    def test_translation_set(self, builder):
        corpus = load_pairs("tfds:some/pt_to_en")
        assert corpus.languages == ("pt", "en")
        assert (corpus.train, corpus.validation) == (PAIRS[:10], PAIRS[10:12])
        assert corpus.test == PAIRS[12:15]
        assert corpus.notes == ("train: 1 pair with an empty side left out",)
        assert load_pairs("tfds:some/pt_to_en", reverse=True).languages == ("en", "pt")

    def test_no_translation_set(self, builder):
        builder.info.features = {}
        with pytest.raises(InputError, match=r"translation set.*Received: tfds:some"):
            load_pairs("tfds:some")

    def test_no_network(self, builder):
        def fail():
            raise ConnectionError("no route\nmore")

        builder.download_and_prepare = fail
        with pytest.raises(InputError, match=r"ConnectionError: no route\).*cldr:pt-en") as error:
            load_pairs("tfds:some")
        assert "\n" not in str(error.value)
