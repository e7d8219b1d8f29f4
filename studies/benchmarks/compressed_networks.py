"""Trains a small network, compresses it, and compares it with Keras' quantization and plain SVD.

    python studies/benchmarks/compressed_networks.py conv
    python studies/benchmarks/compressed_networks.py lstm --data-dir DIR
    python studies/benchmarks/compressed_networks.py gru --data-dir DIR --seeds 0 1 2

`conv` is a convolutional network for scikit-learn's digits, enlarged to 16 x 16; `lstm` and `gru`
are bidirectional classifiers of Reuters. Each row is a model: how many times smaller it is, its
accuracy on the test part, and the time of the original over its own for a batch of 1 and of 64,
measured in turns. The peers are Keras' int8 and int4, for `conv` the SVD of each flattened kernel
to the same size, without data, and for the others ONNX Runtime's dynamic int8, whose size is that
of its file. `--coded` measures coded files (`.tnz`) instead of other formats of ours.
"""

import argparse
import collections
import os
import re
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import keras
import numpy as np
from sklearn.datasets import load_digits
from texts import read_columns

from keras_small import compress, export
from keras_small.storage.sizes import byte_count

LENGTH, WORDS = 80, 8000
# For each network the targets in floats and in integers; of floats some formats alone.
FLOATS, INTEGERS = {"bits": 32}, {"bits": 2, "formats": ()}
TARGETS = {
    "conv": [
        *[(4, FLOATS | {"formats": name}) for name in ("low_rank", "tucker", "spatial")],
        (4, FLOATS),
        (8, {"bits": 2}),
    ],
    "lstm": [(4, FLOATS), (8, INTEGERS | {"bits": 4}), (8, INTEGERS), (12, INTEGERS)],
    "gru": [(4, FLOATS), (8, INTEGERS), (12, INTEGERS)],
}
CODED = [(target, {"coded": True}) for target in (8, 12, 16)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=TARGETS)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0,))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--targets", type=float, nargs="*", help="of ours; default: all")
    parser.add_argument("--coded", action="store_true", help="count the bytes of coded files")
    options = parser.parse_args()
    for seed in options.seeds:
        keras.utils.set_random_seed(seed)
        if options.network == "conv":
            (train, test), model = digits(seed), convolutional()
        else:
            if options.data_dir is None:
                parser.error("Expected --data-dir with reuters/data.tsv.xz")
            train, test = reuters(options.data_dir)
            model = recurrent(options.network)
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(*train, epochs=options.epochs, batch_size=32, verbose=2)
        measure(options, seed, model, train, test)


def measure(options, seed, model, train, test):
    network, targets = options.network, options.targets
    inputs = train[0]
    right = accuracy(model, test)
    print(
        f"{network} {seed}: {byte_count(model):,} bytes, accuracy {100 * right:.2f} %", flush=True
    )

    def show(name, small, note="", size=None):
        accurate = accuracy(small, test)
        one, many = (times_as_fast(model, small, test[0][:count]) for count in (1, 64))
        ratio = byte_count(model) / (size or byte_count(small))
        print(
            f"{network} {seed}: {name:34} {ratio:5.2f} times smaller, accuracy "
            f"{100 * accurate:.2f} % ({100 * (accurate - right):+.2f}), {one:.2f} and "
            f"{many:.2f} times as fast{note}",
            flush=True,
        )

    for mode in ("int8", "int4"):
        peer = keras.models.clone_model(model)
        peer.set_weights(model.get_weights())
        peer.quantize(mode)
        show(f"Keras {mode}", peer)
    if network == "conv":
        show("plain SVD", compress(model, 4, formats="low_rank", bits=32, verbose=0).model)
    else:
        for name, path in onnx_files(model):
            show(name, OnnxModel(path), size=path.stat().st_size)
    for target, how in CODED if options.coded else TARGETS[network]:
        if targets is not None and target not in targets:
            continue
        name = f"to {target}, {', '.join(f'{key} {value}' for key, value in how.items())}"
        start = time.perf_counter()
        try:
            result = compress(model, target, data=inputs, verbose=0, **how)
        except ValueError as error:
            print(f"{network} {seed}: {name}: {str(error)[:100]}", flush=True)
            continue
        size = result.report.file_bytes if options.coded else None
        show(name, result.model, f", made in {time.perf_counter() - start:.0f} s", size)
        if how.get("bits") == 32:
            result.heal(inputs, epochs=1)
            show(f"{name}, healed", result.model)


def onnx_files(model):
    """Yields names and files of ONNX Runtime's floats and dynamic int8."""
    from onnxruntime.quantization import quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder) / "model.onnx", Path(folder) / "int8.onnx"
        export(model, path)
        yield "ONNX Runtime floats", path
        quantize_dynamic(str(path), str(small), per_channel=True)
        yield "ONNX Runtime int8", small


class OnnxModel:
    """A file with the methods of a Keras model that this script calls, on one core."""

    def __init__(self, path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self.name = self.session.get_inputs()[0].name

    def predict_on_batch(self, inputs):
        return self.session.run(None, {self.name: inputs})[0]

    def predict(self, inputs, verbose=0):
        return self.predict_on_batch(inputs)


def accuracy(model, test):
    inputs, labels = test
    return float(np.mean(model.predict(inputs, verbose=0).argmax(axis=-1) == labels))


def times_as_fast(model, small, batch):
    """Returns the median time of a call of one model over that of the other."""
    times = collections.defaultdict(list)
    for turn in range(34):
        for name, timed in (("old", model), ("new", small)):
            start = time.perf_counter()
            timed.predict_on_batch(batch)
            if turn > 3:
                times[name].append(time.perf_counter() - start)
    return np.median(times["old"]) / np.median(times["new"])


def digits(seed):
    images, labels = load_digits(return_X_y=True)
    images = np.repeat(np.repeat(images.reshape(-1, 8, 8, 1) / 16, 2, axis=1), 2, axis=2)
    order = np.random.default_rng(seed).permutation(len(images))
    parts = order[:1297], order[1297:]
    return [(images[rows].astype("float32"), labels[rows]) for rows in parts]


def convolutional():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.2),
            layers.Dense(10, activation="softmax"),
        ]
    )


def reuters(folder):
    splits, labels, texts = read_columns(
        folder / "reuters" / "data.tsv.xz", "split", "label", "text"
    )
    words = [re.findall(r"[a-z]+", text.lower())[:LENGTH] for text in texts]
    train = [i for i, split in enumerate(splits) if split == "train"]
    counts = collections.Counter(word for i in train for word in words[i])
    ids = {word: i for i, (word, _) in enumerate(counts.most_common(WORDS - 2), 2)}
    classes = {label: i for i, label in enumerate(sorted(set(labels)))}
    inputs = np.zeros((len(words), LENGTH), "int32")
    for row, text in zip(inputs, words, strict=True):
        row[: len(text)] = [ids.get(word, 1) for word in text]
    numbers = np.array([classes[label] for label in labels])
    test = [i for i, split in enumerate(splits) if split != "train"]
    return [(inputs[rows], numbers[rows]) for rows in (train, test)]


def recurrent(kind):
    layers = keras.layers
    layer = {"lstm": layers.LSTM, "gru": layers.GRU}[kind](64, return_sequences=True)
    inputs = keras.Input((LENGTH,), dtype="int32")
    states = layers.Bidirectional(layer)(layers.Embedding(WORDS, 64, mask_zero=True)(inputs))
    pooled = layers.GlobalAveragePooling1D()(states)
    outputs = layers.Dense(46, activation="softmax")(layers.Dropout(0.3)(pooled))
    return keras.Model(inputs, outputs)


if __name__ == "__main__":
    main()
