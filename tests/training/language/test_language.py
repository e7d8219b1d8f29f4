import csv
import importlib.util
import json
import math
import shutil

import keras
import numpy as np
import pytest
from run_folders import FILES, assert_equal, assert_refused, interrupted_after, predicted

from keras_tnattn_runtime import reader
from keras_tnattn_runtime.reader import up_to
from keras_tnattn_train.cli import main as whole
from keras_tnattn_train.cli import train as main
from keras_tnattn_train.language.config import LanguageConfig
from keras_tnattn_train.language.corpus import PackedBatches, Part, read_corpus
from keras_tnattn_train.language.loading import LanguageRun
from keras_tnattn_train.language.tokens import END, RESERVED, UNKNOWN, Tokens
from keras_tnattn_train.language.train import measure
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.run import Run

# test_training.py trains as a graph.
pytestmark = pytest.mark.usefixtures("eagerly")
QUICK = ["--length", "16", "--model-dim", "8", "--num-heads", "2", "--num-layers", "1"]
QUICK += ["--batch-size", "8", "--epochs", "3", "--held-out", "0.1"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "songs.txt"
    lines = [
        f"the {word} sat on the {other}."
        for word in ("cat", "dog", "cow")
        for other in "abcdefghij"
    ]
    path.write_text("\n\n".join(lines), encoding="utf-8")
    return path


def command(folder, corpus, *more):
    return ["language", "--corpus", str(corpus), "--run-dir", str(folder), *QUICK, *more]


@pytest.fixture(scope="module")
def uninterrupted(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main(command(folder, corpus)) == 0
    return folder


class TestTokens:
    @pytest.mark.parametrize("kind", ["characters", "bytes"])
    def test_nothing_is_lost(self, kind):
        text = "naïve café, 東京\n\n𝄞"
        tokens = Tokens.learn(kind, [text])
        ids = tokens.encode(text)
        assert len(ids) == len(text) if kind == "characters" else len(text.encode())
        assert ids.min() >= RESERVED
        assert ids.max() < tokens.vocabulary_size
        assert tokens.decode(ids) == text
        assert tokens.decode([*ids, END]) == text

    def test_pieces_lose_nothing(self):
        texts = ["the cat sat on the mat", "the café, 東京\n\n  x = 1"] * 9
        tokens = Tokens.learn("pieces", texts, 270)
        assert tokens.vocabulary_size == 270
        assert "h e" in tokens.merges
        for text in (*texts[:2], "𝄞 new ̈words[PAD]\r\n", "\x00"):
            ids = tokens.encode(text)
            assert ids.min() >= RESERVED
            assert ids.max() < 270
            assert tokens.decode([*ids, END]) == text
        assert len(tokens.encode(texts[0])) < len(texts[0])
        again = Tokens.load(json.loads(json.dumps(tokens.to_dict())))
        assert again.encode(texts[1]).tolist() == tokens.encode(texts[1]).tolist()
        decode = tokens.decoder()  # a character of three bytes comes with its last one
        assert [decode(i) for i in tokens.encode("月")] == ["", "", "月"]

    def test_unknown_characters(self):
        tokens = Tokens.learn("characters", ["aab"])
        assert tokens.characters == "ab"
        assert tokens.encode("axb").tolist() == [RESERVED, UNKNOWN, RESERVED + 1]
        with pytest.raises(InputError, match=r"'x' 'y'"):
            tokens.prompt("yax")
        assert tokens.prompt("").tolist() == [END]


class TestCorpus:
    def test_parts_are_made_of_whole_documents(self, corpus):
        data = read_corpus(LanguageConfig(corpus=(str(corpus),), held_out=0.1, length=16))
        documents = {}
        for name, part in data.parts.items():
            ends = np.flatnonzero(part.ids == END)
            documents[name] = list(map(data.tokens.decode, np.split(part.ids, ends + 1)[:-1]))
            assert part.num_documents == len(documents[name])
            assert part.num_bytes == len(part.ids) - part.num_documents
        assert list(map(len, documents.values())) == [24, 3, 3]
        lines = corpus.read_text().split("\n\n")
        assert {text for texts in documents.values() for text in texts} == set(lines)
        for texts in documents.values():
            assert texts == [line for line in lines if line in texts]  # neighbors stay so
        assert data.openings(18, count=3) == [text[:18] for text in documents["test"]]

    def test_json_lines_and_files(self, tmp_path):
        rows = tmp_path / "rows.JSONL"
        lines = [json.dumps({"body": f"text {i}" * 9}) + "\n" for i in range(4)]
        rows.write_text("".join(lines), encoding="utf-8-sig")
        config = LanguageConfig(corpus=(str(rows),), text_column="body", length=4)
        assert sum(p.num_documents for p in read_corpus(config).parts.values()) == 4
        with pytest.raises(InputError, match=r"'text' on each line.*line 1 of"):
            read_corpus(LanguageConfig(corpus=(str(rows),)))
        whole_file = LanguageConfig(corpus=(str(rows.with_suffix(".txt")),), documents="files")
        rows.with_suffix(".txt").write_text("a\n\nb\n\nc\n\nd")
        with pytest.raises(InputError, match="text for each of training, validation and test"):
            read_corpus(whole_file)

    @pytest.mark.parametrize("documents", ["paragraphs", "files"])
    def test_a_book_without_empty_lines_is_split_by_position(self, tmp_path, capsys, documents):
        book = tmp_path / "book.txt"
        text = "".join(f"Line {n} of the book.\n" for n in range(100))
        book.write_text(text)
        config = LanguageConfig(corpus=(str(book),), held_out=0.1, length=4, documents=documents)
        data = read_corpus(config)
        parts = {name: data.tokens.decode(data.parts[name].ids) for name in data.parts}
        assert "".join(parts.values()) == text
        assert list(parts) == ["train", "validation", "test"]
        assert len(parts["validation"]) == len(parts["test"]) == round(0.1 * len(text))
        assert "its last 10% are test part" in capsys.readouterr().out

    def test_bad_input(self, tmp_path, capsys):
        empty, binary = tmp_path / "empty.txt", tmp_path / "binary.txt"
        empty.write_text("")
        binary.write_bytes(b"\xff\xfe\x00")
        for path, part in (
            (empty, "0 characters"),
            (binary, "Expected UTF-8 text"),
            (tmp_path / "none.txt", "Could not read"),
        ):
            folder = tmp_path / "run"
            assert_refused(capsys, command(folder, path), part)
            assert not folder.exists()

    def test_options_that_contradict_each_other(self):
        for options, message in (
            ({"causal_metric": True}, "causal_metric"),
            ({"attention": "tsa", "position_encoding": "rotary"}, "attention='tsa'"),
            ({"num_heads": 3}, "num_heads=3"),
        ):
            with pytest.raises(InputError, match=message):
                LanguageConfig(**options)

    def test_the_hidden_size_by_the_kind_of_the_feedforward(self):
        for kind, size in (("swiglu", 96 * 8 // 3), ("relu", 96 * 4)):
            assert LanguageConfig(feedforward=kind, model_dim=96).feedforward_dim == size
        assert LanguageConfig(feedforward="relu", feedforward_dim=7).feedforward_dim == 7


class TestBatches:
    def test_every_id_but_the_first_is_predicted_once(self):
        part = Part(np.arange(1, 24, dtype="int32"), 23, 1)
        batches = PackedBatches(part, 4, 3)
        pairs = [batches[i] for i in range(len(batches))]
        labels = np.concatenate([labels.ravel() for _, labels in pairs])
        assert labels[labels != 0].tolist() == list(range(2, 24))
        for inputs, labels in pairs:
            real = labels != 0
            np.testing.assert_array_equal(inputs[real] + 1, labels[real])

    def test_depend_on_seed_and_epoch_alone(self):
        part = Part(np.arange(1, 200, dtype="int32"), 199, 1)

        def batch(seed, epoch):
            batches = PackedBatches(part, 8, 4, seed)
            batches.set_epoch(epoch)
            return batches[2]

        inputs, labels = batch(1, 3)
        np.testing.assert_array_equal(inputs, batch(1, 3)[0])
        np.testing.assert_array_equal(labels, inputs + 1)
        assert (inputs != batch(1, 4)[0]).any()
        assert (inputs != batch(2, 3)[0]).any()

    def test_epochs_begin_at_every_place_that_leaves_room(self):
        batches = PackedBatches(Part(np.arange(1, 43, dtype="int32"), 42, 1), 8, 4, seed=1)
        firsts = set()
        for epoch in range(100):
            batches.set_epoch(epoch)
            inputs, labels = batches[0]
            np.testing.assert_array_equal(labels, inputs + 1)
            firsts.add(inputs.min())
        assert firsts == set(range(1, 11))


def test_bits_per_byte_of_a_uniform_and_of_a_unigram_model():
    text = "abracadabra"
    tokens = Tokens.learn("bytes", [])
    ids = np.append(tokens.encode(text), END).astype("int32")
    part = Part(ids, len(text), 1)
    inputs = keras.Input((None,), dtype="int32")
    table = keras.layers.Embedding(tokens.vocabulary_size, tokens.vocabulary_size)
    model = keras.Model(inputs, table(inputs))
    shape = (tokens.vocabulary_size,) * 2
    table.set_weights([np.zeros(shape)])
    result = measure(model, part, 4, 2)
    # Each of 11 ids, the end among them, costs log2(259) bits; the first byte is given.
    assert result["bits_per_byte"] == pytest.approx(11 * math.log2(259) / 11)
    assert result["perplexity"] == pytest.approx(259)
    counts = np.bincount(ids, minlength=shape[0]) + 1e-30
    table.set_weights([np.tile(np.log(counts / counts.sum()), (shape[0], 1))])
    want = -sum(math.log2(counts[i] / counts.sum()) for i in ids[1:]) / len(text)
    assert measure(model, part, 5, 3)["bits_per_byte"] == pytest.approx(want, rel=1e-5)


def test_a_run_folder_holds_it_all(uninterrupted, capsys):
    assert {path.name for path in uninterrupted.iterdir()} == FILES - {"export.json"}
    results = Run(uninterrupted).results
    assert 0 < results["test"]["bits_per_byte"] < 8
    assert results["test"]["perplexity"] == pytest.approx(math.exp(results["test"]["loss"]))
    assert len(Run(uninterrupted).read_metrics()) == 3
    assert main(["language", "--run-dir", str(uninterrupted), "--resume"]) == 0
    assert "finished" in capsys.readouterr().out


@pytest.mark.slow
def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    uninterrupted, corpus, tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    interrupted_after(1, command(folder, corpus), monkeypatch)
    assert main(["language", "--run-dir", str(folder), "--resume"]) == 0
    assert_equal(folder, uninterrupted)


def test_an_export_needs_a_runtime(corpus, tmp_path, monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *x: None if name == "onnxruntime" else found(name, *x),
    )
    arguments = command(tmp_path / "run", corpus, "--export", "--saved-models", str(tmp_path))
    assert_refused(capsys, arguments, "pip install '.[onnx]'", main=main)
    assert not (tmp_path / "run").exists()


def test_generate_reads_the_last_tokens_beyond_the_length_of_the_model(uninterrupted, capsys):
    command = ["generate", str(uninterrupted), "--stop", "zzz"]
    assert whole([*command, "the c", "--max-tokens", "11"]) == 0
    first = capsys.readouterr().out[:-1]
    assert len(first) == 16
    assert whole([*command, "the c"]) == 0  # as many as the model still reads
    assert capsys.readouterr().out[:-1] == first
    assert whole([*command, "the c", "--max-tokens", "21"]) == 0
    captured = capsys.readouterr()
    assert "the model reads 16 tokens (--length of language)" in captured.err
    assert captured.out.startswith(first)
    for end, count in ((first[-8:], 8), (captured.out[16:24], 2)):
        assert whole([*command, end, "--max-tokens", str(count)]) == 0
        assert capsys.readouterr().out[:-1] in captured.out


def test_generate_writes_the_prompt_and_what_follows(uninterrupted, capsys):
    options = ["--max-tokens", "8"]
    assert whole(["generate", str(uninterrupted), "the c", *options]) == 0
    text = capsys.readouterr().out
    assert text.startswith("the c")
    assert whole(["generate", str(uninterrupted), "the c", *options, "--stop", text[5]]) == 0
    assert capsys.readouterr().out == text[:6] + "\n"
    for more, part in (
        (["zzz"], "'z'"),
        (["the", "--metric-cache"], "key_value_cache=True|metric_cache=True"),
        (["the", "--top-p", "0"], "top_p"),
    ):
        assert whole(["generate", str(uninterrupted), *more, *options]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert any(each in error for each in part.split("|")), error
    assert whole(["generate", str(uninterrupted), "the cat sat on the a"]) == 2
    assert "at most 15 ids" in capsys.readouterr().err
    assert whole(["generate", str(uninterrupted.parent), "the"]) == 2
    assert "Expected the folder of a run of language" in capsys.readouterr().err


@pytest.mark.slow
def test_an_exported_model_generates(uninterrupted, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    assert whole(["export", str(uninterrupted), "--onnx", str(tmp_path / "onnx")]) == 0
    served = tmp_path / "served"
    shutil.copytree(tmp_path / "onnx", served / "10/assets.extra/engines/onnxruntime")
    for name in ("9", "11.tmp", "012"):
        (served / name).mkdir()
    sampled = ["the c", "--max-tokens", "8", "--temperature", "0.9", "--seed", "3"]
    texts = []
    for folder in (uninterrupted, tmp_path / "onnx", served, served / "10"):
        capsys.readouterr()
        assert whole(["generate", str(folder), *sampled]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0].startswith("the c")
    assert texts == texts[:1] * 4
    sampled[2] = "40"  # of models that read 16
    for folder in (uninterrupted, tmp_path / "onnx"):
        assert whole(["generate", str(folder), *sampled]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[-1] == texts[-2]
    monkeypatch.setattr(reader.LanguageModel, "stream", lambda *_, **__: iter(()))
    assert whole(["generate", str(served), "the c"]) == 0  # it ends at once
    assert capsys.readouterr().out == "the c\n"
    monkeypatch.undo()
    for more, part in ((["zzz"], "'z'"), (["the", "--metric-cache"], "metric_cache")):
        assert_refused(capsys, ["generate", str(served), *more], part, main=whole)
    assert_refused(capsys, ["predict", str(served), "zzz"], "'z'", main=whole)
    long = "the cat sat on the a. the dog"  # the model reads 16 characters
    for folder in (uninterrupted, served):
        assert whole(["predict", str(folder), "the c", long, long[-8:]]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[-1] == texts[-2]
    rows = list(csv.DictReader(texts[-1].splitlines()))
    assert rows[1]["continuation"] == rows[2]["continuation"] != rows[0]["continuation"]


@pytest.mark.slow
def test_pieces_of_words(corpus, tmp_path):
    folder = tmp_path / "run"
    pieces = ["--tokens", "pieces", "--vocabulary-size", "280", "--epochs", "1"]
    assert main(command(folder, corpus, *pieces)) == 0
    run = LanguageRun(folder)
    assert run.model.vocabulary_size == run.tokens.vocabulary_size == 280
    options = {"max_tokens": 9, "temperature": 1.0, "seed": 2}
    text = "".join(run.stream("the cat", **options))
    # A stop text is found wherever tokens end.
    for first in range(len(text) - 3):
        stop = text[first : first + 3]
        whole_text = text[: text.index(stop) + 3]
        assert "".join(up_to(run.stream("the cat", **options), stop)) == whole_text


def test_predict_continues_texts(uninterrupted, capsys):
    texts = ["the cat", "the d"]
    assert whole(["predict", str(uninterrupted), *texts, "--format", "jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == texts
    assert all(isinstance(row["continuation"], str) for row in rows)
    pytest.importorskip("jax")
    same, modules = predicted([str(uninterrupted), *texts])
    assert [row["continuation"] for row in same] == [row["continuation"] for row in rows]
    assert not {"tensorflow", "torch", "sklearn", "matplotlib", "pandas"} & modules


@pytest.mark.slow
def test_power_law_attention_is_trained_and_frozen(corpus, tmp_path, capsys):
    folder = tmp_path / "run"
    arguments = ["--attention", "plga", "--residual-units", "1", "--residual-dim", "4"]
    assert main(command(folder, corpus, *arguments)) == 0
    assert "reads ahead" in capsys.readouterr().out
    # Hardly trained, the metric still depends on the text.
    frozen = command(tmp_path / "frozen", corpus, *arguments, "--freeze-metric", "--seed", "1")
    if main(frozen) == 2:
        assert "The metric is not frozen" in capsys.readouterr().err
    else:
        assert "spread of the metric" in capsys.readouterr().out


@pytest.mark.slow
def test_compress(uninterrupted, capsys):
    assert whole(["compress", str(uninterrupted), "--target", "1.5", "--heal-epochs", "1"]) == 0
    capsys.readouterr()
    assert whole(["generate", str(uninterrupted / "compressed"), "the", "--max-tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("the")
