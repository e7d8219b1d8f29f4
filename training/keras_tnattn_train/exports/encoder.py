"""Exports sentence encoders."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_small.runtimes.exporting import write_file
from keras_tnattn_runtime import reader
from keras_tnattn_train.exports.task import Task

# Texts with which a written folder is tried, besides the examples.
_TEXTS = ("", "a text", "Words, and more words of a longer text.")
# Minimum cosine of the vectors of a folder to those of the model: products round their inputs.
_MINIMUM_COSINE = 0.99


@dataclasses.dataclass(frozen=True)
class Encoder(Task):
    """A sentence encoder, such as `keras_small.load("minilm")`.

    A portable folder has `model.onnx` or `model.tflite`, and is a function from texts to vectors.

    Args:
        model: A model from int32 ids `(B, L)` to float32 vectors `(B, D)` of length 1. Padding, 0,
            must not change them.
        pieces: The pieces of texts.
        card: Entries of the model card. Default: none.
    """

    model: keras.Model
    pieces: reader.BertPieces
    card: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    kind = "a sentence encoder"
    forms = ("Portable",)

    def content(self) -> dict[str, Any]:
        return {
            "format": reader.FORMAT,
            "task": "encode",
            "dim": self.model.output_shape[-1],
            "pieces": self.pieces.rules,
        }

    def write_files(self, folder: Path, suffix: str) -> dict[str, str]:
        name = f"model{suffix}"
        write_file(self.model, folder / name, self._ids(_TEXTS[2]), self.pieces.max_length)
        return {"model": name}

    def compare(self, folder: Path) -> None:
        texts = [*_TEXTS, *self.examples]
        loaded = reader.load(folder)
        for text in texts:
            expected = keras.ops.convert_to_numpy(self.model(self._ids(text), training=False))[0]
            cosine = float(loaded.encode(text) @ expected)
            if not cosine >= _MINIMUM_COSINE:
                raise RuntimeError(f"the cosine of its vectors to the model's is {cosine:.3f}")

    def _ids(self, text: str) -> np.ndarray:
        return np.array([self.pieces.ids(text)], "int32")
