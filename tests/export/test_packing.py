"""Vocabularies and files in few bytes, restored by the script of the page."""

import base64
import gzip
import json
import math
import pydoc_data.topics
import re
import shutil
import subprocess

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("pages are written on TensorFlow", allow_module_level=True)
pytest.importorskip("onnx")

from portable_models import HOSTILE, NAMES, TEXTS, classifier

from keras_tnattn.export import export_portable, web
from keras_tnattn.export.packing import packed_model, packed_words

NODE = shutil.which("node")
RANDOM = np.random.default_rng(0)
SYLLABLES = ["ba", "ko", "li", "mu", "ne", "strasse", "übu", "ﬁ", "\U0001d4b3", "9"]
MANY = list(
    dict.fromkeys("".join(RANDOM.choice(SYLLABLES, RANDOM.integers(1, 9))) for _ in range(3000))
)
VOCABULARIES = {
    "none": [],
    "one": ["a"],
    "in order": ["a", "ab", "abc"],
    "not in order": ["abc", "z", "ab", "a", "b"],
    "many": [str(word) for word in RANDOM.permutation(MANY)],
    "long": ["b" * 40, "b" * 41, "b" * 26, "b" * 25 + "c", "b" * 400],
    "control characters": ["\x01", "\x01\x02", '"\\', "\u2028", "\ufeff", "\x7f"],
    "upper case": ["A", "ABC", "abc", "Z"],
    "upper case and private": ["A", "B\ue000", "abc"],
    "every mark": ["A", "\ue001", "\U000f0003"],
}


def in_node(tmp_path, program, *data):
    """Runs a program with the script of the page; returns what it prints as JSON."""
    shutil.copyfile(web._PAGE / "unpacking.js", tmp_path / "unpacking.mjs")
    (tmp_path / "data.json").write_text(json.dumps(data), "utf-8")
    head = (
        "import { unpackedModel, unpackedWords } from './unpacking.mjs';"
        "import { readFileSync } from 'fs';"
        "const data = JSON.parse(readFileSync('data.json'));"
    )
    (tmp_path / "run.mjs").write_text(head + program, "utf-8")
    done = subprocess.run(
        [NODE, "run.mjs"], cwd=tmp_path, capture_output=True, encoding="utf-8", check=True
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(not NODE, reason="needs Node.js")
def test_the_page_restores_vocabularies(tmp_path):
    packed = {name: packed_words(words) for name, words in VOCABULARIES.items()}
    assert packed["every mark"] == VOCABULARIES["every mark"]
    assert packed["upper case"]["first"] != packed["many"]["first"] == "A"
    program = (
        "console.log(JSON.stringify(Object.fromEntries(Object.entries(data[0])"
        ".filter(([, x]) => !Array.isArray(x)).map(([name, x]) => [name, unpackedWords(x)]))));"
    )
    restored = in_node(tmp_path, program, packed)
    assert restored == {name: x for name, x in VOCABULARIES.items() if name != "every mark"}


def test_the_order_takes_hardly_more_than_its_information():
    words = VOCABULARIES["many"]
    packed = packed_words(words)
    least = math.lgamma(len(words) + 1) / math.log(2) / 8
    assert least < len(base64.b64decode(packed["order"])) < 1.03 * least


def test_words_of_a_language_take_less_than_with_gzip():
    text = " ".join(pydoc_data.topics.topics.values()).lower()
    words = [str(word) for word in RANDOM.permutation(sorted(set(re.findall(r"\w+", text))))]
    assert len(words) > 3000
    plain, packed = (
        len(gzip.compress(json.dumps(x, ensure_ascii=False).encode()))
        for x in (words, packed_words(words))
    )
    assert packed < 0.97 * plain


@pytest.mark.skipif(not NODE, reason="needs Node.js")
def test_the_page_restores_files_of_models(tmp_path):
    model, words = classifier()
    folder = export_portable(model, words, NAMES, tmp_path / "pets", texts=[*TEXTS, *HOSTILE])
    file = folder / "model.onnx"
    packed, tensors = packed_model(file)
    assert sum(count for _, count in tensors) >= words.vocabulary_size() * 8
    content = file.read_bytes()
    program = (
        "const [packed, bytes, tensors] = data;"
        "const whole = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));"
        "console.log(JSON.stringify(Array.from(unpackedModel(whole, bytes, tensors))));"
    )
    whole = base64.b64encode(gzip.decompress(packed)).decode()
    restored = in_node(tmp_path, program, whole, len(content), tensors)
    assert bytes(restored) == content
    assert len(packed) < len(gzip.compress(content))
