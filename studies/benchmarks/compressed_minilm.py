"""Compresses the sentence encoder all-MiniLM-L6-v2 and compares it with Keras' quantization.

    python studies/benchmarks/compressed_minilm.py --data-dir DIR
    python studies/benchmarks/compressed_minilm.py --data-dir DIR --targets 15 --formats adaptive
    --calibration 11024 --heal 10000

Needs the extra `hub` and the package tokenizers. Each row is a model: how many times smaller it is,
the mean cosine of its sentence vectors (the mean of the last hidden states, of length 1) to those
of the original on texts that were used for nothing else, and the time of the processor. The layers
are observed on 1,024 of the texts for calibration, and the ids of all of them are counted. `--heal`
trains the model for an epoch on some of them, towards the vectors of the original.
`--coded` compares coded files (`.tnz`), whose bytes are then shared out. `--classes` adds the
accuracy of a logistic regression on the vectors of 20 Newsgroups, with a 95 % interval of the
difference. Models that are in the folder `--models` are not made again.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import keras
import keras_hub
import numpy as np
import tokenizers
from keras import ops
from texts import mixed_texts, read_columns

from keras_small import compress
from keras_small.building.saving import file_bytes
from keras_small.storage.sizes import byte_count
from keras_tnattn_train.data.foreign_models import fetch
from keras_tnattn_train.demos.minilm import squared_distance


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/keras_tnattn").expanduser())
    parser.add_argument("--targets", type=float, nargs="*", default=(6.7, 9.5))
    parser.add_argument("--bits", type=int, default=2)
    parser.add_argument("--formats", nargs="*", default=())
    parser.add_argument("--coded", action="store_true", help="count the bytes of coded files")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--calibration", type=int, default=1024)
    parser.add_argument("--heal", type=int, default=0, help="of these, texts for healing")
    parser.add_argument("--heal-length", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=6e-5)
    parser.add_argument("--hidden", nargs="*", default=(), help="layers whose outputs are targets")
    parser.add_argument("--models", type=Path, help="a folder to keep the models in")
    parser.add_argument("--classes", type=int, default=0, help="texts for a logistic regression")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    folder = fetch("minilm", options.cache) / "all_minilm_l6_v2"
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    count = options.held_out + options.calibration
    inputs = encoded(tokenizer, mixed_texts(options.data_dir, count), options.length)
    held = part(inputs, 0, options.held_out)
    calibration = part(inputs, options.held_out, count)
    healing = part(inputs, count - options.heal, count)
    healing = {name: array[:, : options.heal_length] for name, array in healing.items()}
    model = encoder(folder)
    expected, total = vectors(model, held), byte_count(model)
    classes = Classes(tokenizer, options, model) if options.classes else None

    def show(name, make, folder=options.models):
        start = time.process_time()
        small = kept(folder, name, make)
        seconds = time.process_time() - start
        cosine = float((vectors(small, held) * expected).sum(axis=1).mean())
        size = file_bytes(small, ".tnz") if options.coded else byte_count(small)
        row = f"{name:28} {total / size:6.2f} times smaller, cosine {cosine:.4f}"
        row += f", {seconds:.0f} s of the processor"
        print(row + ("" if classes is None else f", {classes.compared(small)}"), flush=True)

    for target in options.targets:
        small = Compressed(model, target, calibration, options)
        show(f"compress to {target:g}", small.made)
        if options.heal:
            show(f"compress to {target:g}, healed", lambda small=small: small.healed(healing))
    for mode in ("int8", "int4") if options.peers else ():
        # Files with them do not load.
        show(f"Keras {mode}", lambda mode=mode: quantized(encoder(folder), mode), None)


def kept(folder, name, make):
    """Returns the model of a name in a folder, which is made if it is not there."""
    if folder is None:
        return make()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace(' ', '_').replace(',', '')}.keras"
    if not path.exists():
        make().save(path)
    return keras.models.load_model(path)


def quantized(model, mode):
    model.quantize(mode)
    return model


class Compressed:
    """A model of a target, compressed once it is asked for."""

    def __init__(self, model, target, calibration, options):
        self.arguments = model, target, calibration
        self.options, self.result = options, None

    def made(self):
        model, target, calibration = self.arguments
        how = {"bits": self.options.bits, "formats": self.options.formats}
        how = {"coded": True} if self.options.coded else how
        self.result = compress(model, target, data=calibration, **how)
        print(self.result.report)
        return self.result.model

    def healed(self, texts):
        if self.result is None:
            self.made()
        rate, hidden = self.options.learning_rate, self.options.hidden
        self.result.heal(texts, learning_rate=rate, loss=squared_distance, outputs=hidden)
        return self.result.model


def encoder(folder):
    """Returns the encoder with mean pooling; its outputs are vectors of length 1."""
    backbone = keras_hub.models.BertBackbone.from_preset(str(folder))
    states = backbone.output["sequence_output"]
    mask = backbone.input["padding_mask"]
    pooled = keras.layers.GlobalAveragePooling1D(name="pooling")(states, mask=mask)
    return keras.Model(backbone.input, keras.layers.UnitNormalization(name="unit")(pooled))


def encoded(tokenizer, texts, length):
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    encodings = tokenizer.encode_batch([text[:2000] for text in texts])
    return {
        "token_ids": np.array([e.ids for e in encodings], "int32"),
        "segment_ids": np.zeros((len(texts), length), "int32"),
        "padding_mask": np.array([e.attention_mask for e in encodings], "int32"),
    }


def part(inputs, start, stop):
    return {name: array[start:stop] for name, array in inputs.items()}


def vectors(model, inputs):
    """Returns the vectors of texts, in batches of texts of about the same length."""
    lengths = inputs["padding_mask"].sum(axis=1)
    order = np.argsort(lengths, kind="stable")
    found = []
    for rows in np.array_split(order, -(-len(order) // 128)):
        batch = {name: array[rows, : lengths[rows].max()] for name, array in inputs.items()}
        found.append(ops.convert_to_numpy(model(batch, training=False)))
    return np.concatenate(found)[np.argsort(order)]


class Classes:
    """Accuracy of a logistic regression on the vectors of texts of 20 Newsgroups."""

    def __init__(self, tokenizer, options, model):
        path = options.data_dir / "twenty_newsgroups" / "data_stripped.tsv.xz"
        splits, labels, texts = read_columns(path, "split", "label", "text")
        rng = np.random.default_rng(0)
        self.parts = {}
        for name in ("train", "test"):
            rows = rng.permutation([i for i, split in enumerate(splits) if split == name])
            rows = rows[: options.classes]
            ids = encoded(tokenizer, [texts[i] for i in rows], options.length)
            self.parts[name] = ids, np.array([labels[i] for i in rows])
        self.right = self._right(model)

    def _right(self, model):
        from sklearn.linear_model import LogisticRegression

        (train, train_labels), (test, test_labels) = self.parts["train"], self.parts["test"]
        classifier = LogisticRegression(C=10, max_iter=2000).fit(
            vectors(model, train), train_labels
        )
        return classifier.predict(vectors(model, test)) == test_labels

    def compared(self, small):
        right = self._right(small)
        change = right.astype(float) - self.right
        half = 1.96 * change.std() / np.sqrt(len(change))
        return (
            f"accuracy {100 * right.mean():.1f} % "
            f"({100 * change.mean():+.1f} +- {100 * half:.1f} of {100 * self.right.mean():.1f})"
        )


if __name__ == "__main__":
    main()
