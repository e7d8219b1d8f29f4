"""Times `TTDense` of rank 2 against `keras.layers.Dense` and against forming its kernel.

    python benchmarks/tt_dense.py [--quick]

The factors are 2. A ratio is the time of `Dense` divided by that of the contender. `formed` is the
same layer, forced to form `W` and multiply once. The time of a copy of the input is a lower bound
for any evaluation.
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
import dataclasses

import keras
import tensorflow as tf

import keras_tnattn

SIZES = [
    (64, 12800),
    (128, 12800),
    (256, 12800),
    (1024, 200),
    (1024, 12800),
    (4096, 1),
    (4096, 200),
]


def main():
    sizes = [(64, 8), (128, 1)] if quick(__doc__) else SIZES
    describe_machine()
    for size, rows in sizes:
        x = tf.random.normal((rows, size))
        layers = {
            "Dense": keras.layers.Dense(size),
            "TTDense": keras_tnattn.TTDense(size),
            "formed": keras_tnattn.TTDense(size),
        }
        for layer in layers.values():
            layer.build(x.shape)
        formed = layers["formed"]
        formed.plan = dataclasses.replace(formed.plan, split=0)
        seconds = medians({name: forward(layer, x) for name, layer in layers.items()})
        print_row(f"{size} x {size}, {rows} rows, fwd", seconds, "Dense")
        seconds = medians(
            {name: forward_and_backward(layer, x, layer=layer) for name, layer in layers.items()}
        )
        print_row(f"{'':22s} fwd+bwd", seconds, "Dense")
        if rows > 1:
            copy = medians({"copy": forward(lambda x: x + 1.0, x)})["copy"]
            print(f"{'':28s} a copy of x takes {1e3 * copy:.2f} ms")


if __name__ == "__main__":
    main()
