"""Times `Dense`, `TTDense`, `LowRankDense` and int8 `Dense`.

    python studies/benchmarks/low_rank_dense.py --output low_rank_dense.csv
    python studies/benchmarks/low_rank_dense.py --sizes 256 --rows 1 64      # a quick try

Prints and writes, for each size and number of rows, the times of the forward pass and of the
forward and backward pass (int8 cannot be trained), the weights, the bytes, and the number of
intermediate values per row. `tt` has factors of 2 and rank 2; the rank of `low_rank` is an eighth
of the size.
"""

import argparse
import csv
import sys

import keras
import numpy as np
import tensorflow as tf
from side_by_side import describe_machine, forward, forward_and_backward, medians, print_row

from keras_small import LowRankDense
from keras_tnattn import TTDense

SIZES = (256, 512, 1024, 2048, 4096)
ROWS = (1, 32, 200, 1600, 12_800)
COLUMNS = ("size", "rows", "layer", "weights", "bytes", "held_numbers_a_row", "forward_ms")
COLUMNS += ("forward_and_backward_ms",)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--output", help="CSV file (default: print only)")
    parser.add_argument("--dtype", default="float32", help="a Keras dtype policy")
    args = parser.parse_args()
    describe_machine()
    keras.config.set_dtype_policy(args.dtype)
    with open(args.output or "/dev/null", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for size in args.sizes:
            for rows in args.rows:
                for line in measure(size, rows):
                    writer.writerow(line)
                file.flush()
    return 0


def measure(size, rows):
    """Times all layers at one size and number of rows; yields a row for each."""
    x = tf.random.normal((rows, size))
    layers = {
        "Dense": keras.layers.Dense(size),
        "tt": TTDense(size),
        "low_rank": LowRankDense(size, size // 8),
        "int8": keras.layers.Dense(size),
    }
    for layer in layers.values():
        layer.build((rows, size))
    layers["int8"].quantize("int8")
    ahead = medians({name: forward(layer, x) for name, layer in layers.items()})
    print_row(f"{size} x {size}, {rows} rows, fwd", ahead, "Dense")
    trained = {name: layer for name, layer in layers.items() if name != "int8"}
    both = medians(
        {name: forward_and_backward(layer, x, layer=layer) for name, layer in trained.items()}
    )
    print_row(f"{'':22s} fwd+bwd", both, "Dense")
    held = {"tt": layers["tt"].plan.intermediate_size, "low_rank": size // 8}
    for name, layer in layers.items():
        stored = sum(np.prod(w.shape) * np.dtype(w.dtype).itemsize for w in layer.weights)
        yield {
            "size": size,
            "rows": rows,
            "layer": name,
            "weights": layer.count_params(),
            "bytes": int(stored),
            "held_numbers_a_row": held.get(name, 0),
            "forward_ms": round(1e3 * ahead[name], 4),
            "forward_and_backward_ms": round(1e3 * both[name], 4) if name in both else "",
        }


if __name__ == "__main__":
    sys.exit(main())
