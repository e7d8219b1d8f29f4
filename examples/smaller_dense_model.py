"""Trains a dense model, converts its widest layer to a tensor train, and trains it further."""

import keras
import numpy as np

from keras_tnattn import TTDense


def make_data(num_rows, rng):
    """Returns noisy sine curves of 256 points, and the class of each curve, its frequency."""
    labels = rng.integers(0, 4, size=num_rows)
    phase = rng.uniform(0, 2 * np.pi, size=(num_rows, 1))
    points = np.linspace(0, 1, 256)
    curves = np.sin(2 * np.pi * (labels[:, None] + 2) * points + phase)
    return (curves + rng.normal(size=curves.shape)).astype("float32"), labels


def compile_and_fit(model, x, y, epochs):
    """Trains for some epochs, without output."""
    model.compile(
        keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    model.fit(x, y, batch_size=32, epochs=epochs, verbose=0)


def main(num_rows=2000, epochs=12, tt_ranks=8):
    """Prints weights and test accuracy before and after the conversion and after more training."""
    keras.utils.set_random_seed(0)
    x, y = make_data(num_rows, np.random.default_rng(0))
    half = num_rows // 2
    # Weight decay removes the random initial values, so that the kernel compresses better.
    decay = keras.regularizers.L2(0.01)
    wide = keras.layers.Dense(256, activation="relu", kernel_regularizer=decay)
    head = keras.layers.Dense(4, activation="softmax")
    dense = keras.Sequential([keras.Input((256,)), wide, head])
    compile_and_fit(dense, x[:half], y[:half], epochs)

    small_layer = TTDense.from_dense(wide, tt_ranks=tt_ranks)
    small = keras.Sequential([keras.Input((256,)), small_layer, head])
    small.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])

    def report(name, model):
        accuracy = model.evaluate(x[half:], y[half:], verbose=0)[1]
        print(f"{name}: {model.count_params():,} weights, test accuracy {accuracy:.1%}")

    report("dense", dense)
    print(f"relative error of the kernel: {small_layer.relative_error:.2f}")
    report("tensor train", small)
    compile_and_fit(small, x[:half], y[:half], epochs)
    report("trained further", small)


if __name__ == "__main__":
    main()
