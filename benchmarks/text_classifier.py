"""Times a training step of the seven-layer classifier with TSA and with `MultiHeadAttention`.

    python benchmarks/text_classifier.py [--quick]

With an embedding of 20,000 x 64, two heads of 64, 200 tokens, batches of 32 and Adam, without XLA.
A ratio is the time with `keras.layers.MultiHeadAttention` divided by that of the contender.
"""

from side_by_side import describe_machine, medians, print_row, quick

# isort: split
import keras
import numpy as np
import tensorflow as tf

from keras_tnattn import TensorizedSpectralAttention
from keras_tnattn.models import text_classifier


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
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    rng = np.random.default_rng(0)
    ids = tf.constant(rng.integers(1, 20_000, (texts, words)), tf.int32)
    labels = tf.constant(rng.integers(0, 46, texts))
    return lambda: tf.constant(model.train_on_batch(ids, labels))


def main():
    texts, words, repeats = (2, 20, 3) if quick(__doc__) else (32, 200, 41)
    describe_machine()
    steps = {name: training_step(make(), texts, words) for name, make in ATTENTIONS.items()}
    seconds = medians(steps, repeats)
    print_row("training step", seconds, "MultiHeadAttention")
    for name, value in seconds.items():
        print(f"  {name}: {value / seconds['MultiHeadAttention']:.2f} of the time of the peer")


if __name__ == "__main__":
    main()
