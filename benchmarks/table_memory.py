"""Peak memory of `classify` before the training: a table of up to millions of texts to ids.

    python benchmarks/table_memory.py --rows 100000 1000000

Generates a TSV table (50 words a text, some common and some rare, five classes, about 180 bytes a
row) and, in a process of its own, does what `keras-tnattn classify` does with it: reads the texts,
computes their fingerprint, splits them into parts, learns the vocabulary, turns the texts into ids,
and reads an epoch of batches. It does not fit the SVM from which the weights start. Printed are the
peak of the memory that the process itself holds, sampled every 5 ms after the imports, and the
time. The texts and ids are in temporary files, whose pages the system keeps in memory as long as
there is room; they are not part of the figure.
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

CHUNK = 10_000  # rows generated at once
WORDS, VOCABULARY, CLASSES = 50, 50_000, 5


def generate(path, rows):
    """Writes a table of random texts, whose words are distributed by Zipf's law."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{i:x}" for i in range(VOCABULARY)])
    with path.open("w", encoding="utf-8") as file:
        file.write("text\tlabel\n")
        for start in range(0, rows, CHUNK):
            count = min(CHUNK, rows - start)
            texts = words[np.minimum(rng.zipf(1.3, (count, WORDS)), VOCABULARY) - 1]
            labels = rng.integers(0, CLASSES, count)
            for text, label in zip(texts, labels, strict=True):
                file.write(f"{' '.join(text)}\tclass {label}\n")


def measure(path):
    """Prepares the table as `classify` does, and prints what that took."""
    from keras_tnattn.estimator.batches import ArrayBatches
    from keras_tnattn_train.classify.config import ClassifyConfig
    from keras_tnattn_train.classify.texts import read_texts
    from keras_tnattn_train.classify.train import prepare_parts

    config = ClassifyConfig(dataset=path)
    start = time.perf_counter()
    with sampled_peak() as memory:
        data = read_texts(config)
        data.fingerprint()
        _, parts = prepare_parts(config, data)
        train = parts["train"]
        batches = ArrayBatches(train.ids, train.labels, config.batch_size, config.seed)
        for index in range(len(batches)):
            batches[index]
    print(json.dumps({**memory, "seconds": time.perf_counter() - start}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--folder", help="where to put the generated table")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        return measure(given.measure)
    print("rows          table   own memory at its peak, of which imports   seconds")
    for rows in given.rows:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            path = Path(folder, "table.tsv")
            generate(path, rows)
            done = subprocess.run(
                [sys.executable, __file__, "--measure", str(path)],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "KERAS_BACKEND": "numpy"},
            )
            size = path.stat().st_size
        taken = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{rows:>10,} {size / 1e6:>6,.0f} MB {taken['peak'] / 1e6:>6,.0f} MB "
            f"{taken['before'] / 1e6:>6,.0f} MB {taken['seconds']:>7.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
