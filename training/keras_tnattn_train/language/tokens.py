"""From texts to ids and back: characters, bytes or pieces, without loss. Needs no TensorFlow."""

import codecs
import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tnattn_train.options.errors import InputError

PAD, END, UNKNOWN = 0, 1, 2
RESERVED = 3

if TYPE_CHECKING:
    import tokenizers


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of a language model.

    Pieces are those of byte-pair encoding: the bytes, and strings of bytes inside a word that
    occur often together. So there are no unknown ones.

    Args:
        kind: `"characters"`, `"bytes"` or `"pieces"`.
        characters: The characters in the order of their ids, from `RESERVED` on.
        merges: The pairs that make a piece of two, separated by a space, in the order of their
            ids, from `RESERVED + 256` on. Bytes are written as byte-level tokenizers write them.
    """

    kind: str
    characters: str = ""
    merges: Sequence[str] = ()

    @classmethod
    def learn(cls, kind: str, texts: Sequence[str], vocabulary_size: int = 8000) -> "Tokens":
        """Returns the tokens of training texts."""
        if kind == "bytes":
            return cls(kind)
        if kind == "pieces":
            return cls(kind, merges=_learn_merges(texts, vocabulary_size))
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text)
        return cls(kind, "".join(sorted(counts, key=lambda c: (-counts[c], c))))

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "Tokens":
        """Returns tokens from what `to_dict` returned."""
        return cls(saved["tokens"], saved["characters"], saved.get("merges", ()))

    def to_dict(self) -> dict[str, Any]:
        """Returns what `data.json` holds of them."""
        merges = {"merges": list(self.merges)} if self.kind == "pieces" else {}
        return {"tokens": self.kind, "characters": self.characters, **merges}

    @property
    def vocabulary_size(self) -> int:
        if self.kind == "characters":
            return RESERVED + len(self.characters)
        return RESERVED + 256 + len(self.merges)

    def encode(self, text: str) -> np.ndarray:
        """Returns the ids of a text, int32; a character that is not known is `UNKNOWN`."""
        if self.kind == "bytes":
            return np.frombuffer(text.encode(), "uint8").astype("int32") + RESERVED
        if self.kind == "pieces":
            return np.array(self._tokenizer.encode(text).ids, "int32") + RESERVED
        ids = {c: i for i, c in enumerate(self.characters, RESERVED)}
        return np.array([ids.get(c, UNKNOWN) for c in text], "int32")

    def prompt(self, text: str) -> np.ndarray:
        """Returns the ids of a prompt; an empty one is the end of a document before it."""
        ids = self.encode(text)
        if (ids == UNKNOWN).any():
            strange = sorted({c for c, i in zip(text, ids, strict=True) if i == UNKNOWN})
            raise InputError(
                "Expected characters of the corpus that the model was trained on. Received: "
                f"{' '.join(map(repr, strange[:10]))}"
            )
        return ids if len(ids) else np.array([END], "int32")

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids."""
        return "".join(map(self.decoder(), ids))

    def decoder(self) -> Callable[[int], str]:
        """Returns a function from an id to the text that it completes: none within a character."""
        if self.kind == "characters":
            return lambda i: self.characters[i - RESERVED] if i >= RESERVED else ""
        if self.kind == "pieces":
            from tokenizers.decoders import DecodeStream

            stream = DecodeStream()
            return lambda i: stream.step(self._tokenizer, i - RESERVED) or "" if i > UNKNOWN else ""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        return lambda i: decode(bytes([i - RESERVED])) if i >= RESERVED else ""

    @functools.cached_property
    def _tokenizer(self) -> "tokenizers.Tokenizer":
        from tokenizers import models

        vocabulary = {byte: i for i, byte in enumerate(_bytes())}
        pairs = [(first, second) for first, second in map(str.split, self.merges)]
        for i, (first, second) in enumerate(pairs, len(vocabulary)):
            vocabulary[first + second] = i
        return _tokenizer(models.BPE(vocab=vocabulary, merges=pairs))


def _bytes() -> list[str]:
    """Returns the characters that stand for the bytes, in the order of their ids."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def _tokenizer(model: Any) -> "tokenizers.Tokenizer":
    import tokenizers
    from tokenizers import decoders, pre_tokenizers

    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _learn_merges(texts: Sequence[str], vocabulary_size: int) -> list[str]:
    from tokenizers import models, trainers

    tokenizer = _tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - RESERVED, initial_alphabet=_bytes(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    return [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
