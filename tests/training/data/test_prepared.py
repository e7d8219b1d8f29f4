import json
from dataclasses import replace

import numpy as np
import pytest

from keras_tnattn.text.reserved import END, START
from keras_tnattn_train.data.pairs.batches import BucketedBatches
from keras_tnattn_train.data.pairs.corpus import ParallelCorpus
from keras_tnattn_train.data.pairs.prepared import (
    Preparing,
    Sentences,
    TokenizedPart,
    load_prepared,
    prepare,
)
from keras_tnattn_train.options.errors import InputError

TRAIN = [(f"O gato {i} dorme, İ.", f"The cat {i} sleeps.") for i in range(30)]
CORPUS = ParallelCorpus(
    ("tr", "en"),
    [*TRAIN, ("O gato " * 30, "The cat")],
    [("O cão dorme.", "A dog sleeps.")],
    [("dorme", "It's the cat " * 10), ("O gato", "The cat")],
    ("read somewhere",),
)
OPTIONS = Preparing(vocabulary_size=200, max_length=20)


@pytest.fixture
def prepared(tmp_path):
    return prepare(CORPUS, tmp_path / "corpus", OPTIONS)


def sentences(lengths, draw):
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = draw.integers(4, 99, offsets[-1]).astype("int32")
    ids[offsets[:-1]], ids[offsets[1:] - 1] = START, END  # every length is 2 or more
    return Sentences(ids, offsets)


def random_part(rows=203, longest=30, shortest=2):
    draw = np.random.default_rng(0)
    return TokenizedPart(
        *(sentences(draw.integers(shortest, longest + 1, rows), draw) for _ in range(2))
    )


class TestPrepare:
    def test_holds_the_tokenized_corpus(self, prepared):
        for i, tokenizer in enumerate(prepared.tokenizers):
            assert prepared.vocabulary_sizes[i] == tokenizer.vocabulary_size <= 200
            side = ("source", "target")[i]
            for name, pairs in (("train", TRAIN), ("validation", CORPUS.validation)):
                ids = getattr(prepared.parts[name], side)
                assert len(ids) == len(prepared.parts[name]) == len(pairs)
                expected = tokenizer.tokenize([pair[i] for pair in pairs]).to_list()
                assert [ids[row].tolist() for row in range(len(ids))] == expected
                assert ids.ids.dtype == np.int32
        assert prepared.languages == ("tr", "en")
        assert prepared.texts == {"validation": CORPUS.validation, "test": CORPUS.test}

    def test_long_sentences(self, prepared):
        target = prepared.parts["test"].target
        whole = prepared.tokenizers[1].tokenize([CORPUS.test[0][1]])[0].numpy()
        assert target[0].tolist() == [*whole[:19], END]
        assert target.lengths_of(np.arange(2)).tolist() == [20, 4]
        assert prepared.max_length == 20
        assert prepared.notes == (
            "read somewhere",
            "1 train pairs longer than 20 word pieces left out",
            "1 test pairs longer than 20 word pieces cut",
        )
        with pytest.raises(InputError, match="max_length=2, and all 31 pairs"):
            prepare(CORPUS, prepared.folder.with_name("other"), Preparing(200, max_length=2))

    def test_vocabulary_is_of_the_training_part_alone(self, prepared):
        for tokenizer in prepared.tokenizers:
            assert "ã" not in tokenizer.vocabulary
            assert "'" not in tokenizer.vocabulary

    def test_case_by_language(self, tmp_path, prepared):
        lower = prepare(CORPUS, tmp_path / "lower", replace(OPTIONS, lower_case=True))
        turkish, english = (tokenizer.options["case"] for tokenizer in lower.tokenizers)
        assert (turkish, english) == ("turkish", "lower")
        assert [tokenizer.options["case"] for tokenizer in prepared.tokenizers] == ["keep"] * 2

    def test_pieces_of_bert(self, tmp_path, prepared):
        folder = tmp_path / "bert"
        bert = prepare(CORPUS, folder, replace(OPTIONS, lower_case=True, tokenizer="bert"))
        assert bert.digest != prepared.digest
        source, target = load_prepared(folder).tokenizers
        assert source.options == target.options == {"tokenizer": "bert", "lower_case": True}
        ids = bert.parts["validation"].target[0]
        assert target.detokenize(ids).numpy().decode() == "a [UNK] sleeps ."
        with pytest.raises(InputError, match="made of another corpus or with other options"):
            prepare(CORPUS, folder, replace(OPTIONS, lower_case=True))

    def test_is_made_once(self, prepared):
        before = prepared.folder.stat().st_ino
        again = prepare(CORPUS, str(prepared.folder), OPTIONS)
        assert prepared.folder.stat().st_ino == before
        assert again.digest == prepared.digest
        assert load_prepared(prepared.folder).digest == prepared.digest
        assert sorted(path.name for path in prepared.folder.parent.iterdir()) == ["corpus"]

    def test_another_corpus_in_the_folder_stays(self, prepared, tmp_path):
        folder, digests = prepared.folder, {prepared.digest}
        for i, (corpus, options) in enumerate(
            (
                (CORPUS.swap_sides(), OPTIONS),
                (CORPUS, replace(OPTIONS, max_length=21)),
                (CORPUS, replace(OPTIONS, lower_case=True)),
                (CORPUS, replace(OPTIONS, vocabulary_size=100)),
            )
        ):
            with pytest.raises(InputError, match=r"another prepared corpus.*Choose another folder"):
                prepare(corpus, folder, options)
            digests.add(prepare(corpus, tmp_path / f"other{i}", options).digest)
        assert len(digests) == 5
        assert load_prepared(folder).digest == prepared.digest

    @pytest.mark.parametrize(
        "name", ["train_source_ids.npy", "source.txt", "target.json", "texts.json"]
    )
    def test_damage(self, prepared, name):
        path = prepared.folder / name
        whole = path.read_bytes()
        for broken in (whole[:-1], whole[:5] + b"x" + whole[6:], None):
            path.write_bytes(broken) if broken is not None else path.unlink()
            with pytest.raises(InputError, match=r"Delete .*corpus and prepare") as error:
                load_prepared(prepared.folder)
            assert name in str(error.value)
        assert prepare(CORPUS, prepared.folder, OPTIONS).digest == prepared.digest

    def test_no_prepared_corpus(self, tmp_path, prepared):
        with pytest.raises(InputError, match="Prepare the corpus first"):
            load_prepared(tmp_path / "none")
        whole = json.loads((prepared.folder / "prepared.json").read_text())
        for damage in ({"files": []}, {"languages": 3}, {"notes": None}):
            (prepared.folder / "prepared.json").write_text(json.dumps(whole | damage))
            with pytest.raises(InputError, match="repare the corpus"):
                load_prepared(prepared.folder)
        for content in ("{", "[]", "{}"):
            (prepared.folder / "prepared.json").write_text(content)
            with pytest.raises(InputError, match=r"prepared\.json.*Prepare the corpus first"):
                load_prepared(prepared.folder)

    def test_leaves_what_is_not_its_own(self, tmp_path):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "file").write_text("x")
        for path in (tmp_path / "mine", tmp_path / "mine" / "file"):
            with pytest.raises(InputError, match="Choose another folder than"):
                prepare(CORPUS, path, OPTIONS)
        assert (tmp_path / "mine" / "file").read_text() == "x"

    def test_bad_input(self, tmp_path):
        nothing = ParallelCorpus(("a", "b"), [], [("x", "y")], [])
        with pytest.raises(InputError, match="with a train part"):
            prepare(nothing, tmp_path / "corpus")
        with pytest.raises(InputError, match="vocabulary_size=5"):
            prepare(CORPUS, tmp_path / "corpus", Preparing(vocabulary_size=5))
        assert [path.name for path in tmp_path.iterdir()] == []


def unpadded(batch):
    """The pairs of a batch, put together again from what the model is given."""
    inputs, labels = batch
    assert inputs["target"].shape == labels.shape
    assert labels.dtype == inputs["source"].dtype == np.int32
    for source, target, label in zip(inputs["source"], inputs["target"], labels, strict=True):
        target, label = target[target > 0], label[label > 0]
        assert target[1:].tolist() == label[:-1].tolist()
        yield tuple(source[source > 0].tolist()), (*target.tolist(), int(label[-1]))


class TestBatches:
    @pytest.mark.parametrize("seed", [None, 3])
    @pytest.mark.parametrize("multiple", [1, 8])
    @pytest.mark.parametrize("block", [65_536, 60, 1])  # pairs whose order is drawn at once
    def test_every_pair_once(self, seed, multiple, block, monkeypatch):
        monkeypatch.setattr("keras_tnattn_train.data.pairs.batches.PAIRS_AT_ONCE", block)
        part = random_part()
        batches = BucketedBatches(part, 10, seed, multiple)
        assert len(batches) == 21
        got = sorted(pair for i in range(21) for pair in unpadded(batches[i]))
        expected = [(part.source[i], part.target[i]) for i in range(len(part))]
        assert got == sorted((tuple(s.tolist()), tuple(t.tolist())) for s, t in expected)
        assert batches.tokens == sum(
            (labels > 0).sum() for _, labels in map(batches.__getitem__, range(21))
        )

    def test_padding_is_small_and_in_multiples(self):
        part = random_part(rows=2000)
        batches = BucketedBatches(part, 50, seed=0, multiple=4)
        shapes, filled = [], 0
        for i in range(len(batches)):
            inputs, labels = batches[i]
            shapes += [inputs["source"].shape, labels.shape]
            filled += (inputs["source"] > 0).sum() + (labels > 0).sum()
        assert {length % 4 for _, length in shapes if length < 29} == {0}
        assert filled / sum(map(np.prod, shapes)) > 0.7
        lengths = [batches[i][1].shape[1] for i in range(2, len(batches))]
        assert lengths != sorted(lengths)  # the batches, too, come in a drawn order

    @pytest.mark.parametrize("block", [65_536, 60])
    def test_the_order_is_that_of_the_seed_and_the_epoch(self, block, monkeypatch):
        monkeypatch.setattr("keras_tnattn_train.data.pairs.batches.PAIRS_AT_ONCE", block)
        part = random_part()

        def orders(seed, epochs):
            batches = BucketedBatches(part, 10, seed)
            for epoch in epochs:
                batches.set_epoch(epoch)
                yield [pair for i in range(len(batches)) for pair in unpadded(batches[i])]

        first, second = orders(0, [0, 1])
        assert first != second
        assert next(orders(0, [1])) == second
        assert next(orders(1, [0])) != first
        same, again = orders(None, [0, 1])
        assert same == again
        batches, together = BucketedBatches(part, 10, 0), []
        for epoch in (1, 0):
            batches.set_epoch(epoch)
            together.append({frozenset(unpadded(batches[i])) for i in range(len(batches))})
        assert len(together[0] & together[1]) < 5  # other pairs come together, too
        backwards = [list(unpadded(batches[i])) for i in reversed(range(len(batches)))]
        assert [pair for batch in reversed(backwards) for pair in batch] == first

    def test_no_batch_is_longer_than_the_longest_sentence(self):
        # The positional encoding may end there.
        batches = BucketedBatches(random_part(), 10, multiple=16)
        shapes = [
            (x["source"].shape[1], y.shape[1]) for x, y in map(batches.__getitem__, range(21))
        ]
        assert np.max(shapes, axis=0).tolist() == [30, 29]

    def test_a_sample_has_short_and_long_sentences(self):
        batches = BucketedBatches(random_part(), 10)
        widths = [inputs["source"].shape[1] for inputs, _ in batches]
        sampled = [inputs["source"].shape[1] for inputs, _ in batches.sample(3)]
        assert sampled == [widths[0], widths[round((len(widths) - 1) / 2)], widths[-1]]
        assert sampled[0] < sampled[-1]
        assert len(batches.sample(10**6)) == len(batches)

    def test_sizes(self):
        with pytest.raises(ValueError, match="batch_size=0, multiple=8"):
            BucketedBatches(random_part(), 0)
        with pytest.raises(ValueError, match="batch_size=1, multiple=0"):
            BucketedBatches(random_part(), 1, multiple=0)
        with pytest.raises(ValueError, match="an empty one"):
            BucketedBatches(random_part(0), 1)
