"""Time, memory and results of `compress`, for tables, kernels and convolutions.

    OMP_NUM_THREADS=1 python studies/benchmarks/compression_cost.py
    python studies/benchmarks/compression_cost.py --cases large

Each case is measured in a process of its own: the seconds of the processor and of the clock, the
time that `compress` told before it started, the peak of the memory that the process itself holds,
in sizes of the model and with the model, and the size and the error that were reached. Memory is
sampled every 5 ms, and is that beside what imports and a first, tiny compression hold.
"""

import argparse
import gc
import json
import logging
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import numpy as np
from own_memory import sampled_peak

RNG = np.random.default_rng(0)
CHUNK = 10_000  # rows generated at once


def random(rows, columns):
    return RNG.normal(size=(rows, columns))


def clustered(rows, columns):
    """Rows near one of a twentieth as many centers."""
    centers = RNG.normal(size=(rows // 20, columns)).astype("float32")
    table = np.empty((rows, columns), "float32")
    for start in range(0, rows, CHUNK):
        part = table[start : start + CHUNK]
        part[:] = centers[RNG.integers(0, len(centers), len(part))]
        part += 0.3 * RNG.normal(size=part.shape)
    return table


def low_rank(rows, columns):
    """A matrix of an eighth of the full rank, and noise of a fifth of its size."""
    rank = min(rows, columns) // 8
    product = RNG.normal(size=(rows, rank)) @ RNG.normal(size=(rank, columns)) / rank**0.5
    return product + 0.2 * RNG.normal(size=product.shape)


def table_of(rows, columns, values):
    import keras

    layer = keras.layers.Embedding(rows, columns, embeddings_initializer="zeros")
    model = keras.Sequential([keras.Input((None,), dtype="int32"), layer])
    layer.embeddings.assign(values(rows, columns))
    return model, None


def classifier(rows, columns, values):
    """A table and a dense layer, with ids as frequent as words."""
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((40,), dtype="int32"),
            keras.layers.Embedding(rows, columns),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(20, "softmax"),
        ]
    )
    model.layers[0].embeddings.assign(values(rows, columns))
    model.layers[2].kernel.assign(RNG.normal(size=(columns, 20)))
    return model, (RNG.zipf(1.2, (512, 40)) % rows).astype("int32")


def kernel_of(rows, columns, values):
    import keras

    model = keras.Sequential([keras.Input((rows,)), keras.layers.Dense(columns)])
    model.layers[0].kernel.assign(values(rows, columns))
    return model, RNG.normal(size=(256, rows)).astype("float32")


def convolutions(rows, columns, values):
    """Three convolutions of `rows` channels and `columns` filters."""
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((16, 16, rows))])
    for _ in range(3):
        model.add(keras.layers.Conv2D(columns, 3, padding="same", activation="relu"))
        kernel = values(9 * model.layers[-1].kernel.shape[2], columns)
        model.layers[-1].kernel.assign(kernel.reshape(model.layers[-1].kernel.shape) / 24)
    return model, RNG.normal(size=(64, 16, 16, rows)).astype("float32")


# The model and its sizes, and how many times smaller in how many bits.
CASES = {
    "random": (table_of, (10_000, 64, random), 16, None),
    "clustered": (table_of, (10_000, 64, clustered), 16, None),
    "low rank": (table_of, (10_000, 64, low_rank), 8, None),
    "random, 4 bits": (table_of, (10_000, 64, random), 32, 4),
    "clustered, 4 bits": (table_of, (10_000, 64, clustered), 50, 4),
    "classifier": (classifier, (10_000, 64, clustered), 16, None),
    "classifier, 4 bits": (classifier, (10_000, 64, clustered), 64, 4),
    "kernel": (kernel_of, (384, 1536, random), 4, None),
    "kernel of low rank": (kernel_of, (384, 1536, low_rank), 4, None),
    "kernel, 4 bits": (kernel_of, (384, 1536, low_rank), 12, 4),
    "convolutions": (convolutions, (64, 64, random), 4, None),
    "convolutions of low rank": (convolutions, (64, 64, low_rank), 4, None),
    "convolutions, 4 bits": (convolutions, (64, 64, low_rank), 12, 4),
    "medium": (table_of, (50_000, 128, clustered), 16, None),
    "large": (table_of, (200_000, 256, clustered), 16, None),
    "large, 4 bits": (table_of, (200_000, 256, clustered), 32, 4),
}
USUAL = [name for name in CASES if not name.startswith(("medium", "large"))]


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(name):
    """Prints what one case takes."""
    from keras_small import compress
    from keras_small.storage.sizes import byte_count

    told = []
    log = logging.getLogger("keras_small")
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    make, arguments, target, bits = CASES[name]
    tiny, data = make(600, 64, random) if make in (table_of, classifier) else make(16, 64, random)
    compress(tiny, 1.5, data=data, bits=bits or 32, verbose=0)
    log.setLevel("INFO")
    log.addHandler(handler)
    model, data = make(*arguments)
    gc.collect()
    with sampled_peak() as memory:
        begin = processor_seconds(), time.perf_counter()
        result = compress(model, target, data=data, bits=bits or 32, verbose=0)
        seconds = processor_seconds() - begin[0], time.perf_counter() - begin[1]
    layers = [layer for layer in result.report.layers if layer.format != "kept"]
    estimate = next(re.findall("about (.*)", line)[0] for line in told if "expected" in line)
    values = {
        "ratio": result.report.ratio,
        "errors": [layer.error for layer in layers],
        "error": result.report.error,
        "formats": [f"{layer.format} {layer.ranks}" for layer in layers],
        "processor": seconds[0],
        "clock": seconds[1],
        "estimate": estimate,
        "memory": 1 + (memory["peak"] - memory["before"]) / byte_count(model),
    }
    print(json.dumps(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", default=USUAL, choices=CASES, metavar="CASE")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        return measure(options.measure)
    head = ("smaller", "error", "CPU s", "s", "told", "memory")
    print(f"{'':26}" + "".join(f"{text:>12}" for text in head) + "  formats")
    for name in options.cases:
        command = [sys.executable, __file__, "--measure", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        row = json.loads(done.stdout.splitlines()[-1])
        error = row["error"] if row["error"] is not None else row["errors"][0]
        print(
            f"{name:26}{row['ratio']:12.2f}{error:12.5f}{row['processor']:12.2f}"
            f"{row['clock']:12.1f}{row['estimate']:>12}{row['memory']:12.1f}"
            f"  {'; '.join(row['formats'])}",
            flush=True,
        )


if __name__ == "__main__":
    main()
