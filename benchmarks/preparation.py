"""Time and peak memory of preparing a corpus, in one process and in several.

    python benchmarks/preparation.py --pairs 100000 1000000 --workers 1 2

Generates text files of random words (4 to 40 a sentence, about 250 bytes a pair) with a small
validation and test part, and reads and prepares them in a process of its own as `train.py
translate` does. Printed are the peak of the memory that this process itself holds, sampled every
5 ms after the imports, and the time after the corpus was read. The memory of the other processes
is not part of the figure.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from own_memory import sampled_peak

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

CHUNK = 10_000  # sentences generated at once
SHORTEST, LONGEST, WORDS, HELD_OUT = 4, 40, 20_000, 100


def generate(folder, pairs):
    """Writes the folder of a corpus of random words, distributed by Zipf's law."""
    rng = np.random.default_rng(0)
    for language in ("a", "b"):
        words = np.array([f"{language}{i:x}" for i in range(WORDS)])
        for part, count in (("train", pairs), ("validation", HELD_OUT), ("test", HELD_OUT)):
            with (folder / f"{language}.{part}.txt").open("w", encoding="utf-8") as file:
                for start in range(0, count, CHUNK):
                    lengths = rng.integers(SHORTEST, LONGEST + 1, min(CHUNK, count - start))
                    drawn = words[np.minimum(rng.zipf(1.3, lengths.sum()), WORDS) - 1]
                    for sentence in np.split(drawn, np.cumsum(lengths)[:-1]):
                        file.write(" ".join(sentence) + "\n")


def measure(folder, workers):
    """Prepares the corpus, and prints what that took."""
    import tensorflow_text  # noqa: F401

    from keras_tnattn_train.data.pairs.loading import load_pairs
    from keras_tnattn_train.data.pairs.prepared import prepare

    with sampled_peak() as memory:
        corpus = load_pairs(folder)
        start = time.perf_counter()
        prepare(corpus, Path(folder, "prepared"), workers=workers)
        seconds = time.perf_counter() - start
    print(json.dumps({**memory, "seconds": seconds}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--folder", help="where to put the generated files")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        return measure(given.measure[0], int(given.measure[1]))
    print("pairs      workers   own memory at its peak, of which imports   seconds")
    for pairs in given.pairs:
        for workers in given.workers:
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                generate(Path(folder), pairs)
                done = subprocess.run(
                    [sys.executable, __file__, "--measure", folder, str(workers)],
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
                )
            taken = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{pairs:>10,} {workers:>7} {taken['peak'] / 1e6:>6,.0f} MB "
                f"{taken['before'] / 1e6:>6,.0f} MB {taken['seconds']:>7.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
