"""Vocabularies and files in few bytes, restored by the script of the page."""

import base64
import gzip
import hashlib
import json
import math
import pydoc_data.topics
import re
import sys

import numpy as np
import pytest
from web_pages import in_node, needs_node

from keras_small.coding import arrays
from keras_small.storage.integer_groups import pack
from keras_tnattn_train.exports.packing import packed_model, packed_words

onnx = pytest.importorskip("onnx")
pytest.importorskip("constriction")
RANDOM = np.random.default_rng(0)
SYLLABLES = ["ba", "ko", "li", "mu", "ne", "strasse", "übu", "ﬁ", "\U0001d4b3", "9"]
MANY = list(
    dict.fromkeys("".join(RANDOM.choice(SYLLABLES, RANDOM.integers(1, 9))) for _ in range(3000))
)
METHODS = {bits: f"{bits} last" for bits in (8, 6, 4, 3, 2)}
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


@needs_node
def test_the_page_restores_vocabularies(tmp_path):
    packed = {name: packed_words(words) for name, words in VOCABULARIES.items()}
    assert packed["every mark"] == VOCABULARIES["every mark"]
    assert packed["upper case"]["first"] != packed["many"]["first"] == "A"
    program = (
        "console.log(JSON.stringify(Object.fromEntries(Object.entries(data[0])"
        ".filter(([, x]) => !Array.isArray(x)).map(([name, x]) => [name, unpackedWords(x)]))));"
    )
    restored = in_node(tmp_path, "unpacking.js", program, packed)
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


def codes():
    """Yields arrays and the bits of their symbols, of usual and of extreme frequencies."""
    size, rare = 20_000, np.zeros(2**18, "uint8")
    rare[9] = 1
    numbers = [np.full(size, 3), rare, 255 * RANDOM.integers(0, 2, size), np.arange(size) % 256]
    numbers += [RANDOM.normal(128, 2**n, size).clip(0, 255) for n in range(-1, 7)]
    numbers += [RANDOM.choice([7, 200, 201], size, p=(1e-4, 1 - 2e-4, 1e-4)), RANDOM.normal(size=4)]
    for array in numbers:
        for bits in METHODS:
            yield pack(array.astype("uint8") & (2**bits - 1), bits)[None], bits
        yield array.astype("uint8").view("uint32"), 8
        yield array.astype("float32"), 8
    yield RANDOM.normal(size=10), 8
    # Rows and columns in classes.
    sizes = 2.0 ** RANDOM.integers(0, 5, (300, 1)) * 0.95 ** np.arange(48)
    numbers = np.clip(np.rint(sizes * RANDOM.normal(size=(300, 48)) + 128), 0, 255).astype("uint8")
    for bits in METHODS:
        yield pack((numbers & (2**bits - 1)).T, bits).T, bits


@needs_node
def test_the_page_decodes_what_the_coder_wrote(tmp_path):
    whole, expected = [], []
    for array, bits in codes():
        method = METHODS[bits] if array.dtype == "uint8" else "bytes"
        code = arrays._encode(arrays._streams(array, method))
        code, width = arrays._filled_up(code, array.nbytes), array.itemsize
        how = {"bits": bits, "width": width, "size": array.nbytes}
        how["columns"] = array.shape[-1] * 8 // bits
        whole.append([base64.b64encode(code).decode(), how])
        expected.append(hashlib.sha256(array.tobytes()).hexdigest())
    program = (
        "import { createHash } from 'crypto';"
        "console.log(JSON.stringify(data[0].map(([code, how]) => createHash('sha256')"
        ".update(decoded(new Uint8Array(Buffer.from(code, 'base64')), how)).digest('hex'))));"
    )
    assert in_node(tmp_path, "unpacking.js", program, whole) == expected


@needs_node
def test_the_page_refuses_codes_that_are_damaged(tmp_path):
    sizes = np.repeat([0.1, 0.4], 2000)
    stream = RANDOM.geometric(sizes).clip(0, 200).astype("uint8")
    code = arrays._encode(arrays._streams(stream.reshape(50, 80), "8 last"))
    places = RANDOM.integers(0, len(code), 200)
    damaged = [bytes([*code[:n], code[n] ^ 1 << n % 8, *code[n + 1 :]]) for n in places]
    damaged += [code[:-8], code[:50], b"\0\xff" + bytes(50), b"", bytes(50), code + b"abcd"]
    damaged += [RANDOM.bytes(len(code)) for _ in range(50)]
    program = (
        "const errors = data[0].map((code) => {"
        "const packed = new Uint8Array(Buffer.from(code, 'base64'));"
        "const parts = [{ tensors: [[0, data[1]]], bits: 8, width: 1, columns: 80, "
        "bytes: packed.length }];"
        "try { return Buffer.from(unpackedModel(packed, data[1], parts)).toString('base64'); }"
        "catch (error) { return error.message; } });"
        "console.log(JSON.stringify(errors));"
    )
    texts = [base64.b64encode(x).decode() for x in [code, *damaged]]
    whole, *errors = in_node(tmp_path, "unpacking.js", program, texts, len(stream))
    assert whole == base64.b64encode(stream).decode()
    known = {
        "it has a table without frequencies",
        "it ends within a table",
        "it has tensors that are too large for their codes",
        "its code has other symbols",
    }
    assert known < set(errors)
    # A table that begins with another symbol is a table, too.
    assert sum(error not in known for error in errors) < 8


@needs_node
@pytest.mark.parametrize("is_coded", [True, False])
def test_the_page_restores_files_of_models(is_coded, tmp_path, monkeypatch):
    peaked = RANDOM.binomial(15, 0.5, (1000, 300))
    tensors = {
        "nibbles": pack(peaked, 4),
        "rows": pack(3 * peaked.T, 6).T,
        "bytes": peaked.astype("int8")[None],
        "scales": np.full((300, 8), 0.01, "float32"),
        **dict.fromkeys(("kernel", "same"), RANDOM.normal(size=(300, 70)).astype("float32")),
        "bias": RANDOM.normal(size=3000).astype("float32"),
        "norm": RANDOM.normal(1, 0.1, 4000).astype("float32"),
        "few": np.arange(3),
    }
    inputs = [onnx.numpy_helper.from_array(x, name) for name, x in tensors.items()]
    graph = onnx.helper.make_graph([], "weights", [], [], inputs)
    file = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph), file)
    if not is_coded:
        monkeypatch.setitem(sys.modules, "constriction", None)
    packed, parts = packed_model(file)
    kinds = [(part["width"], part["bits"], len(part["tensors"])) for part in parts]
    coded = [*((1, bits, 1) for bits in (4, 6, 8)), (4, 8, 1), (4, 8, 1), (4, 8, 2)]
    assert kinds == (coded if is_coded else [])
    assert {part["columns"] for part in parts} >= ({300, 600} if is_coded else set())
    content = file.read_bytes()
    program = (
        "const [packed, bytes, parts] = data;"
        "const whole = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));"
        "console.log(JSON.stringify(Array.from(unpackedModel(whole, bytes, parts))));"
    )
    whole = base64.b64encode(gzip.decompress(packed)).decode()
    restored = in_node(tmp_path, "unpacking.js", program, whole, len(content), parts)
    assert bytes(restored) == content
    assert (len(packed) < 0.95 * len(gzip.compress(content))) == is_coded
