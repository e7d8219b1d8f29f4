"""The Python on the pages runs as it stands there."""

import collections
import re
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_tnattn.models.attentions import ATTENTIONS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Pages whose examples go on from a trained model, here a small one. Those that load an export of a
# demo are not among them: the demos load it themselves.
GO_ON = ("backends.md", "guides/compress.md")
ALONE = (
    "start.md",
    "guides/long_sequences.md",
    "guides/sentence_encoder.md",
    "guides/text_classifier.md",
)
# Pages whose blocks show what they print as comments.
WITH_OUTPUTS = (
    "layers.md",
    "guides/change_a_mechanism.md",
    "mechanisms/graph_attention.md",
    "mechanisms/graph_tensor_network.md",
    "mechanisms/power_law_graph_attention.md",
    "mechanisms/tensorized_attention.md",
    "mechanisms/tn_attention.md",
    "mechanisms/tt_maps.md",
)
PRINTED = re.compile(r"^print\(.+\)\s+# ([\[(\dTC][^:\n]*)", re.M)


def run(page, names):
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), names)
    return names


@pytest.mark.parametrize("page", ALONE)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", keras.backend.backend())  # which a page may set
    run(page, {})


@pytest.mark.parametrize("page", WITH_OUTPUTS)
def test_blocks_print_what_their_comments_say(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shown = PRINTED.findall((DOCS / page).read_text(encoding="utf-8"))
    assert shown
    run(page, {})
    printed = capsys.readouterr().out.splitlines()
    assert collections.Counter(shown) - collections.Counter(printed) == {}


def test_all_mechanisms_open_with_a_block_that_is_run():
    pages = {f"mechanisms/{path.name}" for path in (DOCS / "mechanisms").glob("*.md")}
    assert pages - {"mechanisms/index.md"} <= set(WITH_OUTPUTS)
    for page in pages - {"mechanisms/index.md"}:
        opening = (DOCS / page).read_text(encoding="utf-8").split("\n## ")[0]
        assert "```python" in opening


def test_linear_attention_as_tensor_network_attention():
    names = run("mechanisms/tn_attention.md", {})
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(names["got"]), names["expected"], atol=1e-5
    )


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of tf2onnx
@pytest.mark.parametrize("page", GO_ON)
def test_examples_go_on_from_a_model(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(256, 64),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(3),
        ]
    )
    inputs = np.random.default_rng(0).integers(0, 256, size=(8, 5)).astype("int32")
    names = run(page, {"keras": keras, "model": model, "inputs": inputs, "ids": inputs})
    outputs = names["model"].predict(inputs, verbose=0)
    assert outputs.shape == (8, 3)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow exports")
def test_a_classifier_of_images_is_exported(tmp_path, monkeypatch):
    import tensorflow as tf

    monkeypatch.chdir(tmp_path)
    layers = [keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8)), *layers])
    run("guides/images.md", {"model": model})
    served = tf.saved_model.load(str(tmp_path / "saved_models/digits/1"))
    pictures = np.random.default_rng(0).random((3, 8, 8)).astype("float32")
    answers = served.signatures["serving_default"](images=tf.constant(pictures))
    logits = model.predict(pictures, verbose=0)
    assert [label.decode() for label in answers["label"].numpy()] == [
        str(number) for number in logits.argmax(axis=-1)
    ]


def test_front_pages_tell_one_story():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    first = re.search('^description = "(.+)"$', project, re.M)[1]
    citation = " ".join((ROOT / "CITATION.cff").read_text("utf-8").split())
    assert first in citation
    assert (ROOT / "README.md").read_text("utf-8").startswith(f"# keras_tnattn\n\n{first}\n\n![")
    index = (DOCS / "index.md").read_text("utf-8")
    assert index.startswith("```{include} ../README.md\n")


def test_contributing_names_each_place_that_depends_on_the_backend():
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    places = contributing.split("### A backend")[1].split("<!-- end")[0]
    asking = [
        path
        for path in (ROOT / "keras_tnattn").rglob("*.py")
        if re.search(r"backend\.backend\(\) [!=]=", path.read_text("utf-8"))
    ]
    assert len(asking) > 3
    assert [p for p in asking if p.name not in places and f"{p.parent.name}/`" not in places] == []


def test_the_guide_of_the_estimator_lists_all_attentions():
    text = (DOCS / "guides/text_classifier.md").read_text(encoding="utf-8")
    table = text.split("| `attention` | layer |")[1].split("\n\n")[0]
    listed = re.findall(r'`"(\w+)"`', table)
    assert sorted(listed) == sorted(ATTENTIONS)
    for row in table.strip().splitlines()[1:-1]:
        names, layers = (re.findall(r'`"?([\w.]+)"?`', cell) for cell in row.strip("|").split("|"))
        made = [type(ATTENTIONS[name].make(2, 16)).__name__ for name in names]
        assert [layer.rpartition(".")[2] for layer in layers] == made
