"""Classifies pictures of digits by a deep tensor network, whose sites are the rows of pixels."""

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from keras_tnattn import LocalEmbedding
from keras_tnattn.models import deep_tensor_network


def make_model(height, width, num_classes):
    """Returns a network from pictures `(B, height, width)`, from 0 to 1, to logits."""
    return deep_tensor_network(
        num_classes,
        LocalEmbedding("trigonometric"),
        bond_dim=10,
        num_sites=height,
        num_features=width,
        initial_deviation=0.2,
        skip=True,
    )


def main(epochs=40, batch_size=64):
    """Trains on three quarters of the pictures, and prints the accuracy on the others."""
    keras.utils.set_random_seed(0)
    pictures, labels = load_digits(return_X_y=True)
    pictures = (pictures / 16).astype("float32").reshape(-1, 8, 8)
    x, x_test, y, y_test = train_test_split(
        pictures, labels, test_size=0.25, stratify=labels, random_state=0
    )
    model = make_model(*pictures.shape[1:], num_classes=10)
    steps = epochs * -(-len(x) // batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(5e-3, steps)
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(x, y, batch_size, epochs, verbose=0)
    accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
    print(f"{model.count_params():,} weights, test accuracy {100 * accuracy:.1f}%")
    return model


if __name__ == "__main__":
    main()
