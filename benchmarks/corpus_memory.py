"""Peak memory of reading a prepared corpus, from 100,000 to 10 million pairs.

    python benchmarks/corpus_memory.py --pairs 100000 1000000 10000000

Generates the files of a prepared corpus (sentences of 4 to 40 random ids, about 180 bytes a pair)
in a temporary folder, which --folder chooses, and reads it in a process of its own as training
does: checksums, batches of 64 in a drawn order, two epochs of at most --steps batches. Neither
Keras' backend nor a model is part of the figures. Printed are the peak of the memory that the
process itself holds, sampled every 5 ms after the imports, and the size of the files, whose pages
the system keeps in memory as long as there is room.
"""

import argparse
import hashlib
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

CHUNK = 100_000  # pairs generated at once
SHORTEST, LONGEST, VOCABULARY = 4, 40, 8000
PARTS = ("train", "validation", "test")


def generate(folder, pairs):
    """Writes a prepared corpus of random pairs, and an empty validation and test part."""
    rng = np.random.default_rng(0)
    for side in ("source", "target"):
        (folder / f"{side}.txt").write_text("", encoding="utf-8")
        lengths = rng.integers(SHORTEST, LONGEST + 1, pairs)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        for name in PARTS[1:]:
            np.save(folder / f"{name}_{side}_ids.npy", np.zeros(0, "int32"))
            np.save(folder / f"{name}_{side}_offsets.npy", np.zeros(1, "int64"))
        np.save(folder / f"train_{side}_offsets.npy", offsets)
        ids = np.lib.format.open_memmap(
            folder / f"train_{side}_ids.npy", "w+", "int32", (int(offsets[-1]),)
        )
        for start in range(0, pairs, CHUNK):
            first, last = offsets[start], offsets[min(start + CHUNK, pairs)]
            ids[first:last] = rng.integers(4, VOCABULARY, last - first)
        ids.flush()
    (folder / "texts.json").write_text(json.dumps({name: [] for name in PARTS[1:]}))
    description = {
        "made_of": {"generated": pairs},
        "languages": ["a", "b"],
        "vocabulary_sizes": [VOCABULARY, VOCABULARY],
        "max_length": LONGEST,
        "notes": [],
        "files": {path.name: sha256(path) for path in sorted(folder.iterdir())},
    }
    (folder / "prepared.json").write_text(json.dumps(description))


def sha256(path):
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def measure(folder, steps):
    """Reads the corpus as training does, and prints what that took."""
    from keras_tnattn_train.data.pairs.batches import BucketedBatches
    from keras_tnattn_train.data.pairs.prepared import load_prepared

    start = time.perf_counter()
    with sampled_peak() as memory:
        batches = BucketedBatches(load_prepared(folder).parts["train"], 64, seed=0)
        for epoch in range(2):
            batches.set_epoch(epoch)
            for index in range(min(steps, len(batches))):
                batches[index]
    print(json.dumps({**memory, "seconds": time.perf_counter() - start}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--steps", type=int, default=2000, help="batches read in each epoch")
    parser.add_argument("--folder", help="where to put the generated files")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        return measure(given.measure, given.steps)
    print("pairs        files   own memory at its peak, of which imports   seconds")
    for pairs in given.pairs:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            generate(Path(folder), pairs)
            size = sum(path.stat().st_size for path in Path(folder).iterdir())
            words = [sys.executable, __file__, "--measure", folder, "--steps", str(given.steps)]
            done = subprocess.run(
                words,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "KERAS_BACKEND": "numpy"},
            )
        taken = json.loads(done.stdout)
        print(
            f"{pairs:>10,} {size / 1e6:>6,.0f} MB {taken['peak'] / 1e6:>6,.0f} MB "
            f"{taken['before'] / 1e6:>6,.0f} MB {taken['seconds']:>7.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
