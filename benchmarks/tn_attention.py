"""Times the contexts of tensor-network attention: the tree of products against two `tf.scan`.

    python benchmarks/tn_attention.py [--quick]

The peer multiplies the matrices of the sites one by one, from the left and from the right,
normalizes at each step, and joins the two contexts of each site. Both start from the embeddings. A
ratio is the time of the peer divided by that of the contender. Tracing and the first call are timed
separately.
"""

from side_by_side import (
    describe_machine,
    forward,
    forward_and_backward,
    medians,
    print_row,
    quick,
)

# isort: split
import time

import tensorflow as tf

from keras_tnattn.ops import scan

# Sites N, bond dimension D, features d, batch B.
CASES = [(256, 8, 8, 32), (1024, 8, 8, 1), (1024, 8, 8, 32), (4096, 16, 8, 1)]


def two_scans(phi, attention):
    batch, length, dim = phi.shape
    bond = attention.shape[-1]
    flat = tf.reshape(tf.transpose(phi, (1, 0, 2)), (-1, dim)) @ tf.reshape(attention, (dim, -1))
    matrices = tf.reshape(flat, (length, batch, bond, bond))
    start = tf.eye(bond, batch_shape=[batch])

    def unit(x):
        return x / tf.norm(x, axis=(-2, -1), keepdims=True)

    left = tf.scan(lambda h, a: unit(h @ a), matrices[:-1], start)
    right = tf.scan(lambda h, a: unit(a @ h), matrices[1:], start, reverse=True)
    left = tf.concat([start[None], left], axis=0)
    right = tf.concat([right, start[None]], axis=0)
    return unit(right @ left)


def matrices_of_sites(phi, attention):
    """Returns the folded matrices; the lengths in `CASES` fill whole blocks."""
    folded = scan.fold_sites(phi)
    dim, bond = attention.shape[:2]
    flat = tf.reshape(folded, (-1, dim)) @ tf.reshape(attention, (dim, -1))
    return tf.reshape(flat, (*folded.shape[:-1], bond, bond))


def closed(phi, attention):
    return scan.closed_contexts(matrices_of_sites(phi, attention))


def open_chain(phi, attention):
    boundary = tf.ones((attention.shape[-1],))
    rows, columns = scan.open_contexts(matrices_of_sites(phi, attention), boundary, boundary)
    return columns * rows


def main():
    cases = [(256, 4, 4, 2)] if quick(__doc__) else CASES
    describe_machine()
    functions = {"two tf.scan": two_scans, "closed": closed, "open": open_chain}
    for length, bond, dim, batch in cases:
        phi = tf.random.uniform((batch, length, dim))
        attention = tf.eye(bond) + 0.1 * tf.random.normal((dim, bond, bond))
        label = f"N {length}, D {bond}, d {dim}, B {batch}"
        for compile_, suffix in ((forward, " fwd"), (forward_and_backward, " fwd+bwd")):
            runs = {name: compile_(f, phi, attention) for name, f in functions.items()}
            print_row(label + suffix, medians(runs, repeats=7), "two tf.scan")
        for name, function in functions.items():
            start = time.perf_counter()
            forward(function, phi, attention)()
            print(f"{'':28s} {name}: trace and first call {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
