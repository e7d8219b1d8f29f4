"""Times a training step of the seven-layer classifier with TSA and with `MultiHeadAttention`.

    python benchmarks/text_classifier.py [--backend jax] [--quick]

With an embedding of 20,000 x 64, two heads of 64, 200 tokens, batches of 32 and Adam; on TensorFlow
without XLA. A ratio is the time with `keras.layers.MultiHeadAttention` divided by that of the
contender.
"""

import argparse
import os

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--backend", default="tensorflow", choices=("tensorflow", "jax", "torch"))
parser.add_argument("--quick", action="store_true", help="small sizes: a try")
arguments = parser.parse_args()
# Before Keras is imported.
os.environ["KERAS_BACKEND"] = arguments.backend

from side_by_side import describe_machine, medians, print_row  # noqa: E402

# isort: split
import keras  # noqa: E402
import numpy as np  # noqa: E402

from keras_tnattn import TensorizedSpectralAttention  # noqa: E402
from keras_tnattn.models import text_classifier  # noqa: E402


class PlainMultiHeadAttention(keras.layers.Layer):
    """Self-attention by `keras.layers.MultiHeadAttention`."""

    def build(self, input_shape):
        self.attention = keras.layers.MultiHeadAttention(2, 64)
        self.attention.build(input_shape, input_shape)
        self.supports_masking = True

    def call(self, inputs):
        return self.attention(inputs, inputs)


ATTENTIONS = {
    "MultiHeadAttention": PlainMultiHeadAttention,
    "TSA, c 0.9": lambda: TensorizedSpectralAttention(2, damping=0.9),
    "TSA, c 0.5": lambda: TensorizedSpectralAttention(2, damping=0.5),
    "no attention": lambda: keras.layers.Identity(),
}


def training_step(attention: keras.layers.Layer, texts: int, words: int):
    model = text_classifier(20_000, 46, attention)
    compiles = keras.backend.backend() == "jax"
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=compiles)
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 20_000, (texts, words)).astype("int32")
    labels = rng.integers(0, 46, texts)
    # As a number, so that the step has ended.
    return lambda: float(model.train_on_batch(ids, labels))


def main():
    texts, words, repeats = (2, 20, 3) if arguments.quick else (32, 200, 41)
    describe_machine()
    steps = {name: training_step(make(), texts, words) for name, make in ATTENTIONS.items()}
    seconds = medians(steps, repeats)
    print_row("training step", seconds, "MultiHeadAttention")
    for name, value in seconds.items():
        print(f"  {name}: {value / seconds['MultiHeadAttention']:.2f} of the time of the peer")


if __name__ == "__main__":
    main()
