"""From texts to ids and back: characters or bytes, without loss. Needs no TensorFlow."""

import codecs
import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_tnattn_train.options.errors import InputError

PAD, END, UNKNOWN = 0, 1, 2
RESERVED = 3
KINDS = ("characters", "bytes")


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of a language model.

    Args:
        kind: `"characters"` or `"bytes"`.
        characters: The characters in the order of their ids, from `RESERVED` on; `""` for bytes.
    """

    kind: str
    characters: str = ""

    @classmethod
    def of(cls, kind: str, texts: Iterable[str]) -> "Tokens":
        """Returns the tokens of some texts: of characters those that occur, most frequent first."""
        if kind == "bytes":
            return cls(kind)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text)
        return cls(kind, "".join(sorted(counts, key=lambda c: (-counts[c], c))))

    @property
    def vocabulary_size(self) -> int:
        return RESERVED + (256 if self.kind == "bytes" else len(self.characters))

    def encode(self, text: str) -> np.ndarray:
        """Returns the ids of a text, int32; a character that is not known is `UNKNOWN`."""
        if self.kind == "bytes":
            return np.frombuffer(text.encode(), "uint8").astype("int32") + RESERVED
        ids = {c: i for i, c in enumerate(self.characters, RESERVED)}
        return np.array([ids.get(c, UNKNOWN) for c in text], "int32")

    def prompt(self, text: str) -> np.ndarray:
        """Returns the ids of a prompt; an empty one is the end of a document before it.

        Raises:
            InputError: If it has characters that the model does not know.
        """
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

    def decoder(self) -> Any:
        """Returns a function from an id to the text that it completes; of bytes none at times."""
        if self.kind == "characters":
            return lambda i: self.characters[i - RESERVED] if i >= RESERVED else ""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        return lambda i: decode(bytes([i - RESERVED])) if i >= RESERVED else ""
