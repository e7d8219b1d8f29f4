import dataclasses
import json
import shutil
import zipfile

import keras
import numpy as np
import pytest
import sacrebleu
from run_folders import assert_refused
from translator_runs import CORPUS, PAIRS, make_run, small_translator

from keras_tnattn.search.beam_search import BeamSearch, Hypotheses
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.programs import evaluate as main
from keras_tnattn_train.runs.checkpoints import save_weights
from keras_tnattn_train.system.files import replacing
from keras_tnattn_train.translate.evaluate import EvaluateOptions, evaluate_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "small"
    model, corpus = make_run(folder)
    # Of its own: only the best checkpoint knows when to end.
    bias = model.get_layer("logits").bias
    bias.assign(keras.ops.convert_to_numpy(bias) + 100 * np.eye(bias.shape[0])[3])
    save_weights(model, 1, folder / "checkpoints/best_loss.weights.npz")
    return folder, corpus


def tsv(path):
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    return header.split("\t"), [line.split("\t") for line in lines]


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="minutes of compiling; test_decoding has the search"
)
def test_writes_what_the_search_finds(run):
    folder, corpus = run
    batches = []
    options = EvaluateOptions(run=str(folder), beam=3, n_best=2, scores=True, batch_size=4)
    results = evaluate_run(options, progress=lambda *now: batches.append(now))
    assert batches == [(4, 6), (6, 6)]
    model = keras.models.load_model(folder / "model.keras")
    header, lines = tsv(folder / "n_best-test-beam3.tsv")
    assert header == ["sentence", "rank", "score", "finished", "hypothesis"]
    best = (folder / "hypotheses-test-beam3.txt").read_text(encoding="utf-8").splitlines()
    target, search = corpus.tokenizers[1], BeamSearch(model, 3)
    for i in range(6):  # one alone, in the order of the corpus
        result = search(corpus.parts["test"].source[i][None])
        texts = [text.decode() for text in target.detokenize(result.ids[0]).numpy()]
        assert best[i] == texts[0]
        for rank in (0, 1):
            sentence, place, score, finished, text = lines[2 * i + rank]
            assert (sentence, place, text) == (str(i + 1), str(rank + 1), texts[rank])
            assert float(score) == pytest.approx(result.scores[0, rank], rel=1e-4)
            assert finished == str(int(result.finished[0, rank]))
    assert len(lines) == 12
    assert len(set(best)) > 1
    assert json.loads((folder / "evaluation-test-beam3.json").read_text("utf-8")) == results
    assert all((folder / name).is_file() for name in results["files"])
    assert results["sentences"] == 6
    assert results["sentences_per_second"] == pytest.approx(6 / results["seconds"])


def test_scores_are_those_of_sacrebleu(run, monkeypatch):
    # A search that finds the references, in the right order, but for one word.
    folder, corpus = run
    target = corpus.tokenizers[1]
    wanted = [pair[1] for pair in CORPUS.test]
    changed = [*wanted[:5], wanted[5].replace("two", "three")]

    rows = {
        tuple(corpus.parts["test"].source[row].tolist()): changed[row]
        for row in range(len(changed))
    }

    class Found(BeamSearch):
        def __call__(self, source, batch_size):
            texts = [rows[tuple(ids[ids != 0].tolist())] for ids in source]
            ids = target.tokenize(texts).to_tensor().numpy()[:, None]
            return Hypotheses(ids, np.zeros((len(ids), 1)), np.ones((len(ids), 1), bool))

    monkeypatch.setattr("keras_tnattn.text.sentence_translator.BeamSearch", Found)
    for tokenize in ("13a", "none"):
        results = evaluate_run(EvaluateOptions(run=str(folder), tokenize=tokenize, batch_size=2))
        want = sacrebleu.corpus_bleu(changed, [wanted], tokenize=tokenize)
        assert results["bleu"] == pytest.approx(want.score)
        assert 0 < results["bleu"] < 100
        assert f"tok:{tokenize}|" in results["bleu_signature"]
        assert results["chrf"] == pytest.approx(sacrebleu.corpus_chrf(changed, [wanted]).score)
        assert results["exact_matches"] == 5
        assert results["exact_match"] == pytest.approx(5 / 6)


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
def test_another_corpus(run, tmp_path, capsys, monkeypatch):
    folder, _ = run
    pairs = [*CORPUS.test, *CORPUS.validation]
    languages = CORPUS.languages
    for name, columns, order in (
        ("own", languages, 1),
        ("swapped", languages[::-1], -1),
        ("unnamed", ("source", "target"), 1),
    ):
        rows = ["\t".join(row[::order]) for row in pairs]
        path = tmp_path / f"{name}.tsv"
        path.write_text("\n".join(["\t".join(columns), *rows]) + "\n", encoding="utf-8")
        assert main([str(folder), "--corpus", str(path), "--checkpoint", "best_loss"]) == 0
        kind = f"{name}-all-beam1-best_loss"
        results = json.loads((folder / f"evaluation-{kind}.json").read_text("utf-8"))
        assert (results["corpus"], results["part"]) == (str(path), "all")
        assert results["sentences"] == len(pairs)
        *others, last = results["notes"]
        assert last == f"{len(pairs)} of {len(pairs)} translations are empty"  # of best_loss
        assert [note.partition(",")[0].partition(";")[0] for note in others] == [
            *{
                "own": [],
                "swapped": ["source and target exchanged"],
                "unnamed": ["source to target is translated as pt to en"],
            }[name],
            "all pairs",
        ]
        assert len(lines_of(folder / f"hypotheses-{kind}.txt")) == len(pairs)
    # A corpus with parts, of which one is translated.
    parts = tmp_path / "parts"
    parts.mkdir()
    for language, side in zip(languages, (0, 1), strict=True):
        for part, subset in (("train", pairs), ("test", CORPUS.test[:3])):
            text = "".join(f"{pair[side]}\n" for pair in subset)
            (parts / f"{language}.{part}.txt").write_text(text, encoding="utf-8")
    results = evaluate_run(EvaluateOptions(run=str(folder), corpus=str(parts)))
    first = evaluate_run(EvaluateOptions(run=str(folder)))
    assert results["sentences"] == 3
    hypotheses = lines_of(folder / "hypotheses-parts-test-beam1.txt")
    assert hypotheses == lines_of(folder / "hypotheses-test-beam1.txt")[:3]
    assert first["corpus"] is None
    # The folder has English first.
    exchanged = "source and target exchanged, because the run translates pt to en"
    assert results["notes"] == [
        "3 test pairs share a sentence with the training part",
        exchanged,
        "3 of 3 translations reached the limit of the search",
    ]
    for side in (0, 1):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (tmp_path / f"mine.{languages[side]}").write_text(text, encoding="utf-8")
    both = f"{tmp_path / 'mine.pt'},{tmp_path / 'mine.en'}"
    files = evaluate_run(EvaluateOptions(run=str(folder), corpus=both, limit=1))["files"]
    assert files[0] == "hypotheses-mine-mine-all-beam1-first1.txt"
    (tmp_path / "other").mkdir()
    same_name = shutil.copy(tmp_path / "own.tsv", tmp_path / "other")
    arguments = [str(folder), "--checkpoint", "best_loss", "--corpus"]
    before = (folder / "evaluation-own-all-beam1-best_loss.json").read_bytes()
    assert main([*arguments, str(same_name)]) == 2
    assert f"which are those of {tmp_path / 'own.tsv'}. Received" in capsys.readouterr().err
    assert (folder / "evaluation-own-all-beam1-best_loss.json").read_bytes() == before
    monkeypatch.chdir(tmp_path / "other")
    assert main([*arguments, "../own.tsv"]) == 0  # the same file
    assert main([*arguments, "own.tsv"]) == 2
    capsys.readouterr()
    assert main([str(folder), "--corpus", str(parts), "--limit", "1"]) == 0
    assert f"note: {results['notes'][0]}" in capsys.readouterr().out

    for arguments, message in (
        (["--corpus", "no/such"], "no/such"),
        (["--corpus", str(parts), "--part", "validation"], "validation part"),
        (["--data-dir", str(tmp_path)], "without a corpus"),
        (["--corpus", "cldr:tr-en"], f"languages of the run, {' and '.join(languages)}"),
    ):
        assert_refused(capsys, [str(folder), *arguments], message, main=main)


@pytest.mark.slow
def test_command(run, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(run[0], folder)
    (folder / "model.keras").unlink()  # as of a run that is not finished; it has checkpoints
    arguments = ["--checkpoint", "best_loss", "--limit", "1", "--scores", "--part", "validation"]
    assert main([str(folder), *arguments]) == 0
    name = "validation-beam1-best_loss-first1"
    assert (folder / f"hypotheses-{name}.txt").read_text(
        encoding="utf-8"
    ) == "\n"  # it ends at once
    header, lines = tsv(folder / f"n_best-{name}.tsv")
    assert header == ["sentence", "rank", "score", "finished", "hypothesis"]
    assert [line[3] for line in lines] == ["1"]
    out, error = capsys.readouterr()
    assert "1 of 1 sentences" in error
    assert "cut" not in out
    assert "BLEU 0.00  nrefs:1|case:mixed|eff:no|tok:13a" in out
    assert "references: the given sentences in the Unicode form NFC" in out
    assert str(folder / f"evaluation-{name}.json") in out
    assert not list(folder.glob(".partial*"))


@pytest.mark.slow
def test_tells_how_many_sources_are_cut(tmp_path, monkeypatch, capsys):
    longer = dataclasses.replace(CORPUS, validation=[("Eu, vi um dois rios.", "I."), *PAIRS[:2]])
    monkeypatch.setattr("translator_runs.CORPUS", longer)
    make_run(tmp_path / "run", max_length=8)  # all others are as long as that
    assert main([str(tmp_path / "run"), "--part", "validation"]) == 0
    results = json.loads((tmp_path / "run/evaluation-validation-beam1.json").read_text("utf-8"))
    assert (results["cut_sources"], results["max_length"]) == (1, 8)
    assert "cut: 1 of 3 sources, longer than 8 word pieces" in capsys.readouterr().out


def test_as_many_translations_as_beams_may_be_asked_for():
    assert EvaluateOptions(run="run", beam=2, n_best=2).n_best == 2
    with pytest.raises(InputError, match="n_best=3, beam=2"):
        EvaluateOptions(run="run", beam=2, n_best=3)


def test_bad_input(run, tmp_path, capsys):
    folder, corpus = run

    def refused(part, folder, *arguments):
        assert_refused(capsys, [str(folder), *arguments], part, main=main)

    refused("beam=0", folder, "--beam", "0")
    refused("target vocabulary", folder, "--beam", "999")
    refused("limit=0", folder, "--limit", "0")
    refused("n_best=2, beam=1", folder, "--n-best", "2")
    refused("best_loss. Received: checkpoint='best'", folder, "--checkpoint", "best")
    refused("no/such", tmp_path / "no/such")
    (tmp_path / "empty").mkdir()
    refused("no config.json", tmp_path / "empty")
    (tmp_path / "rules").mkdir()
    for name, content in (("data", {}), ("config", {"command": "rules"})):
        (tmp_path / f"rules/{name}.json").write_text(json.dumps(content))
    refused("The scores of other runs", tmp_path / "rules")

    other = tmp_path / "other"
    make_run(other)
    whole = (folder / "checkpoints/best_loss.weights.npz").read_bytes()
    (other / "checkpoints/torn.weights.npz").write_bytes(whole[:-9])
    refused("torn.weights.npz", other, "--checkpoint", "torn")
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    (other / "checkpoints/flipped.weights.npz").write_bytes(flipped)
    refused("CRC", other, "--checkpoint", "flipped")
    wide = small_translator(corpus.vocabulary_sizes[0], corpus.vocabulary_sizes[1] + 3)
    save_weights(wide, 1, other / "checkpoints/wide.weights.npz")
    refused("wide.weights.npz", other, "--checkpoint", "wide")
    with replacing(other / "model.keras") as path:
        wide.save(path.with_suffix(".keras"))
        path.with_suffix(".keras").rename(path)
    refused(f"{corpus.vocabulary_sizes}", other)
    whole = (folder / "model.keras").read_bytes()
    (other / "model.keras").write_bytes(whole[: len(whole) // 2])
    refused("damaged or from another", other)
    with zipfile.ZipFile(other / "model.keras", "w"):
        pass
    refused("model.keras", other)
    (other / "model.keras").unlink()
    refused("Finish the run with --resume", other)
    for content in ("[]", "{", '{"prepared": 3}'):
        (other / "data.json").write_text(content)
        refused("data.json", other)
    (other / "data.json").write_text('{"digest": "another"}')
    refused("Received: others", other)
    (other / "prepared/test_source_ids.npy").unlink()
    refused("prepare", other)
