"""Reads a folder that `keras_tnattn_train.exports` wrote: a model and its text.

Needs NumPy and one runtime, `onnxruntime` or `ai-edge-litert`; neither Keras nor TensorFlow. This
file is in the folder, too, and can be copied into any project:

    from reader import load

    classify = load("news")
    classify("a text")  # "science"
    classify(["a text", "another"])  # ["science", "sports"]

    translate = load("pt-en")  # of a translator
    translate("uma frase")  # "a sentence"

    generate = load("tales")  # of a language model
    generate("Once upon ", temperature=0.8)  # "a time"

    encoder = load("minilm")  # of a sentence encoder
    encoder.encode(["a text", "another"])  # vectors of length 1

    python news/reader.py "a text" "another"  # or a text in each line of its input
"""

import codecs
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import re
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1
# The characters that separate words besides white space: the punctuation of ASCII, and NUL, which
# Keras' `StringLookup` loses at the end of a word.
SEPARATORS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~\x00]"""
# Those of `tf.strings.split`: white space of ASCII.
BETWEEN_WORDS = rf"(?:[ \t\n\v\f\r]|{SEPARATORS})+"
# An empty match separates two characters.
BETWEEN_CHARACTERS = rf"{BETWEEN_WORDS}|"
_MOST = 1_000_000  # words or tokens of a text
_SEAL = re.compile(rb'\{"sha256":"([0-9a-f]{64})",')  # of all that follows
_STEP = 64  # words by which texts may differ that are computed together


class Model:
    """A file of a runtime, as a function from named arrays to a list of arrays.

    Attributes:
        inputs: The names of the inputs.
        fixed_batch: Whether it takes one row at a time.
    """

    def __init__(self, path: str | os.PathLike, threads: int | None = None) -> None:
        self.path = Path(path)
        self.fixed_batch = False
        if self.path.suffix == ".onnx":
            self._run, self.inputs = self._onnx(threads)
        else:
            self._run, self.inputs = self._litert(threads)

    def __call__(self, **arrays: np.ndarray) -> list[np.ndarray]:
        arrays = {name: arrays[name] for name in self.inputs}
        if not self.fixed_batch:
            return self._run(arrays)
        count = len(arrays[self.inputs[0]])
        rows = [
            self._run({name: array[n : n + 1] for name, array in arrays.items()})
            for n in range(count)
        ]
        return [np.concatenate(parts) for parts in zip(*rows, strict=True)]

    def _onnx(self, threads: int | None) -> tuple[Callable[[dict], list], list[str]]:
        runtime = _import_package("onnxruntime", "onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads or 0
        try:
            session = runtime.InferenceSession(str(self.path), options)
        except Exception as error:  # the runtime has errors of several classes
            raise _unreadable(self.path, error) from error
        return lambda arrays: session.run(None, arrays), [x.name for x in session.get_inputs()]

    def _litert(self, threads: int | None) -> tuple[Callable[[dict], list], list[str]]:
        interpreters = _import_package("ai_edge_litert.interpreter", "ai-edge-litert")
        try:
            interpreter = interpreters.Interpreter(str(self.path), num_threads=threads or 1)
            signature = interpreter.get_signature_runner("serving_default")
        except (ValueError, RuntimeError) as error:
            raise _unreadable(self.path, error) from error
        details = signature.get_input_details()
        inputs = in_order(details, interpreter.get_input_details())
        outputs = in_order(signature.get_output_details(), interpreter.get_output_details())
        first = [x["shape_signature"][:1] for x in details.values()]
        self.fixed_batch = any(len(sizes) and sizes[0] == 1 for sizes in first)
        lock = threading.Lock()  # an interpreter runs one call at a time

        def run(arrays: dict) -> list[np.ndarray]:
            with lock:
                result = signature(**arrays)
            return [result[name] for name in outputs]

        return run, inputs


def name_of(model: Any) -> str:
    """Returns the name on the card of a function of texts."""
    return model.card.get("name", "without a name")


def in_order(by_name: dict[str, dict], tensors: Sequence[dict]) -> list[str]:
    """Returns the names of a signature's tensors, which LiteRT sorts, in the order of the file."""
    names: list[str] = []
    for tensor in tensors:  # one tensor can have several names
        same = (name for name, x in by_name.items() if x["index"] == tensor["index"])
        names.append(next(name for name in same if name not in names))
    return names


class Words:
    """Turns texts into ids of words: lower case, split at white space and punctuation.

    Args:
        vocabulary: The words of the ids 2, 3, ...; 0 is padding and 1 an unknown word.
        between: A regular expression for what is between words.
        max_words: How many words of a text are read.
    """

    def __init__(self, vocabulary: Sequence[str], between: str, max_words: int) -> None:
        self._ids = {word: n for n, word in enumerate(vocabulary, start=2)}
        self._between = re.compile(between)
        self.max_words = max_words

    @property
    def vocabulary_size(self) -> int:
        """The number of ids."""
        return len(self._ids) + 2

    def split(self, text: str) -> list[str]:
        """Returns the words of a text, without characters that nobody sees."""
        return [word for word in self._between.split(visible(text).lower()) if word]

    def __call__(self, text: str) -> list[int]:
        return [self._ids.get(word, 1) for word in self.split(text)[: self.max_words]]


def padded(rows: Sequence[Sequence[int]], least: int = 0) -> np.ndarray:
    """Returns rows of ids as an int32 array `(B, L)`, filled up with 0 to `least` ids or more."""
    longest = max(map(len, rows), default=0)
    ids = np.zeros((len(rows), max(longest, least)), "int32")
    for row, values in zip(ids, rows, strict=True):
        row[: len(values)] = values
    return ids


class Classifier:
    """A function from texts to the names of their classes.

    Attributes:
        class_names: The names, in the order of the probabilities.
        words: The `Words` that turn texts into ids.
        card: The model card.
    """

    def __init__(self, folder: Path, content: dict[str, Any], threads: int | None) -> None:
        self.class_names: list[str] = content["class_names"]
        self.words = Words(**content["words"])
        self.card = content["card"]
        self._by_length = content["by_length"]
        self._model = Model(folder / content["files"]["model"]["name"], threads)
        self._check_model()

    def _check_model(self) -> None:
        """Raises a `ValueError` if the model has fewer ids, or another number of classes."""
        with _tried(self._model):
            ids = self._pad([[self.words.vocabulary_size - 1]])
            classes = self.from_ids(ids).shape[1]
            _check(classes == len(self.class_names), f"{classes}", "class_names", self.class_names)

    def __repr__(self) -> str:
        name, count = name_of(self), len(self.class_names)
        return f"<text classifier {name}: called with a text, it gives one of {count} classes>"

    def __call__(self, texts: str | Sequence[str]) -> Any:
        """Returns the class of a text, or the list of the classes of several."""
        labels = [self.class_names[n] for n in self.probabilities(texts).argmax(axis=1)]
        return labels[0] if isinstance(texts, str) else labels

    def probabilities(self, texts: str | Sequence[str]) -> np.ndarray:
        """Returns floats `(B, C)`, also for a single text.

        Texts of similar length are computed together, which keeps padding short.
        """
        rows = [self.words(text) for text in _as_texts(texts)]
        groups: dict[int, list[int]] = {}
        for n, row in enumerate(rows):
            groups.setdefault(-(-len(row) // _STEP) if self._by_length else 0, []).append(n)
        if len(groups) <= 1:
            return self.from_ids(self._pad(rows))
        parts = [self.from_ids(self._pad([rows[n] for n in g])) for g in groups.values()]
        return np.concatenate(parts)[np.argsort(np.concatenate(list(groups.values())))]

    def ids(self, texts: Sequence[str]) -> np.ndarray:
        """Returns int32 ids `(B, L)`, padded with 0."""
        return self._pad([self.words(text) for text in texts])

    def _pad(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        return padded(rows, 1 if self._by_length else self.words.max_words)

    def from_ids(self, ids: np.ndarray) -> np.ndarray:
        """Returns floats `(B, C)` for ids `(B, L)`; without any, those of an empty text."""
        if not len(ids):
            return np.zeros((0, len(self.class_names)), "float32")
        if not ids.shape[1]:
            ids = self.ids([""] * len(ids))
        return self._model(**{self._model.inputs[0]: ids})[0]


PAD, UNK, START, END = range(4)
_JOINER, _SUFFIX = "\uffed", "##"
_CHUNK = 16  # how many places more the states get at once


class Pieces:
    """Turns sentences into ids of word pieces, and back.

    Args:
        vocabulary: The pieces of all ids; the first four are padding, unknown, start and end.
        kind: `"joined"`, with joiners where no space is, or `"bert"`.
        case: `"keep"`, `"lower"` or `"turkish"`.
        keep_accents: Whether accents stay on their letters.
        form: The Unicode normalization form.
    """

    def __init__(
        self, vocabulary: Sequence[str], kind: str, case: str, keep_accents: bool, form: Any
    ) -> None:
        self.vocabulary = vocabulary
        self.kind, self.case, self.keep_accents, self.form = kind, case, keep_accents, form
        self._ids = {piece: n for n, piece in enumerate(vocabulary)}
        self._longest = max(map(len, vocabulary))

    def ids(self, text: str) -> list[int]:
        """Returns the ids of a sentence, start and end included.

        Unknown pieces are left out if no piece is known.
        """
        ids = [n for word in self.words(text) for n in self._pieces(word)]
        known = any(n > END for n in ids)
        return [START, *(n for n in ids if known or n != UNK), END]

    def words(self, text: str) -> list[str]:
        """Returns the words that are cut into pieces."""
        return self._bert_words(text) if self.kind == "bert" else self._joined_words(text)

    def text(self, ids: Sequence[int]) -> str:
        """Returns the sentence of ids, up to the end."""
        pieces = []
        for n in ids:
            if n == END:
                break
            if n not in (PAD, START):
                pieces.append(" " + self.vocabulary[n])
        text = "".join(pieces).replace(" " + _SUFFIX, "")
        return re.sub(f" ?{_JOINER} ?", "", text).strip(" \t\n\v\f\r")

    def _joined_words(self, text: str) -> list[str]:
        text = unicodedata.normalize(self.form, text.replace(_JOINER, "\u25a0"))
        if self.case == "turkish":
            text = text.replace("I", "ı").replace("İ", "i")
        if self.case != "keep":
            text = text.partition("\0")[0].lower()  # as the graph does, which ends there
        if not self.keep_accents:
            text = _without_accents(text)
        text = unicodedata.normalize(self.form, text)
        words = []
        for token in "".join(" " if _is_blank(c) else c for c in text).split(" "):
            parts = _split(token, _is_alone)
            for n, part in enumerate(parts):
                if _is_alone(part[0]):
                    before = _JOINER if n else ""
                    after = _JOINER if n + 1 < len(parts) and not _is_alone(parts[n + 1][0]) else ""
                    part = before + part + after
                words.append(part)
        return words

    def _bert_words(self, text: str) -> list[str]:
        if self.case == "lower":
            text = _without_accents(_case_folded(text))
        text = "".join(" " if unicodedata.category(c) in ("Cc", "Cf") else c for c in text)
        return [part for token in text.split(" ") for part in _split(token, _is_bert_mark)]

    def _pieces(self, word: str) -> list[int]:
        """Cuts a word into the longest pieces from its start on."""
        if len(word.encode("utf-8", "surrogatepass")) > 100:
            return [UNK]
        return _longest_pieces(word, self._ids, self._longest) or [UNK]


@dataclasses.dataclass
class BertPieces:
    """Turns texts into ids of BERT's word pieces, as the package `tokenizers` does.

    Names of special tokens in a text, such as `[SEP]`, are words.

    Args:
        vocabulary: The pieces of all ids; 0 is padding.
        case: `"keep"` or `"lower"`.
        keep_accents: Whether accents stay on their letters.
        unknown: The id of a word without pieces, or of more than 100 characters.
        start: The first id of a text.
        end: The last id of a text.
        max_length: The maximum number of ids of a text, start and end included.
    """

    vocabulary: Sequence[str]
    case: str
    keep_accents: bool
    unknown: int
    start: int
    end: int
    max_length: int

    def __post_init__(self) -> None:
        self._ids = {piece: n for n, piece in enumerate(self.vocabulary)}
        self._longest = max(map(len, self.vocabulary))

    @property
    def rules(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return dataclasses.asdict(self)

    def ids(self, text: str) -> list[int]:
        """Returns the ids of a text, start and end included; a long text is cut off."""
        ids: list[int] = []
        for word in self.words(text):
            ids += self._pieces(word)
            if len(ids) >= self.max_length - 2:
                break
        return [self.start, *ids[: self.max_length - 2], self.end]

    def words(self, text: str) -> list[str]:
        """Returns the words that are cut into pieces."""
        text = "".join(c for c in text if not _is_unreadable(c))
        if not self.keep_accents:
            text = _without_accents(text)
        if self.case == "lower":
            text = "".join(c.lower() for c in text)
        return [part for token in text.split() for part in _split(token, _is_bert_mark)]

    def _pieces(self, word: str) -> list[int]:
        if len(word) > 100:
            return [self.unknown]
        return _longest_pieces(word, self._ids, self._longest) or [self.unknown]


def _longest_pieces(word: str, ids: Mapping[str, int], longest: int) -> list[int]:
    """Cuts a word into the longest pieces from its start on; returns none if one is missing."""
    found: list[int] = []
    start = 0
    mark = ""
    while start < len(word):
        for end in range(min(len(word), start + longest), start, -1):
            n = ids.get(mark + word[start:end])
            if n is not None:
                break
        else:
            return []
        found.append(n)
        start = end
        mark = _SUFFIX
    return found


def _split(token: str, alone: Callable[[str], bool]) -> list[str]:
    """Cuts a token into characters that are words of their own, and what is between them."""
    parts: list[str] = []
    start = 0
    for place, c in enumerate(token):
        if alone(c):
            parts += [token[start:place], c] if start < place else [c]
            start = place + 1
    if start < len(token):
        parts.append(token[start:])
    return parts


def _is_alone(c: str) -> bool:
    category = unicodedata.category(c)
    return category[0] in "PS" or category == "Nd"


def _is_blank(c: str) -> bool:
    category = unicodedata.category(c)
    return category[0] == "Z" or category == "Cc"


def _is_unreadable(c: str) -> bool:
    return c == "\ufffd" or (
        unicodedata.category(c) in ("Cc", "Cf", "Co", "Cs") and c not in "\t\n\r"
    )


def _is_bert_mark(c: str) -> bool:
    ascii_mark = c < "\x7f" and not c.isalnum() and c > " "
    return ascii_mark or unicodedata.category(c)[0] == "P" or any(a <= c <= b for a, b in _CHINESE)


def _case_folded(text: str) -> str:
    """Returns Unicode's `NFKC_Casefold` of a text."""
    text = "".join(c for c in text if not any(a <= ord(c) <= b for a, b in INVISIBLE))
    for form in ("NFD", "NFKC", "NFKC"):
        text = unicodedata.normalize(form, text).casefold()  # type: ignore[arg-type]
    return unicodedata.normalize("NFKC", text)


# The code points that Unicode calls default ignorable: nobody sees them.
INVISIBLE = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5)),
    *((0x180B, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164)),
    *((0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8)),
    *((0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF)),
)
_INVISIBLE_CHARACTER = re.compile("[" + "".join(f"{chr(a)}-{chr(b)}" for a, b in INVISIBLE) + "]")


def visible(text: str) -> str:
    """Returns a text without the characters that nobody sees, such as zero-width spaces."""
    return text if text.isascii() else _INVISIBLE_CHARACTER.sub("", text)


_CHINESE = (
    *(("\u4e00", "\u9fff"), ("\u3400", "\u4dbf"), ("\uf900", "\ufaff")),
    *(("\U00020000", "\U0002a6df"), ("\U0002a700", "\U0002ceaf"), ("\U0002f800", "\U0002fa1f")),
)


def _without_accents(text: str) -> str:
    text = unicodedata.normalize("NFD", text)
    return "".join(c for c in text if unicodedata.category(c) != "Mn")


class Encoder:
    """A function from texts to vectors of length 1, close to each other for similar texts.

    Attributes:
        pieces: The `BertPieces` of texts.
        dim: The number of features of a vector.
        card: The model card.
    """

    def __init__(self, folder: Path, content: dict[str, Any], threads: int | None) -> None:
        self.pieces = BertPieces(**content["pieces"])
        self.dim: int = content["dim"]
        self.card = content["card"]
        self._model = Model(folder / content["files"]["model"]["name"], threads)
        with _tried(self._model):
            dim = self.from_ids(padded([[len(self.pieces.vocabulary) - 1]])).shape[1]
            _check(dim == self.dim, f"{dim}", "dim", self.dim)

    def __repr__(self) -> str:
        name = name_of(self)
        return f"<sentence encoder {name}: encode(texts) gives vectors of {self.dim} features>"

    def __call__(self, texts: str | Iterable[str], batch_size: int = 32) -> np.ndarray:
        """Returns what `encode` returns."""
        return self.encode(texts, batch_size)

    def encode(self, texts: str | Iterable[str], batch_size: int = 32) -> np.ndarray:
        """Returns the vectors of texts.

        Texts of similar length are computed together, which keeps padding short.

        Args:
            texts: The texts, or a single one. What follows the maximum number of pieces is not
                read.
            batch_size: How many texts are computed at once. Defaults to 32.

        Returns:
            Float32 array `(N, D)` with rows of length 1; of a single text `(D,)`.

        Raises:
            TypeError: If a text is not a string, or the texts are a dict or a set.
            ValueError: If `batch_size` is not a positive int.
        """
        if isinstance(texts, str):
            return self.encode([texts], batch_size)[0]
        _check(
            type(batch_size) is int and batch_size > 0, "a positive int", "batch_size", batch_size
        )
        texts = _as_texts(texts)
        rows = [self.pieces.ids(text) for text in texts]
        order = sorted(range(len(rows)), key=lambda n: len(rows[n]))
        vectors = np.zeros((len(rows), self.dim), "float32")
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            vectors[batch] = self.from_ids(padded([rows[n] for n in batch]))
        return vectors

    def from_ids(self, ids: np.ndarray) -> np.ndarray:
        """Returns floats `(B, D)` for ids `(B, L)`, padded with 0."""
        return self._model(**{self._model.inputs[0]: ids})[0]


def _as_texts(texts: Any) -> list[str]:
    """Returns a list of strings, also of a single one, or raises a `TypeError`."""
    if isinstance(texts, str):
        return [texts]
    expected = "Expected a text or a sequence of texts"
    if isinstance(texts, Mapping):
        raise TypeError(f"{expected}. Received: texts={texts!r:.80}. Pass list(texts.values())")
    if isinstance(texts, set | frozenset):
        raise TypeError(
            f"{expected}. Received: texts={texts!r:.80}, which has no order. Pass a list"
        )
    if isinstance(texts, bytes | bytearray):
        raise TypeError(f"{expected}. Received: texts={texts!r:.80}. Pass texts.decode()")
    try:
        listed = list(texts)
    except TypeError:
        raise TypeError(f"{expected}. Received: texts={texts!r:.80}") from None
    for n, text in enumerate(listed):
        if not isinstance(text, str):
            raise TypeError(f"{expected}. Received: texts[{n}]={text!r:.80}")
    return listed


class Translator:
    """A function from sentences to their translations, by greedy or beam search.

    Attributes:
        beam_size: Number `K` of hypotheses, unless a call says otherwise; 1 is greedy search.
        source: The `Pieces` of the sentences.
        target: The `Pieces` of the translations.
        card: The model card.
    """

    def __init__(self, folder: Path, content: dict[str, Any], threads: int | None) -> None:
        self.source, self.target = Pieces(**content["source"]), Pieces(**content["target"])
        self.card, self.beam_size = content["card"], content["beam_size"]
        self._extra_tokens, self._penalty = content["extra_tokens"], content["length_penalty"]
        self._grows = content["grows"]
        self._encode, self._step = (
            Model(folder / content["files"][name]["name"], threads) for name in ("encode", "step")
        )
        self._check_models()

    def _check_models(self) -> None:
        """Raises a `ValueError` if the models have fewer pieces, or other states."""
        with _tried(self._encode):
            source = np.array([[START, len(self.source.vocabulary) - 1, END]], "int32")
            context, state = self._encoded(source)
        with _tried(self._step):
            ids = np.full((1, 1 + _CHUNK), START, "int32")
            pieces = self._stepped(ids, 0, context, self._longer(state))[0].shape[-1]
            size = len(self.target.vocabulary)
            _check(size == pieces, f"{pieces:,} pieces of the target", "size", size)

    def __repr__(self) -> str:
        return f"<translator {name_of(self)}: called with a sentence, it gives its translation>"

    def _encoded(self, source: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Returns what all steps of a search read, and the state before the first one."""
        outputs = self._encode(source=source)
        count = len(outputs) - len(self._grows)
        return outputs[:count], outputs[count:]

    def _longer(self, state: list[np.ndarray]) -> list[np.ndarray]:
        """Returns states with room for `_CHUNK` more ids."""
        return [_longer(x) if g else x for x, g in zip(state, self._grows, strict=True)]

    def _stepped(
        self, ids: np.ndarray, position: int, context: list[np.ndarray], state: list[np.ndarray]
    ) -> list[np.ndarray]:
        """Returns the logits of the ids at a position, and the new state."""
        return self._step(
            ids=ids,
            position=np.array(position, "int32"),
            **{f"context_{n:03}": x for n, x in enumerate(context)},
            **{f"state_{n:03}": x for n, x in enumerate(state)},
        )

    def __call__(self, texts: str | Sequence[str]) -> Any:
        """Returns the translation of a sentence, or the list of those of several."""
        best = self.n_best(texts)
        translations = [hypotheses[0][0] for hypotheses in best]
        return translations[0] if isinstance(texts, str) else translations

    def n_best(
        self, texts: Sequence[str], beam_size: int | None = None, batch_size: int = 32
    ) -> list[list[tuple[str, float]]]:
        """Returns up to `K` translations of each sentence with their scores, best first.

        Lower scores are better. A sentence without known words has the translation "".
        """
        rows = [self.source.ids(text) for text in _as_texts(texts)]
        order = sorted(range(len(rows)), key=lambda n: -len(rows[n]))
        results: list[list[tuple[str, float]]] = [[] for _ in rows]
        for first in range(0, len(order), batch_size):
            numbers = order[first : first + batch_size]
            source = padded([rows[n] for n in numbers])
            for n, ids, scores in zip(numbers, *self.search(source, beam_size), strict=True):
                pairs = [(self.target.text(x), float(y)) for x, y in zip(ids, scores, strict=True)]
                empty = len(rows[n]) == 2
                results[n] = [("", pairs[0][1])] if empty else [x for x in pairs if x[1] < np.inf]
        return results

    def search(
        self, source: np.ndarray, beam_size: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Searches for ids `(B, S)`, padded with 0; returns ids `(B, K, L)`, scores `(B, K)`."""
        beams = self.beam_size if beam_size is None else beam_size
        if not 1 <= beams <= len(self.target.vocabulary):
            raise ValueError(
                f"Expected a beam of 1 to {len(self.target.vocabulary)}. Received: {beams}"
            )
        context, state = self._encoded(source)
        limit = (source != PAD).sum(axis=1) + self._extra_tokens
        best = np.zeros((len(source), beams, int(limit.max(initial=0)) + 1), "int32")
        scores = np.full((len(source), beams), np.inf, "float32")
        # Those sentences of which the search goes on, and their hypotheses.
        rows, width = np.arange(len(source)), 1
        ids = np.full((len(source), beams, 1), START, "int32")
        sums = np.where(np.arange(beams) == 0, np.zeros_like(scores), scores)
        for position in range(best.shape[-1] - 1):
            if position % _CHUNK == 0:
                ids = np.pad(ids, [(0, 0), (0, 0), (0, _CHUNK)])
                state = self._longer(state)
            flat = ids[:, :width].reshape(len(rows) * width, -1)
            logits, *state = self._stepped(flat, position, context, state)
            logits = logits.reshape(len(rows), width, -1)
            if width < beams:  # before the first choice all hypotheses are the same
                logits = np.repeat(logits, beams, axis=1)
            parents, tokens, sums, ended = _choice(logits, sums)
            places = np.arange(len(rows))[:, None] * width + np.minimum(parents, width - 1)
            longer = np.take_along_axis(ids, parents[..., None], axis=1)
            ids[..., position + 1], longer[..., position + 1] = END, tokens
            # Candidates for the answer: the best so far, those that end now, and at the limit all.
            last, norm = limit[rows] == position + 1, self._norm(position + 2)
            unfinished = np.where(last[:, None], sums / norm, np.float32(np.inf))
            candidates = np.concatenate([scores[rows], ended / norm, unfinished], axis=1)
            winners = np.argsort(candidates, axis=1, kind="stable")[:, :beams]
            size = min(best.shape[-1], ids.shape[-1])
            whole = np.concatenate(
                [best[rows, :, :size], ids[..., :size], longer[..., :size]], axis=1
            )
            best[rows, :, :size] = np.take_along_axis(whole, winners[..., None], axis=1)
            scores[rows] = np.take_along_axis(candidates, winners, axis=1)
            # A sum only grows: this is the best score that a hypothesis can still reach.
            reachable = sums.min(axis=1) / self._norm(limit[rows] + 1)
            on = ~(last | (scores[rows, -1] <= reachable))
            context, state = [x[on] for x in context], [x[places[on].ravel()] for x in state]
            ids, sums, rows, width = longer[on], sums[on], rows[on], beams
            if not len(rows):
                break
        return best, scores

    def _norm(self, length: Any) -> Any:
        return ((np.float32(5) + np.asarray(length, "float32")) / 6) ** np.float32(self._penalty)


def _choice(
    logits: np.ndarray, sums: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Chooses the `K` best extensions of hypotheses with logits `(B, K, V)`, sums `(B, K)`.

    Returns the number of the hypothesis that each extends, its id, its sum of `-ln p`, and the sums
    of all hypotheses that end now, each `(B, K)`.
    """
    beams = sums.shape[1]
    logits = logits - logits.max(axis=-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    tokens = np.argpartition(-logits, beams - 1, axis=-1)[..., :beams]
    tokens.sort(axis=-1)  # equal probabilities in the order of their ids
    order = np.argsort(-np.take_along_axis(logits, tokens, axis=-1), axis=-1, kind="stable")
    tokens = np.take_along_axis(tokens, order, axis=-1).astype("int32")
    extended = sums[..., None] - np.take_along_axis(logits, tokens, axis=-1)
    infinite, ends = np.float32(np.inf), tokens == END
    ended = np.where(ends, extended, infinite).min(axis=-1)
    flat = np.where(ends, infinite, extended).reshape(len(sums), -1)
    chosen = np.argsort(flat, axis=1, kind="stable")[:, :beams]
    tokens = np.take_along_axis(tokens.reshape(len(sums), -1), chosen, axis=1)
    return chosen // beams, tokens, np.take_along_axis(flat, chosen, axis=1), ended


def _longer(state: np.ndarray) -> np.ndarray:
    widths = [(0, 0)] * state.ndim
    widths[-2] = (0, _CHUNK)
    return np.pad(state, widths)


class Tokens:
    """Turns prompts into ids of tokens, and ids into text.

    Ids 0, 1 and 2 are padding, the end of a document and an unknown character.

    Args:
        kind: `"characters"`, `"bytes"` or `"pieces"`, those of byte-pair encoding.
        characters: The characters in the order of their ids.
        merges: The pairs that make a piece of two, separated by a space, in the order of their ids,
            which follow those of the bytes.
    """

    def __init__(self, kind: str, characters: str = "", merges: Sequence[str] = ()) -> None:
        self.kind = kind
        if kind == "characters":
            self._texts = [c.encode() for c in characters]
            self._ids = {c: n for n, c in enumerate(characters, _TOKEN)}
        else:
            letters = _byte_letters()
            byte_of = {letter: byte for byte, letter in enumerate(letters)}
            # Pieces of one byte are in the order of the letters that stand for them.
            pieces = letters if kind == "bytes" else sorted(letters)
            pieces = pieces + [pair.replace(" ", "") for pair in merges]
            self._texts = [bytes(byte_of[c] for c in piece) for piece in pieces]
            self._ids = {piece: n for n, piece in enumerate(pieces, _TOKEN)}
            self._ranks = {tuple(pair.split(" ")): n for n, pair in enumerate(merges)}
            self._letters = letters
        self.size = len(self._texts) + _TOKEN

    def ids(self, text: str) -> list[int]:
        """Returns the ids of a text.

        Raises:
            ValueError: If it has characters that the model does not know.
        """
        if self.kind == "characters":
            strange = sorted(set(text) - self._ids.keys())
            if strange:
                raise ValueError(
                    "Expected characters of the corpus that the model was trained on. Received: "
                    f"{' '.join(map(repr, strange[:10]))}"
                )
            return [self._ids[c] for c in text]
        if self.kind == "bytes":
            return [byte + _TOKEN for byte in text.encode()]
        return [n for word in _gpt_words(text) for n in self._merge(word)]

    def decoder(self) -> Callable[[int], str]:
        """Returns a function from an id to the text that it completes: none within a character."""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        return lambda n: decode(self._texts[n - _TOKEN]) if n >= _TOKEN else ""

    def _merge(self, word: str) -> list[int]:
        pieces = [self._letters[byte] for byte in word.encode()]
        last = len(self._ranks)
        while len(pieces) > 1:
            ranks = [self._ranks.get(pair, last) for pair in itertools.pairwise(pieces)]
            best = min(ranks)
            if best == last:
                break
            first, second = pieces[ranks.index(best)], pieces[ranks.index(best) + 1]
            merged, n = [], 0
            while n < len(pieces):
                found = pieces[n : n + 2] == [first, second]
                merged.append(first + second if found else pieces[n])
                n += 2 if found else 1
            pieces = merged
        return [self._ids[piece] for piece in pieces]


_TOKEN = 3  # the first id of a token
_TRIED_TOKENS = 1024  # maximum tokens of the text with which a model's length is tried
_END_OF_DOCUMENT = 1


def _byte_letters() -> list[str]:
    """Returns the letter that stands for each byte: itself if it can be seen, else a later one."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


def _gpt_words(text: str) -> Iterator[str]:
    """Cuts a text as GPT-2 does: letters, digits or marks with a space before them, and blanks."""

    def kind(c: str) -> str:
        category = unicodedata.category(c)[0]
        return "blank" if c.isspace() and c not in _NO_BLANKS else _GPT_KINDS.get(category, "mark")

    n = 0
    while n < len(text):
        ending = next((x for x in _ENDINGS if text.startswith(x, n)), None)
        if ending:
            yield ending
            n += len(ending)
            continue
        first = n + (text[n] == " " and n + 1 < len(text) and kind(text[n + 1]) != "blank")
        same, end = kind(text[first]), first + 1
        while end < len(text) and kind(text[end]) == same:
            end += 1
        # The last blank belongs to what follows, or stands alone.
        end -= same == "blank" and end < len(text) and end - n > 1
        yield text[n:end]
        n = end


_ENDINGS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
_GPT_KINDS = {"L": "letter", "N": "digit"}
_NO_BLANKS = "\x1c\x1d\x1e\x1f"  # blanks for Python, not for Unicode


class LanguageModel:
    """A function from prompts to what follows.

    Attributes:
        tokens: The `Tokens`.
        max_length: How many tokens the model reads, or `None`.
        card: The model card.
    """

    def __init__(self, folder: Path, content: dict[str, Any], threads: int | None) -> None:
        self.tokens, self.card = Tokens(**content["tokens"]), content["card"]
        self.max_length: int | None = content["max_length"]
        self._grows = content["grows"]
        files = {name: Model(folder / x["name"], threads) for name, x in content["files"].items()}
        self._prompt, self._step = files["prompt"], files.get("step")
        self._check_models()

    def _check_models(self) -> None:
        """Raises a `ValueError` if the models have other tokens or states, or read fewer tokens."""
        count = 1 if self.max_length == 1 else 2
        with _tried(self._step or self._prompt):
            logits = list(self.logits([self.tokens.size - 1], count))
            ids = len(logits[0])
            _check(self.tokens.size == ids, f"{ids:,} ids of tokens", "size", self.tokens.size)
        if self.max_length is not None:
            length = min(self.max_length, _TRIED_TOKENS)
            with _tried(self._prompt):
                self._prompt(ids=np.full((1, length), self.tokens.size - 1, "int32"))

    def __call__(self, prompts: str | Sequence[str], **options: Any) -> Any:
        """Returns the continuation of a prompt, or the list of those of several.

        The options are those of `stream`.
        """
        if isinstance(prompts, str):
            return "".join(self.stream(prompts, **options))
        return [self(prompt, **options) for prompt in prompts]

    def stream(
        self,
        prompt: str,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        stop: str | None = None,
        seed: int = 0,
    ) -> Iterator[str]:
        """Returns an iterator over the texts of the tokens that continue a prompt.

        Args:
            prompt: The text to continue; an empty one begins a document.
            max_tokens: The most tokens to write. Default: 50, or what the model still reads.
            temperature: Divides the logits; 0 chooses the most probable token.
            top_k: How many of the most probable tokens are candidates. Default: all.
            top_p: The sum of the probabilities of the candidates. Default: 1.
            min_p: The least probability of a candidate, as a share of the largest. Default: 0.
            repetition_penalty: Divides the positive logits of tokens that were used, and multiplies
                the negative ones.
            stop: A text with which the continuation ends.
            seed: The seed of the sampling.

        Raises:
            ValueError: If an option is out of its range, the prompt has unknown characters, or it
                is too long for the model.
        """
        ranges = {
            "max_tokens": (max_tokens, 1, 1_000_000),
            "temperature": (temperature, 0, 1000),
            "top_k": (top_k, 1, 1_000_000),
            "top_p": (top_p, 1e-9, 1),
            "min_p": (min_p, 0, 1),
            "repetition_penalty": (repetition_penalty, 0.001, 1000),
            "seed": (seed, 0, 2**63),
        }
        for name, (value, least, most) in ranges.items():
            if value is not None and not least <= value <= most:
                raise ValueError(f"Expected {least} to {most}. Received: {name}={value}")
        if not isinstance(stop, str | None):
            raise ValueError(f"Expected a text. Received: stop={stop!r}")
        ids = self.prompt(prompt)
        room = self.room(ids)
        if max_tokens is None:
            max_tokens = min(50, max(1, room))
        if self.max_length is not None and max_tokens >= self.max_length:
            raise ValueError(
                f"Expected fewer tokens than the model reads, {self.max_length}. "
                f"Received: max_tokens={max_tokens}"
            )
        if room < max_tokens:
            raise ValueError(
                f"Expected a prompt of at most {len(ids) + room - max_tokens} tokens, as the model "
                f"reads {self.max_length} and writes {max_tokens}. Received: {len(ids)}"
            )

        def choose(logits: np.ndarray, ids: Sequence[int], noise: float) -> int:
            if repetition_penalty != 1:
                used = np.unique(ids)
                scale = np.where(logits[used] > 0, 1 / repetition_penalty, repetition_penalty)
                logits[used] *= scale.astype("float32")
            logits[PAD] = -1e30
            if temperature < 1e-6:  # dividing by less would overflow
                return int(np.argmax(logits))
            return _draw(logits / np.float32(temperature), noise, top_k, top_p, min_p)

        noise = np.random.default_rng([seed, 0]).random(max_tokens).astype("float32")
        return up_to(self._texts(ids, noise, choose), stop)

    def prompt(self, text: str) -> list[int]:
        """Returns the ids of a prompt: of an empty one, the end of the document before it."""
        return self.tokens.ids(text) or [_END_OF_DOCUMENT]

    def room(self, ids: Sequence[int]) -> int:
        """Returns how many tokens the model reads after some."""
        return 1_000_000 if self.max_length is None else self.max_length - len(ids)

    def logits(self, ids: Sequence[int], count: int) -> Iterator[np.ndarray]:
        """Yields the logits `(V,)` of `count` ids after some, each the most probable one."""
        for logits, _, chosen in self._run(ids, count):
            chosen.append(int(np.argmax(logits[1:])) + 1)
            yield logits

    def _texts(self, ids: list[int], noise: np.ndarray, choose: Callable) -> Iterator[str]:
        text_of = self.tokens.decoder()
        for (logits, so_far, chosen), u in zip(self._run(ids, len(noise)), noise, strict=True):
            token = choose(logits.copy(), so_far, float(u))
            if token == _END_OF_DOCUMENT:
                return
            chosen.append(token)
            yield text_of(token)

    def _run(self, ids: Sequence[int], count: int) -> Iterator[tuple[Any, Any, list[int]]]:
        """Yields logits `(V,)`, the ids so far, and the list to which the next one is appended."""
        outputs = self._prompt(ids=np.array([ids], "int32"))
        chosen: list[int] = []
        places = np.array([ids], "int32")
        for position in range(len(ids), len(ids) + count):
            logits, *state = outputs
            yield logits[0], places[0, :position], chosen
            if position == len(ids) + count - 1:
                return
            if position == places.shape[1]:
                places = np.pad(places, [(0, 0), (0, _CHUNK)])
                state = [_longer(x) if g else x for x, g in zip(state, self._grows, strict=True)]
            places[0, position] = chosen[-1]
            if self._step is None:
                outputs = self._prompt(ids=places[:, : position + 1])
                continue
            outputs = self._step(
                ids=places,
                position=np.array(position, "int32"),
                **{f"state_{n:03}": x for n, x in enumerate(state)},
            )


def up_to(texts: Iterable[str], stop: str | None) -> Iterator[str]:
    """Yields texts up to the end of the first `stop`, which may lie in several of them."""
    tail = ""
    for text in texts:
        end = (tail + text).find(stop) if stop else -1
        if stop and end >= 0:
            yield text[: end + len(stop) - len(tail)]
            return
        yield text
        tail = (tail + text)[-len(stop) + 1 :] if stop and len(stop) > 1 else ""


def _draw(
    logits: np.ndarray, noise: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> int:
    """Draws an id from the softmax of logits `(V,)`, as `keras_tnattn.search` does."""
    ids = np.argsort(-logits, kind="stable")[:top_k]
    shares = np.exp(logits[ids] - logits[ids[0]])
    shares /= shares.sum()
    if top_p is not None:
        shares = np.where(np.cumsum(shares) - shares < top_p, shares, 0)
    if min_p is not None:
        shares = np.where(shares >= min_p * shares[0], shares, 0)
    sums = np.cumsum(shares)
    return int(ids[min(np.sum(sums <= noise * sums[-1]), np.count_nonzero(shares) - 1)])


def _check(is_right: bool, expected: str, name: str, value: Any) -> None:
    if not is_right:
        raise ValueError(f"Expected {expected}. Received: {name}={value!r:.80}")


def _check_choice(content: dict[str, Any], name: str, choices: Sequence[Any]) -> None:
    expected = f"one of {', '.join(map(repr, choices))}"
    value = content[name]
    _check(any(type(x) is type(value) and x == value for x in choices), expected, name, value)


def _check_number(content: dict[str, Any], name: str, least: int, most: int) -> None:
    value = content[name]
    is_right = type(value) is int and least <= value <= most
    _check(is_right, f"a whole number of {least:,} to {most:,}", name, value)


def _check_list(content: dict[str, Any], name: str, kind: type, least: int = 0) -> None:
    value = content[name]
    is_right = type(value) is list and len(value) >= least and all(type(x) is kind for x in value)
    _check(is_right, f"a list of {kind.__name__}, of {least:,} or more", name, value)


def _check_files(content: dict[str, Any], names: Sequence[str]) -> None:
    """Checks files, of which those named must be there, for lying beside `text.json`."""
    files = content["files"]
    _check(set(names) <= set(files), f"files for {' and '.join(names)}", "files", list(files))
    for file in files.values():
        name = file["name"]
        is_right = type(name) is str and name not in ("", "..") and Path(name).name == name
        _check(is_right, "the name of a file in the folder", "name", name)
        _check_number(file, "bytes", 0, 2**63)
    _check(type(content["card"]) is dict, "an object", "card", content["card"])


def _check_classifier(content: dict[str, Any]) -> None:
    _check_files(content, ["model"])
    _check_list(content, "class_names", str, 1)
    _check_choice(content, "by_length", [False, True])
    words = content["words"]
    _check_list(words, "vocabulary", str)
    _check_choice(words, "between", [BETWEEN_WORDS, BETWEEN_CHARACTERS])
    _check_number(words, "max_words", 1, _MOST)


def _check_encoder(content: dict[str, Any]) -> None:
    _check_files(content, ["model"])
    pieces = content["pieces"]
    _check_list(pieces, "vocabulary", str, 1)
    _check_choice(pieces, "case", ["keep", "lower"])
    _check_choice(pieces, "keep_accents", [False, True])
    for name in ("unknown", "start", "end"):
        _check_number(pieces, name, 0, len(pieces["vocabulary"]) - 1)
    _check_number(pieces, "max_length", 3, _MOST)
    _check_number(content, "dim", 1, _MOST)


def _check_translator(content: dict[str, Any]) -> None:
    _check_files(content, ["encode", "step"])
    for pieces in (content["source"], content["target"]):
        _check_list(pieces, "vocabulary", str, END + 1)
        _check_choice(pieces, "kind", ["joined", "bert"])
        _check_choice(pieces, "case", ["keep", "lower", "turkish"])
        _check_choice(pieces, "keep_accents", [False, True])
        forms = ["NFC", "NFKC"] if pieces["kind"] == "joined" else ["NFD", "as given"]
        _check_choice(pieces, "form", forms)
    _check_number(content, "beam_size", 1, len(content["target"]["vocabulary"]))
    _check_number(content, "extra_tokens", 0, _MOST // 10)
    penalty = content["length_penalty"]
    is_right = type(penalty) in (int, float) and 0 <= penalty < 1000
    _check(is_right, "a number of 0 to 1,000", "length_penalty", penalty)
    _check_list(content, "grows", bool)


def _check_language_model(content: dict[str, Any]) -> None:
    _check_files(content, ["prompt"])
    tokens = content["tokens"]
    _check_choice(tokens, "kind", ["characters", "bytes", "pieces"])
    characters = tokens.get("characters", "")
    _check(type(characters) is str, "a text", "characters", characters)
    if "merges" in tokens:
        _check_list(tokens, "merges", str)
        wrong = [pair for pair in tokens["merges"] if len(pair.split(" ")) != 2]
        _check(not wrong, "pairs of pieces with a space between", "merges", wrong)
    if content["max_length"] is not None:
        _check_number(content, "max_length", 1, _MOST)
    _check_list(content, "grows", bool)


@contextlib.contextmanager
def _tried(model: Model) -> Iterator[None]:
    """Names the file of a model that fails on what `text.json` says that it takes."""
    try:
        yield
    except Exception as error:  # the runtimes have errors of several classes
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{model.path} does not compute what text.json describes: {reason}"
        ) from error


def load(folder: str | os.PathLike, threads: int | None = None) -> Any:
    """Loads a `Classifier`, an `Encoder`, a `Translator` or a `LanguageModel`.

    Args:
        folder: A portable folder that `keras_tnattn_train.exports.export` wrote.
        threads: How many threads a call may use. Default: the runtime's own choice.

    Raises:
        FileNotFoundError: If there is no such folder, or a file is missing.
        ImportError: If the runtime is not installed.
        ValueError: If a file is of another version, damaged, or cannot be read, or the model
            computes something else than `text.json` describes.

    Example:
        ```python notest
        classify = load("news")
        classify("a text")  # "science"
        ```
    """
    folder = Path(folder)
    path = folder / "text.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected the folder of a portable export, with text.json. Received: {folder}"
        )
    content = read_sealed(path)
    version = content.get("format")
    if version != FORMAT:
        raise ValueError(
            f"Expected {path} of version {FORMAT}. Received: version {version}. Use the reader.py "
            "that is in the folder, or export the model again"
        )
    tasks: dict[str, tuple[Callable, Callable]] = {
        "classify": (Classifier, _check_classifier),
        "encode": (Encoder, _check_encoder),
        "translate": (Translator, _check_translator),
        "language": (LanguageModel, _check_language_model),
    }
    try:
        task, check = tasks[content["task"]]
        check(content)
        files = {
            folder / file["name"]: {"bytes": file["bytes"], "sha256": file["sha256"]}
            for file in content["files"].values()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error
    for file, description in files.items():
        check_file(file, description)
    try:
        return task(folder, content, threads)
    except (KeyError, TypeError) as error:
        raise _unreadable(path, error) from error


def sealed(content: dict[str, Any]) -> bytes:
    """Returns JSON that begins with the SHA-256 of what follows it.

    Example:
        >>> sealed({"a": 1})[:20]
        b'{"sha256":"7359ed179'
    """
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    rest = text.removeprefix("{").encode()
    return b'{"sha256":"%s",%s' % (hashlib.sha256(rest).hexdigest().encode(), rest)


def read_sealed(path: Path) -> dict[str, Any]:
    """Returns the content of a file that `sealed` made, without the checksum.

    Raises:
        ValueError: If the file is damaged or has no checksum.
    """
    data = path.read_bytes()
    seal = _SEAL.match(data)
    if seal is None:
        raise ValueError(
            f"Expected {path} to begin with its checksum. Received: a file without, which is "
            "damaged or of an earlier version. Copy it again, or export the model again"
        )
    if hashlib.sha256(data[seal.end() :]).hexdigest() != seal[1].decode():
        raise _unreadable(path, ValueError("its checksum differs"))
    try:
        content = json.loads(data)
        del content["sha256"]
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    return content


def describe_file(path: Path) -> dict[str, Any]:
    """Returns the bytes of a file and their SHA-256, by which `check_file` knows it again."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def check_file(path: Path, description: dict[str, Any]) -> None:
    """Compares a file with what `describe_file` said of it, the size first.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is another file.
    """
    expected, size = description["bytes"], path.stat().st_size
    if size != expected:
        raise ValueError(
            f"Expected {path} of {expected:,} bytes. Received: {size:,} bytes. Copy the file again"
        )
    if describe_file(path)["sha256"] != description["sha256"]:
        raise _unreadable(path, ValueError("its checksum differs"))


def _import_package(module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"The model needs the package {package}: pip install {package}"
        ) from error


def _unreadable(path: Path, error: Exception) -> ValueError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ValueError(f"Could not read {path}, which may be damaged: {reason}. Copy it again")


def main(arguments: Sequence[str]) -> None:
    """Prints what the model of this file's folder says to each text, or line of the input."""
    if {"-h", "--help"} & set(arguments):
        print("usage: python reader.py [TEXT ...]\n\n" + str(main.__doc__))
        return
    try:
        model = load(Path(__file__).parent)
        for text in arguments or (line.rstrip("\n") for line in sys.stdin):
            print(model(text), flush=True)
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
