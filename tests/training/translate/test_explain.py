import csv
import json
import re

import numpy as np
import pytest
from keras import ops
from matplotlib.figure import Figure
from run_folders import assert_refused
from translator_runs import make_run, small_translator

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.programs import explain as main
from keras_tnattn_train.runs.checkpoints import save_weights
from keras_tnattn_train.translate.evaluate import EvaluateOptions, evaluate_run
from keras_tnattn_train.translate.explain import ExplainOptions, attention_outputs, explain_run
from keras_tnattn_train.translate.explained_page import index_page

pytestmark = pytest.mark.usefixtures("eagerly")
BLOCKS = ("encoder_0", "decoder_0.self", "decoder_0.cross")
SOURCE, TARGET = np.array([2, 5, 9, 7, 3]), np.array([2, 8, 6, 6])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "small"
    return folder, *make_run(folder)


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn, by the folder and name of the file; the files stay empty."""
    result = {}

    def save(self, path, **options):
        path.write_bytes(b"")
        panels = [axes for axes in self.axes if axes.get_label() != "<colorbar>"]
        result[f"{path.parent.name}/{path.name.removeprefix('.partial-')}"] = panels

    monkeypatch.setattr(Figure, "savefig", save)
    return result


def explained_by(folder, sentence, target=None, **options):
    options = {"run": str(folder), "sentence": sentence, "target": target, **options}
    return explain_run(ExplainOptions(bootstraps=0, **options))


def image(axes):
    return np.asarray(axes.images[0].get_array())


def labels(axes):
    return [
        [t.get_text() for t in side] for side in (axes.get_yticklabels(), axes.get_xticklabels())
    ]


class TestOutputs:
    @pytest.mark.parametrize("causal_metric", [False, True])
    def test_equal_the_definition(self, causal_metric):
        # From the recorded inputs of each attention; the model's own output closes the chain.
        model = small_translator(20, 19, causal_metric=causal_metric)
        computed = attention_outputs(model, SOURCE, TARGET)
        assert tuple(computed) == BLOCKS
        rows = {"encoder_0": (5, 5), "decoder_0.self": (4, 4), "decoder_0.cross": (4, 5)}
        layers = [model.get_layer("encoder_0").attention]
        layers += [
            getattr(model.get_layer("decoder_0"), f"{k}_attention") for k in ("self", "cross")
        ]
        for (block, outputs), layer in zip(computed.items(), layers, strict=True):
            assert outputs["E_LM"].shape == outputs["E"].shape == (2, *rows[block])
            for name in ("P", "a", "b_a"):
                want = ops.convert_to_numpy(getattr(layer, f"power_law_{name}"))
                np.testing.assert_array_equal(outputs[name], want)
            curvature = outputs["a"] @ outputs["A_LM"] ** outputs["P"] + outputs["b_a"]
            np.testing.assert_allclose(outputs["G_LM"], curvature, rtol=1e-3, atol=1e-3)
            assert outputs["A_LM"].shape == (2, 4, 4)
            energy = outputs["E"].astype("float64")
            if block == "decoder_0.self":
                assert np.abs(np.triu(energy, 1)).max() > 0
                energy = np.where(np.tril(np.ones((4, 4))), energy, -np.inf)
            weights = np.exp(energy - energy.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            np.testing.assert_allclose(outputs["E_LM"], weights, atol=1e-5)

    def test_are_those_of_the_last_position_of_a_causal_metric(self):
        causal, whole = (small_translator(20, 19, causal_metric=c) for c in (True, False))
        got, want = (attention_outputs(m, SOURCE, TARGET) for m in (causal, whole))
        for block in ("encoder_0", "decoder_0.self"):
            np.testing.assert_allclose(
                got[block]["A_LM"], want[block]["A_LM"], rtol=1e-4, atol=1e-6
            )
        # The encoder's metric is that of the whole sentence: so is all that comes of it.
        np.testing.assert_allclose(got["encoder_0"]["E"], want["encoder_0"]["E"], rtol=1e-5)
        assert np.abs(got["decoder_0.self"]["E"] - want["decoder_0.self"]["E"]).max() > 1e-3

    def test_of_dot_product_attention(self):
        computed = attention_outputs(small_translator(20, 19, "sdpa"), SOURCE, TARGET)
        assert set(computed) == {*BLOCKS, *(block.replace("0", "1") for block in BLOCKS)}
        for outputs in computed.values():
            assert set(outputs) == {"scores"}
            np.testing.assert_allclose(outputs["scores"].sum(-1), 1, rtol=1e-5)


class TestPictures:
    @pytest.mark.slow
    def test_of_every_block_and_head(self, run, drawn):
        folder, model, corpus = run
        source, target = corpus.tokenizers
        explained = explained_by(folder, "vi três gatos", target="I, saw cats.")
        computed = attention_outputs(
            model,
            source.tokenize(["vi três gatos"])[0].numpy(),
            target.tokenize(["I, saw cats."])[0].numpy()[:-1],
        )
        assert explained["files"] == list(drawn)
        assert set(drawn) == {
            f"{block}/{name}.png"
            for block in BLOCKS
            for name in (
                *("E_LM", "E", "head_2_learned", "head_2_inferred"),
                *(
                    f"{n}{kind}"
                    for n in ("P", "a", "b_a", "A_LM", "G_LM")
                    for kind in ("", "_histogram")
                ),
            )
        }
        for block, outputs in computed.items():
            for name, matrices in outputs.items():
                for head, axes in enumerate(drawn.get(f"{block}/{name}.png", [])):
                    np.testing.assert_array_equal(image(axes), matrices[head])
                    assert f"head {head + 1}" in axes.get_title()
            for name in ("P", "a", "b_a", "A_LM", "G_LM"):
                panels = drawn[f"{block}/{name}_histogram.png"]
                assert len(panels) == 2
                for axes in panels:
                    assert sum(bar.get_height() for bar in axes.patches) == 16
                    assert len(axes.lines) == (name != "A_LM")  # the line at zero
                    assert axes.get_yscale() == ("log" if name == "A_LM" else "linear")
            learned = drawn[f"{block}/head_2_learned.png"]
            for axes, name in zip(learned[::2], ("P", "a", "b_a"), strict=True):
                np.testing.assert_array_equal(image(axes), outputs[name][1])
            inferred = drawn[f"{block}/head_2_inferred.png"]
            for axes, name in zip(inferred[::2], ("A_LM", "G_LM", "E_LM"), strict=True):
                np.testing.assert_array_equal(image(axes), outputs[name][1])

        pieces = [source.vocabulary[i] for i in source.tokenize(["vi três gatos"])[0].numpy()]
        words = ["[START]", "I", "■,", "saw", "cats", "■.", "[END]"]
        assert labels(drawn["encoder_0/E_LM.png"][0]) == [pieces, pieces]
        assert labels(drawn["decoder_0.self/E.png"][0]) == [words[:-1], words[:-1]]
        assert labels(drawn["decoder_0.cross/E_LM.png"][0]) == [words[1:], pieces]
        with (folder / "explained/distributions.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert [(row["block"], row["matrix"], row["head"]) for row in rows] == [
            (block, name, str(head))
            for block in BLOCKS
            for name in ("P", "a", "b_a", "A_LM", "G_LM")
            for head in (1, 2)
        ]
        for row in rows:
            entries = computed[row["block"]][row["matrix"]][int(row["head"]) - 1]
            mean = entries.astype("float64").mean()
            assert float(row["mean"]) == pytest.approx(mean, abs=1e-6)
            symmetric = entries.astype("float64") + entries.T
            smallest = np.linalg.eigvalsh(symmetric).min() / 2
            assert float(row["smallest_eigenvalue"]) == pytest.approx(smallest, rel=1e-4, abs=1e-5)
        written = json.loads((folder / "explained/explanation.json").read_text(encoding="utf-8"))
        assert written["target"] == "I, saw cats."
        assert written["target_given"]
        assert written["source_pieces"] == pieces

    def test_of_dot_product_attention(self, tmp_path, drawn):
        make_run(tmp_path / "run", "sdpa")
        explained = explain_run(
            ExplainOptions(run=str(tmp_path / "run"), sentence="vi", target="I, saw", heads=(2,))
        )
        assert len(explained["files"]) == 6
        # Nothing is about power laws, and what is between the sentences comes first.
        assert explained["files"][:2] == [
            "decoder_0.cross/scores.png",
            "decoder_1.cross/scores.png",
        ]
        assert explained["verdicts"] == {}
        written = {path.name for path in (tmp_path / "run/explained").iterdir() if path.is_file()}
        assert written == {"explanation.json", "index.html"}
        page = (tmp_path / "run/explained/index.html").read_text("utf-8")
        assert re.findall("<dt>([^<]*)</dt>", page) == ["scores"]
        assert re.findall("<h2>([^<]*)</h2>", page)[0] == "decoder_0.cross, between the sentences"
        assert {name.partition("/")[2] for name in drawn} == {"scores.png"}
        assert all(len(panels) == 1 for panels in drawn.values())

    def test_a_notice_names_the_blocks_without_pictures(self, tmp_path, drawn, capsys):
        make_run(tmp_path / "run", "sdpa", encoder_attention="none")
        explained = explained_by(tmp_path / "run", "vi", "I, saw", heads=(1,))
        notice = "without pictures, because the attention has no scores: encoder_0, encoder_1\n"
        assert capsys.readouterr().out == notice
        blocks = [f"decoder_{i}.{side}" for side in ("cross", "self") for i in (0, 1)]
        assert explained["files"] == [f"{block}/scores.png" for block in blocks]
        explained = explained_by(tmp_path / "run", "vi", "I, saw", blocks=("decoder_1.self",))
        assert capsys.readouterr().out == ""
        assert explained["files"] == ["decoder_1.self/scores.png"]
        with pytest.raises(InputError, match=r"decoder_1\.cross\. Received: block='encoder_1'"):
            explained_by(tmp_path / "run", "vi", "I, saw", blocks=("decoder_0.self", "encoder_1"))


def test_the_index_shows_every_picture():
    files = ["encoder_0/E.png", "encoder_0/P.png", "decoder_0.self/E.png"]
    page = index_page({"source": "a < b", "target": "c"}, files)
    assert "<h1>a &lt; b</h1>" in page
    assert re.findall('src="([^"]*)"', page) == files
    assert re.findall("<dt>([^<]*)</dt>", page) == ["E", "P"]
    files = ["decoder_0.cross/E_LM.png", "decoder_0.cross/P_tail.png", "x/head_4_learned.png"]
    page = index_page({"source": "a", "target": "c"}, files)
    assert re.findall("<dt>([^<]*)</dt>", page) == ["E_LM", "tail", "learned"]


@pytest.mark.slow
def test_learned_positions_and_a_longer_translation(tmp_path, drawn):
    # Untrained, it goes on to the limit of the search, beyond the learned positions.
    folder = tmp_path / "run"
    model, _ = make_run(folder, "sdpa", max_length=8, position_encoding="learned")
    save_weights(model, 1, folder / "checkpoints/best_loss.weights.npz")
    options = EvaluateOptions(run=str(folder), limit=2, checkpoint="best_loss")
    evaluated = evaluate_run(options)
    assert (evaluated["sentences"], evaluated["max_length"]) == (2, 8)
    explained = explained_by(folder, "Eu, vi um dois rios.")
    assert len(explained["source_pieces"]) > 8
    assert len(explained["target_pieces"]) > 8
    pieces = explained["target_pieces"][:-1]
    assert labels(drawn["decoder_1.self/scores.png"][0]) == [pieces, pieces]


def test_the_spread_of_the_metric(run, tmp_path, drawn):
    options = {"target": "I, saw", "heads": (1,), "blocks": ("decoder_0.self",)}
    explained = explained_by(run[0], "vi gatos", spread=4, out=str(tmp_path), **options)
    assert explained["files"][-1] == "metric_spread.png"
    (axes,) = drawn[f"{tmp_path.name}/metric_spread.png"]
    with (tmp_path / "metric_spread.csv").open() as file:
        rows = list(csv.DictReader(file))
    paths = {row["layer"] for row in rows}
    assert paths == {"encoder_0/attention", "decoder_0/self_attention", "decoder_0/cross_attention"}
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx([float(row["spread"]) for row in rows])
    assert max(heights) > 0


@pytest.mark.slow
def test_pictures_of_another_sentence_are_removed(run, tmp_path, drawn, capsys):
    out = tmp_path / "out"
    options = {"target": "I, saw", "heads": (1,), "out": str(out)}
    first = explained_by(run[0], "vi gatos", blocks=("encoder_0", "decoder_0.self"), **options)
    others = ["mine.png", "encoder_0/mine.png", "mine/E.png", "encoder_0/E.txt"]
    (out / "mine").mkdir()
    for name in others:
        (out / name).write_bytes(b"")
    assert main([str(run[0]), "vi", "--target", "I", "--heads", "9", "--out", str(out)]) == 2
    assert (out / "explanation.json").exists()  # refused before anything is removed
    assert all((out / name).exists() for name in first["files"])
    second = explained_by(run[0], "vi rios", blocks=("decoder_0.self",), **options)
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    described = {"explanation.json", "index.html", "distributions.csv"}
    assert files == {*second["files"], *others, *described}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([""], "with words. Received: ''"),
        (["vi", "--target", " "], "with words. Received: ' '"),
        (["☃ ¤"], "vocabulary. Received: '☃ ¤', unknown"),
        (["vi", "--target", "☃"], "vocabulary. Received: '☃', unknown"),
        (["vi", "--target", "I", "--heads", "3"], "heads of 1 to 2. Received: head=3"),
        (["vi", "--target", "I", "--heads", "0"], "head=0"),
        (["vi", "--blocks", "decoder_0"], "decoder_0.cross. Received: block='decoder_0'"),
        (["vi", "--beam", "0"], "beam=0"),
        (["vi", "--checkpoint", "x"], "checkpoint='x'"),
    ],
)
def test_bad_input(run, capsys, arguments, expected):
    assert_refused(capsys, [str(run[0]), *arguments], expected, main=main)
