"""Tokens per second of the translator's input, beside those of padding row by row.

    PYTHONPATH=. python benchmarks/input_pipeline.py

The embedded corpus (`cldr:pt-en`, 20,000 pairs), batches of 64. Counted are the target tokens that
are predicted, as training counts them; training should consume a tenth of it at most.
"""

import tempfile
import time

import keras
import numpy as np
from side_by_side import describe_machine, medians

from training.data.batches import BucketedBatches
from training.data.parallel import load_pairs
from training.data.prepared import prepare


def padded_row_by_row(part, batch_size=64):
    """The usual way: rows in a drawn order, `pad_sequences` for every batch."""
    order = np.random.default_rng(0).permutation(len(part))
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        source, target = (
            keras.utils.pad_sequences([side[row] for row in rows], padding="post")
            for side in (part.source, part.target)
        )
        yield {"source": source, "target": target[:, :-1]}, target[:, 1:]


def main():
    describe_machine()
    start = time.perf_counter()
    corpus = load_pairs()
    read = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        part = prepare(corpus, f"{folder}/corpus").parts["train"]
    prepared = time.perf_counter()
    print(f"once: corpus {read - start:.1f} s, vocabularies and ids {prepared - read:.1f} s")
    batches = BucketedBatches(part, 64, seed=0)

    def bucketed():
        batches.set_epoch(1)
        return [batches[i] for i in range(len(batches))]

    contenders = {"BucketedBatches": bucketed, "row by row": lambda: [*padded_row_by_row(part)]}
    for name, seconds in medians(contenders).items():
        labels = [labels for _, labels in contenders[name]()]
        filled = batches.tokens / sum(label.size for label in labels)
        print(f"{name}: {batches.tokens / seconds:,.0f} tokens/s, {1 - filled:.0%} padding")


if __name__ == "__main__":
    main()
