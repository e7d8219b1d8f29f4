"""Compares the translator's input pipeline with padding row by row, and with what training needs.

    python benchmarks/input_pipeline.py [--quick]

The corpus is `cldr:pt-en`, 20,000 pairs, in batches of 64. The unit is predicted target tokens per
second. The training is that of the demo's translator with scaled dot-product attention, which is
small and therefore consumes many tokens per second.
"""

from side_by_side import describe_machine, medians, quick

# isort: split
import dataclasses
import tempfile
import time

import keras
import numpy as np

from keras_tnattn.models import translator
from keras_tnattn_train.data.pairs.batches import BucketedBatches
from keras_tnattn_train.data.pairs.corpus import PARTS
from keras_tnattn_train.data.pairs.loading import load_pairs
from keras_tnattn_train.data.pairs.prepared import prepare


def padded_row_by_row(part, batch_size=64):
    """The usual way: rows in random order, `pad_sequences` for every batch."""
    order = np.random.default_rng(0).permutation(len(part))
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        source, target = (
            keras.utils.pad_sequences([side[row] for row in rows], padding="post")
            for side in (part.source, part.target)
        )
        yield {"source": source, "target": target[:, :-1]}, target[:, 1:]


def training_step(batches, vocabulary_sizes):
    """Returns a training step on a batch of typical lengths, and its number of tokens."""
    model = translator(
        *vocabulary_sizes,
        attention="sdpa",
        model_dim=128,
        num_heads=4,
        feedforward_dim=512,
        num_layers=1,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile("adam", loss, jit_compile=False)
    batch = batches[len(batches) // 2]
    return lambda: model.train_on_batch(*batch), np.count_nonzero(batch[1])


def main():
    trying = quick(__doc__)
    describe_machine()
    start = time.perf_counter()
    corpus = load_pairs()
    if trying:
        parts = {name: getattr(corpus, name)[:500] for name in PARTS}
        corpus = dataclasses.replace(corpus, **parts)
    read = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        corpus = prepare(corpus, f"{folder}/corpus")
        part = corpus.parts["train"]
    prepared = time.perf_counter()
    print(f"preparation: corpus {read - start:.1f} s, vocabularies and ids {prepared - read:.1f} s")
    batches = BucketedBatches(part, 64, seed=0)

    def bucketed():
        batches.set_epoch(1)
        return [batches[i] for i in range(len(batches))]

    step, tokens = training_step(batches, corpus.vocabulary_sizes)
    contenders = {"BucketedBatches": bucketed, "row by row": lambda: [*padded_row_by_row(part)]}
    seconds = medians({**contenders, "training": step})
    consumed = tokens / seconds.pop("training")
    print(f"training: {consumed:,.0f} tokens/s")
    for name, run in contenders.items():
        rate = batches.tokens / seconds[name]
        filled = batches.tokens / sum(labels.size for _, labels in run())
        print(f"{name}: {rate:,.0f} tokens/s ({rate / consumed:.0f}x), {1 - filled:.0%} padding")


if __name__ == "__main__":
    main()
