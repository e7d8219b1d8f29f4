"""Checks by simulation that `compress(max_flips=...)` keeps its promise.

    python studies/benchmarks/promise.py
    python studies/benchmarks/promise.py --models digits --splits 20

Three small classifiers are trained once each: a dense and a convolutional one of scikit-learn's
digits with noise, and a dense one of a made table. Each split draws new rows, compresses the model
with them, in floats, and measures the share of flips on 20,000 other rows. The promise says that
this share is above `max_flips` in at most 5 % of the splits. A row of the table is a model: the
splits that broke the promise, and Clopper and Pearson's one-sided bound at 95 % for the share of
such splits; the mean share of flips; the splits whose result is the model itself; how many times
smaller the results are, median and from the 10th to the 90th percentile; and the processor time.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import keras
import numpy as np
from sklearn.datasets import load_digits

from keras_tnattn import compress
from keras_tnattn.compression import compressing
from keras_tnattn.compression.batches import outputs_of
from keras_tnattn.compression.flips import CountedRows, upper_bound

TRUTH_ROWS = 20_000


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1000, help="of each split")
    parser.add_argument("--max-flips", type=float, default=0.03)
    parser.add_argument("--confidence", type=float, default=0.95)
    options = parser.parse_args()
    # Keras' own quantization, which the report shows for comparison, takes half of the time.
    compressing.keras_quantizations = lambda *_: ()
    print("model    splits  broken  at most  mean flips  kept whole  times smaller  seconds")
    for name in options.models:
        simulate(name, options)


def simulate(name, options):
    start = time.process_time()
    keras.utils.set_random_seed(0)
    draw, model = MODELS[name]()
    rng = np.random.default_rng(1)
    inputs, labels = draw(rng, 4000)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(inputs, labels, epochs=10, verbose=0)
    truth = CountedRows(model, draw(rng, TRUTH_ROWS)[0], TRUTH_ROWS)
    shares, ratios = [], []
    for _ in range(options.splits):
        result = compress(
            model,
            max_flips=options.max_flips,
            confidence=options.confidence,
            bits=32,
            data=draw(rng, options.rows)[0],
            batch_size=options.rows,
            effort="fast",
            verbose=0,
        )
        small = result.model
        shares.append(truth.flips(lambda x, small=small: outputs_of(small, x)) / TRUTH_ROWS)
        ratios.append(result.report.ratio)
    broken = int(np.sum(np.array(shares) > options.max_flips))
    whole = int(np.sum(np.array(ratios) == 1))
    low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
    bound = upper_bound(broken, options.splits, 0.95)
    print(
        f"{name:8} {options.splits:6} {broken:7} {bound:8.1%} {np.mean(shares):11.2%} {whole:11} "
        f"{middle:5.2f} ({low:.2f}-{high:.2f}) {time.process_time() - start:8.0f}",
        flush=True,
    )


def noisy_digits(rng, rows):
    images, labels = load_digits(return_X_y=True)
    chosen = rng.integers(len(images), size=rows)
    noise = rng.normal(scale=0.15, size=(rows, 64))
    return (images[chosen] / 16 + noise).astype("float32"), labels[chosen]


def digits():
    layers = keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")
    return noisy_digits, keras.Sequential([keras.Input((64,)), *layers])


def conv():
    layers = [
        keras.layers.Reshape((8, 8, 1)),
        keras.layers.Conv2D(12, 3, activation="relu"),
        keras.layers.Conv2D(12, 3, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10, "softmax"),
    ]
    return noisy_digits, keras.Sequential([keras.Input((64,)), *layers])


def table():
    """Five classes, each a cloud of three normal ones in 20 dimensions."""
    centers = 1.3 * np.random.default_rng(0).normal(size=(15, 20))

    def draw(rng, rows):
        chosen = rng.integers(15, size=rows)
        return (centers[chosen] + rng.normal(size=(rows, 20))).astype("float32"), chosen % 5

    layers = keras.layers.Dense(32, "relu"), keras.layers.Dense(5, "softmax")
    return draw, keras.Sequential([keras.Input((20,)), *layers])


MODELS = {"digits": digits, "conv": conv, "table": table}

if __name__ == "__main__":
    main()
