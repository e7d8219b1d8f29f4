"""Checks by simulation that `Promise(max_flips=...)` is kept.

    python studies/benchmarks/promise.py
    python studies/benchmarks/promise.py --models digits --splits 20

Nine small classifiers are trained once each: of scikit-learn's digits with noise (dense, wide, with
batch normalization, convolutional, separable, recurrent, with a spectral attention), of a made
table and of made texts. Each split draws new rows, compresses the model with them, and measures the
share of flips on 20,000 other rows. Splits are kept in `--output`, and a second run makes those
that are missing. The promise says that this share is above `max_flips` in at most 5 % of the
splits. A row of the table is a model: the splits that broke the promise, and Clopper and Pearson's
one-sided bound at 95 % for the share of such splits; the mean share of flips; the splits whose
result is the model itself; how many times smaller the results are, median and from the 10th to the
90th percentile; and the processor time.
"""

import argparse
import functools
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import keras
import numpy as np
from sklearn.datasets import load_digits

from keras_small import Data, Promise, compress
from keras_small.goals.counting import CountedRows, Flips, upper_bound
from keras_small.survey.running import outputs_of
from keras_tnattn.layers import TensorizedSpectralAttention

TRUTH_ROWS = 20_000


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1000, help="of each split")
    parser.add_argument("--max-flips", type=float, default=0.03)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--bits", type=int, help="of compress; default: its own")
    parser.add_argument("--output", type=Path, default=Path("runs/promise.jsonl"))
    options = parser.parse_args()
    print("model    splits  broken  at most  mean flips  kept whole  times smaller  seconds")
    for name in options.models:
        simulate(name, options)


def simulate(name, options):
    settings = [options.rows, options.max_flips, options.confidence, options.bits]
    done = read(options.output, name, settings)
    if len(done) < options.splits:
        keras.utils.set_random_seed(0)
        draw, model = MODELS[name]()
        inputs, labels = draw(np.random.default_rng(1), 4000)
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(inputs, labels, epochs=10, verbose=0)
        others = draw(np.random.default_rng(2), TRUTH_ROWS)[0]
        predict = functools.partial(outputs_of, model)
        truth = CountedRows(predict, others, TRUTH_ROWS, Flips())
    for split in range(len(done), options.splits):
        start = time.process_time()
        result = compress(
            model,
            Promise(max_flips=options.max_flips, confidence=options.confidence),
            bits=options.bits,
            data=Data(
                draw(np.random.default_rng([3, split]), options.rows)[0], batch_size=options.rows
            ),
            verbose=0,
        )
        small = result.model
        share = truth.total(lambda x, small=small: outputs_of(small, x)) / TRUTH_ROWS
        done.append([share, result.report.ratio, time.process_time() - start])
        with options.output.open("a") as file:
            print(json.dumps([name, settings, *done[-1]]), file=file)
        if split % 50 == 0:
            keras.backend.clear_session()
    shares, ratios, seconds = map(np.array, zip(*done[: options.splits], strict=True))
    broken = int(np.sum(shares > options.max_flips))
    low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
    print(
        f"{name:9} {options.splits:6} {broken:7} {upper_bound(broken, options.splits, 0.95):8.1%} "
        f"{np.mean(shares):11.2%} {np.sum(ratios == 1):11} {middle:5.2f} ({low:.2f}-{high:.2f}) "
        f"{np.sum(seconds):8.0f}",
        flush=True,
    )


def read(path, name, settings):
    """Returns what earlier runs found for a model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row[2:] for row in rows if row[:2] == [name, settings]]


def noisy_digits(rng, rows):
    images, labels = load_digits(return_X_y=True)
    chosen = rng.integers(len(images), size=rows)
    noise = rng.normal(scale=0.15, size=(rows, 64))
    return (images[chosen] / 16 + noise).astype("float32"), labels[chosen]


def of_digits(*layers, shape=(64,)):
    """Returns a function that returns what draws the digits, and a classifier."""

    def make():
        first = keras.Input((64,)), keras.layers.Reshape(shape)
        return noisy_digits, keras.Sequential([*first, *(make() for make in layers), softmax(10)])

    return make


def softmax(classes):
    return keras.layers.Dense(classes, "softmax")


def dense(units):
    return lambda: keras.layers.Dense(units, "relu")


def table():
    """Five classes, each a cloud of three normal ones in 20 dimensions."""
    centers = 1.3 * np.random.default_rng(0).normal(size=(15, 20))

    def draw(rng, rows):
        chosen = rng.integers(15, size=rows)
        return (centers[chosen] + rng.normal(size=(rows, 20))).astype("float32"), chosen % 5

    return draw, keras.Sequential([keras.Input((20,)), dense(32)(), softmax(5)])


def texts():
    """Four classes of 12 words each, which prefer other ones of 200 words."""
    words = np.random.default_rng(0).dirichlet(np.full(200, 0.1), 4)

    def draw(rng, rows):
        labels = rng.integers(4, size=rows)
        ends = np.cumsum(words[labels], axis=1)[:, None]
        return (rng.random((rows, 12, 1)) * ends[..., -1:] > ends).sum(-1).astype("int32"), labels

    layers = keras.layers.Embedding(200, 16), keras.layers.GlobalAveragePooling1D()
    return draw, keras.Sequential(
        [keras.Input((12,), dtype="int32"), *layers, dense(16)(), softmax(4)]
    )


IMAGE = (8, 8, 1)
MODELS = {
    "digits": of_digits(dense(32)),
    "wide": of_digits(dense(128)),
    "normed": of_digits(dense(48), keras.layers.BatchNormalization, dense(24)),
    "conv": of_digits(
        lambda: keras.layers.Conv2D(12, 3, activation="relu"),
        lambda: keras.layers.Conv2D(12, 3, strides=2, activation="relu"),
        keras.layers.Flatten,
        shape=IMAGE,
    ),
    "separable": of_digits(
        lambda: keras.layers.Conv2D(12, 3, activation="relu"),
        lambda: keras.layers.SeparableConv2D(24, 3, strides=2, activation="relu"),
        keras.layers.Flatten,
        shape=IMAGE,
    ),
    "gru": of_digits(lambda: keras.layers.GRU(32), shape=(8, 8)),
    "spectral": of_digits(
        lambda: TensorizedSpectralAttention(2), keras.layers.Flatten, dense(24), shape=(8, 8)
    ),
    "table": table,
    "texts": texts,
}

if __name__ == "__main__":
    main()
