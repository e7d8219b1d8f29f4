"""Small models and hostile texts with which exported folders and pages are tried."""

import functools
import os
import subprocess
import sys

import keras
import numpy as np
from translator_runs import PAIRS, small_translator

from keras_tnattn.models import text_classifier
from keras_tnattn.text.reserved import END, PAD, RESERVED_PIECES, START
from keras_tnattn.text.words import learn_words

NAMES = ["fish", "bird", "<b>çity</b>"]
TEXTS = [
    "a red fish swims",
    "the blue bird flies, high",
    "it's \u0130STANBUL, \u03a3\u0391\u03a3 and Stra\u00dfe",
]
HOSTILE = [
    "",
    " \t\r\n\v\f",
    "\x00a\x00b",
    "\u0130I \u0131i \u03a3\u0391\u03a3 \u038c\u03a3\u039f\u03a3 \u1e9e\u00df \u01c5 \ufb01",
    "a\u00a0b\u2028c\u3000d\u200be",
    "e\u0301 \u0301 \ufeffx",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001d4b3\U0001d4ce \U0010ffff",
    "'quoted' it's ''",
    "\x1c\x1d\x85",
    "word" * 5000,
    '-_-[]\\^`{|}~!"#$%&()*+,./:;<=>?@',
]
SENTENCES = [
    *(source for source, _ in PAIRS[:4]),
    "",
    "rios ☃",
    "¿ ¤ ☃",
    "Eu vi um rio. " * 12,
    "\t \n",
]
HOSTILE_SENTENCES = [
    "\x00a\x00b. \x1c\x1d\x85",
    "\u0130I \u0131i \u03a3\u0391\u03a3 \u1e9e\u00df \u01c5 \ufb01 ²",
    "a\u00a0b\u2028c\u3000d\u200be\u00ad",
    "e\u0301 \u0301 \ufeffx \u1e69\u0323",
    "\U0001f469\u200d\U0001f467 \U0001d4b3 \U0010ffff \ue000",
    "3.5 ...x--y\uffed \uffed\uffed.\u25a0 '' #ed ##ed [UNK] [START]",
    "中文字。\uff01 \u0663\u0664 \u00bd \u2167 $1+1=2€ ~`^|",
    "w" * 120 + " " + "\u00e9" * 51,
]
# Arguments of tokenizers; those of BERT have a key of their own.
TOKENIZERS = [
    {},
    {"case": "lower", "keep_accents": False},
    {"case": "turkish", "form": "NFKC"},
    {"bert": False},
    {"bert": True},
]

RUNTIMES = {"onnxruntime": "onnxruntime", "litert": "ai_edge_litert"}


def printed_alone(folder, expression):
    """Returns what a process prints that has the folder's reader as `model`, and little else."""
    program = (
        f"import sys, reader; model = reader.load('.'); print({expression});"
        "print({'keras', 'tensorflow', 'keras_tnattn', 'jax', 'torch'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": ""}
    options = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", program], **options)
    assert done.stdout.endswith("\nset()\n"), done.stderr
    return done.stdout.removesuffix("\nset()\n")


@functools.cache
def classifier():
    """Returns an untrained classifier and its vectorizer."""
    keras.utils.set_random_seed(0)
    words = learn_words([*TEXTS, *HOSTILE], 200, max_words=12)
    return text_classifier(words.vocabulary_size(), 3, "tsa", embedding_dim=8), words


def talkative(source, target, attention="sdpa", **options):
    """Returns an untrained translator that would else say nothing at all."""
    sizes = source.vocabulary_size, target.vocabulary_size
    model = small_translator(*sizes, attention, **options)
    bias = np.zeros(model.output_shape[-1], "float32")
    bias[[PAD, START, END]] = -3
    model.get_layer("logits").bias.assign(bias)
    return model


def tokenizer_of_hostile(options):
    """Returns a tokenizer whose pieces are the characters of the sentences, and some more."""
    from keras_tnattn.text.bert_pieces import BertPieceTokenizer
    from keras_tnattn.text.word_pieces import WordPieceTokenizer

    characters = sorted(set("".join([*HOSTILE_SENTENCES, *SENTENCES])) - set(" \t\n\x00"))
    more = ["vi", "##ed", "￭.", *(f"##{c}" for c in characters)]
    pieces = list(dict.fromkeys([*RESERVED_PIECES, *characters, *more]))
    if "bert" in options:
        return BertPieceTokenizer(pieces, options["bert"])
    return WordPieceTokenizer(pieces, **options)
