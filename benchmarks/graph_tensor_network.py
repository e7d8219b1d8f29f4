"""Times the graph tensor network, a recurrence, against its formula with an `(L, L)` matrix.

    python benchmarks/graph_tensor_network.py [--lengths 1024 2048 4096 8192 16384 65536]

With 64 features, batch 1 and damping 0.9. `fast` is `Y = (I + A) X`; `rank 16` is `Y = X + A X P`
with a projector of rank 16; the peer multiplies by `I + A`, which is formed once and not timed. A
ratio is the time of the peer divided by that of the contender. Above a length of 16,384 the matrix
would take gigabytes, and `fast` is the peer instead. The second line of each row is the time per
token, which is about constant if the time is linear.
"""

from side_by_side import describe_machine, forward, forward_and_backward, medians, print_row

# isort: split
import argparse

import tensorflow as tf

from keras_tnattn import GraphTensorNetwork
from keras_tnattn.ops.time_graph import time_adjacency

FEATURES, DAMPING = 64, 0.9
LENGTHS = (1024, 2048, 4096, 8192, 16384, 65536)
LONGEST_DENSE = 16384


def contenders(length: int):
    """Returns the function and the layer of each contender by name."""
    entries = {}
    if length <= LONGEST_DENSE:
        matrix = tf.eye(length) + time_adjacency(length, DAMPING)
        entries["dense formula"] = (lambda x: tf.matmul(matrix, x), None)
    for name, rank in (("fast", None), ("rank 16", 16)):
        layer = GraphTensorNetwork(rank, DAMPING)
        layer.build((None, None, FEATURES))
        entries[name] = (layer, layer)
    return entries


def compare(length: int, repeats: int):
    x = tf.random.normal((1, length, FEATURES))
    entries = contenders(length)
    runs = {name: forward(function, x) for name, (function, _) in entries.items()}
    both = {
        name: forward_and_backward(function, x, layer=layer)
        for name, (function, layer) in entries.items()
    }
    for suffix, timed in ((" fwd", runs), (" fwd+bwd", both)):
        seconds = medians(timed, repeats)
        print_row(f"L {length}{suffix}", seconds, next(iter(seconds)))
        cells = [f"{name} {1e9 * t / length:.0f} ns" for name, t in seconds.items()]
        print(f"{'':28s} per token: " + ", ".join(cells), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    lengths = parser.parse_args().lengths
    describe_machine()
    for length in lengths:
        compare(length, repeats=9)


if __name__ == "__main__":
    main()
