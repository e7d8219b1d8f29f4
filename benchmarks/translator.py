"""Times a training step of the paper's model #2 against the naive composition of its layers.

    python benchmarks/translator.py [--quick]

With 64 pairs of 32 tokens and vocabularies of 8,000, a step takes 671 GFLOP, 78 % of them in the
residual units. The naive composition keeps the metric as `(B, H, k, k)` and lets
`keras.layers.Dense` multiply its rows. The rate in FLOP/s is also given relative to that of a large
matrix product of the same dtype in the same process.
"""

from side_by_side import describe_machine, medians, print_row, quick

# isort: split
import statistics
import time

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_tnattn.layers import PowerLawGraphAttention
from keras_tnattn.models import PRESETS, translator

FLOPS = 671e9
BATCH, LENGTH, VOCABULARY = 64, 32, 8000


@keras.saving.register_keras_serializable(package="benchmarks")
class NaiveAttention(PowerLawGraphAttention):
    """The same layer without the metric's rows in one matrix."""

    def deductive(self, metric, training=None):
        learned = metric
        for unit in self.residuals:
            learned = unit(learned, training=training)
        positive = ops.relu(ops.matmul(self.power_law_W, learned) + self.power_law_b) + 1e-9
        powers = ops.power(positive, self.power_law_P)
        curvature = ops.matmul(self.power_law_a, powers) + self.power_law_b_a
        return {"D_Q": metric, "G_LM": curvature}


def trained_by_steps(batch, length, attention=None):
    preset = dict(PRESETS["plga-2"])
    if attention is not None:
        preset = {"attention": attention, "dropout": preset["dropout"]}
    model = translator(VOCABULARY, VOCABULARY, **preset)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(keras.optimizers.Adam(1e-4, 0.9, 0.98, 1e-9), loss, jit_compile=False)
    rng = np.random.default_rng(0)
    source, target, labels = rng.integers(4, VOCABULARY, (3, batch, length), "int32")
    return lambda: model.train_on_batch({"source": source, "target": target}, labels)


def matrix_rate(dtype, size=2048):
    a = tf.cast(tf.random.normal((size, size)), dtype)
    product = tf.function(lambda: a @ a)
    seconds = []
    for _ in range(12):
        start = time.perf_counter()
        product()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds[2:])


def main():
    trying = quick(__doc__)
    batch, length = (2, 4) if trying else (BATCH, LENGTH)
    describe_machine()
    naive = NaiveAttention(8, dropout=0.1, residual_dropout=0.1)
    runs = {
        "naive": trained_by_steps(batch, length, naive),
        "ours": trained_by_steps(batch, length),
    }
    keras.config.set_dtype_policy("mixed_bfloat16")
    runs["ours, bfloat16"] = trained_by_steps(batch, length)
    keras.config.set_dtype_policy("float32")
    seconds = medians(runs, repeats=1 if trying else 3)
    print_row(f"model #2, {batch} x {length}", seconds, "naive")
    for name, dtype in (("ours", "float32"), ("ours, bfloat16", "bfloat16")):
        rate, limit = FLOPS * batch * length / (BATCH * LENGTH) / seconds[name], matrix_rate(dtype)
        print(
            f"{name}: {rate / 1e9:.0f} GFLOP/s, {rate / limit:.2f} of {limit / 1e9:.0f} GFLOP/s "
            f"of a {dtype} product"
        )


if __name__ == "__main__":
    main()
