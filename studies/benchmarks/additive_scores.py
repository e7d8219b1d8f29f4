"""Times the scores of additive attention and their gradients, computed in four ways.

    python studies/benchmarks/additive_scores.py [--quick]

For 32 texts of 200 words, two heads and 16 or 64 features. The peer is the formula of
`keras.layers.AdditiveAttention`, compiled by XLA, as `classify --attention ada` computes it. A
ratio is its time divided by that of the contender. All ways agree within rounding.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from side_by_side import describe_machine, medians, print_row, quick

# isort: split
import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

ROWS = 4  # queries at a time: the sums of 64 features then take 13 MB in place of 655


def plain(query: tf.Tensor, key: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """The scores `(B, H, L, L)` of queries and keys `(B, H, L, J)`, with a scale `(H, J)`."""
    sums = query[:, :, :, None] + key[:, :, None]
    return tf.reduce_sum(scale[:, None, None] * tf.tanh(sums), -1)


@tf.custom_gradient
def by_features(query: tf.Tensor, key: tf.Tensor, scale: tf.Tensor) -> tuple:
    """One feature at a time, computed again in the backward pass."""
    pairs = list(zip(*(tf.unstack(x, axis=-1) for x in (query, key, scale)), strict=True))

    def scores(q: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
        return tf.tanh(q[..., :, None] + k[..., None, :])

    def grad(upstream: tf.Tensor) -> tuple:
        grads = []
        for q, k, s in pairs:
            values = scores(q, k)
            slopes = upstream * (1 - values * values) * s[:, None, None]
            of_scale = tf.reduce_sum(values * upstream, (0, 2, 3))
            grads.append((tf.reduce_sum(slopes, -1), tf.reduce_sum(slopes, -2), of_scale))
        return tuple(tf.stack(parts, -1) for parts in zip(*grads, strict=True))

    return tf.add_n([s[:, None, None] * scores(q, k) for q, k, s in pairs]), grad


@tf.custom_gradient
def by_queries(query: tf.Tensor, key: tf.Tensor, scale: tf.Tensor) -> tuple:
    """A few queries at a time, computed again in the backward pass."""
    transposed = tf.linalg.matrix_transpose(key)[:, :, None]
    starts = range(0, query.shape[2], ROWS)

    def values_from(start: int) -> tf.Tensor:
        return tf.tanh(query[:, :, start : start + ROWS, :, None] + transposed)

    def grad(upstream: tf.Tensor) -> tuple:
        of_query, of_key, of_scale = [], 0.0, 0.0
        for start in starts:
            values, part = values_from(start), upstream[:, :, start : start + ROWS]
            of_scale += tf.reduce_sum((values @ part[..., None])[..., 0], (0, 2))
            slopes = part[:, :, :, None] * (1 - values * values)
            of_query.append(tf.reduce_sum(slopes, -1))
            of_key += tf.reduce_sum(slopes, 2)
        of_key = tf.linalg.matrix_transpose(of_key) * scale[:, None]
        return tf.concat(of_query, 2) * scale[:, None], of_key, of_scale

    rows = scale[:, None, None, :]
    return tf.concat([(rows @ values_from(start))[..., 0, :] for start in starts], 2), grad


def compiled(scores: Callable, jit_compile: bool) -> Callable:
    @tf.function(jit_compile=jit_compile)
    def step(*inputs: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            weights = tf.nn.softmax(scores(*inputs))
            loss = tf.reduce_sum(weights * tf.range(float(weights.shape[-1])))
        return tape.gradient(loss, inputs)

    return step


def main() -> None:
    trying = quick(__doc__)
    texts, words = (2, 8) if trying else (32, 200)
    describe_machine()
    ways = {
        "XLA": compiled(plain, True),
        "no XLA": compiled(plain, False),
        "by features": compiled(by_features, False),
        "by queries": compiled(by_queries, False),
    }
    rng = np.random.default_rng(0)
    for features in (16, 64):
        shapes = (texts, 2, words, features), (texts, 2, words, features), (2, features)
        inputs = [tf.constant(rng.normal(size=shape), tf.float32) for shape in shapes]
        expected = ways["XLA"](*inputs)
        for step in ways.values():
            for one, other in zip(step(*inputs), expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3 * np.abs(other).max())
        steps = {name: functools.partial(step, *inputs) for name, step in ways.items()}
        seconds = medians(steps, repeats=1 if trying else 7)
        print_row(f"{texts} texts, {features} features", seconds, "XLA")


if __name__ == "__main__":
    main()
