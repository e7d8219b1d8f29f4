"""The graph tensor network beside its formula: a recurrence in place of an `(L, L)` matrix.

    python benchmarks/graph_tensor_network.py [--lengths 1024 2048 4096 8192 16384 65536]

64 features, batch 1, damping 0.9. `fast` is `Y = (I + A) X`; `rank 16` is `Y = X + A X P` with a
projector of rank 16; the peer multiplies by `I + A`, made once and not timed. Ratios are times of
the peer over those of the contender. Beyond a length of 16,384 the matrix takes gigabytes, and the
layers run alone, beside the fast one. The second line of each is the time of a token: about
constant where time is linear.
"""

import quiet_start  # noqa: F401

# isort: split
import argparse

import tensorflow as tf
from side_by_side import describe_machine, forward, forward_and_backward, medians, print_row

from keras_tnattn import GraphTensorNetwork
from keras_tnattn.ops.time_graph import time_adjacency

FEATURES, DAMPING = 64, 0.9
LENGTHS = (1024, 2048, 4096, 8192, 16384, 65536)
LONGEST_DENSE = 16384


def contenders(length: int):
    """Name to function and its layer."""
    found = {}
    if length <= LONGEST_DENSE:
        matrix = tf.eye(length) + time_adjacency(length, DAMPING)
        found["dense formula"] = (lambda x: tf.matmul(matrix, x), None)
    for name, rank in (("fast", None), ("rank 16", 16)):
        layer = GraphTensorNetwork(rank, DAMPING)
        layer.build((None, None, FEATURES))
        found[name] = (layer, layer)
    return found


def compare(length: int, repeats: int):
    x = tf.random.normal((1, length, FEATURES))
    chosen = contenders(length)
    runs = {name: forward(function, x) for name, (function, _) in chosen.items()}
    both = {
        name: forward_and_backward(function, x, layer=layer)
        for name, (function, layer) in chosen.items()
    }
    for suffix, found in ((" fwd", runs), (" fwd+bwd", both)):
        seconds = medians(found, repeats)
        print_row(f"L {length}{suffix}", seconds, next(iter(seconds)))
        cells = [f"{name} {1e9 * t / length:.0f} ns" for name, t in seconds.items()]
        print(f"{'':28s} a token: " + ", ".join(cells), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    lengths = parser.parse_args().lengths
    describe_machine()
    for length in lengths:
        compare(length, repeats=9)


if __name__ == "__main__":
    main()
