"""Times the filter of tensorized spectral attention: banded, direct, and `MultiHeadAttention`.

    python benchmarks/spectral_attention.py [--length 16384] [--quick]

With one head of 64 features. A ratio is the time of the direct form divided by that of the
contender. For the longest sequence, `keras.layers.MultiHeadAttention` is a second peer, and the
peak memory is measured, for each contender in its own process.
"""

from own_memory import sampled_peak
from side_by_side import describe_machine, forward, forward_and_backward, medians, print_row

# isort: split
import argparse
import subprocess
import sys
from pathlib import Path

import keras
import tensorflow as tf

from keras_tnattn.ops.spectral_filter import spectral_filter

HERE = Path(__file__).parent
KEY_DIM = 64
CASES = [(200, 32, 0.5), (200, 32, 0.9), (1024, 4, 0.5), (1024, 4, 0.9), (4096, 1, 0.9)]


def filter_by(method: str, damping: float):
    def run(keys, values):
        return spectral_filter(KEY_DIM**-0.25 * keys, values, damping, method=method)

    return run


def contenders(length: int, batch: int, damping: float, with_peer: bool):
    """Returns function, inputs and layer by name; `MultiHeadAttention` includes its dense maps."""
    keys, values = (tf.random.normal((batch, 1, length, KEY_DIM)) for _ in range(2))
    entries = {
        name: (filter_by(name, damping), (keys, values), None)
        for name in ("direct", "banded", "auto")
    }
    if with_peer:
        layer = keras.layers.MultiHeadAttention(1, KEY_DIM)
        x = keys[:, 0]
        layer.build(x.shape, x.shape)
        entries["MultiHeadAttention"] = (lambda x: layer(x, x), (x,), layer)
    return entries


def compare(length: int, batch: int, damping: float, with_peer: bool = False, repeats: int = 9):
    entries = contenders(length, batch, damping, with_peer)
    runs = {name: forward(f, *inputs) for name, (f, inputs, _) in entries.items()}
    label = f"L {length}, B {batch}, c {damping}"
    peers = ("direct", "MultiHeadAttention") if with_peer else ("direct",)
    seconds = medians(runs, repeats)
    for peer in peers:
        print_row(f"{label} fwd", seconds, peer)
    runs = {
        name: forward_and_backward(f, *inputs, layer=layer)
        for name, (f, inputs, layer) in entries.items()
    }
    seconds = medians(runs, repeats)
    for peer in peers:
        print_row(f"{'':18s} fwd+bwd", seconds, peer)


def peak_memory(name: str, length: int) -> float:
    """Returns the megabytes that the forward and backward pass add to a new process."""
    code = f"import spectral_attention as s; s.print_peak_memory({name!r}, {length})"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, check=True, capture_output=True, text=True, cwd=HERE)
    return float(result.stdout.split()[-1])


def print_peak_memory(name: str, length: int):
    function, inputs, layer = contenders(length, 1, 0.9, with_peer=True)[name]
    # A short run first, so that loading libraries and compilers is not counted.
    short = tuple(x[..., :256, :] for x in inputs)
    forward_and_backward(function, *short, layer=layer)()
    compiled = forward_and_backward(function, *inputs, layer=layer)
    with sampled_peak() as memory:
        compiled()
    print((memory["peak"] - memory["before"]) / 2**20)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--length", type=int, default=16384, help="of the longest sequence")
    parser.add_argument("--quick", action="store_true", help="small sizes: a try")
    given = parser.parse_args()
    length, cases = (512, [(64, 2, 0.9)]) if given.quick else (given.length, CASES)
    describe_machine()
    for case in cases:
        compare(*case)
    compare(length, 1, 0.9, with_peer=True, repeats=3)
    memory = {name: peak_memory(name, length) for name in ("banded", "MultiHeadAttention")}
    ratio = memory["MultiHeadAttention"] / memory["banded"]
    cells = ", ".join(f"{name} {value:.0f} MB" for name, value in memory.items())
    print(f"peak memory of forward and backward at L {length}: {cells} ({ratio:.0f}x)")


if __name__ == "__main__":
    main()
