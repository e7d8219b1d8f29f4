"""A deep tensor network on scikit-learn's digits, each row of pixels a site."""

import dataclasses

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from keras_tnattn.layers import LocalEmbedding
from keras_tnattn.models import deep_tensor_network


@dataclasses.dataclass(frozen=True)
class DigitsTask:
    """How the 1,797 digits of 8 by 8 pixels are learned; a quarter of them is the test part."""

    bond_dim: int = 10
    num_layers: int = 1
    epochs: int = 40
    batch_size: int = 64
    learning_rate: float = 5e-3
    weight_decay: float = 1e-2
    seed: int = 0


def digits(seed: int = 0) -> list[np.ndarray]:
    """Returns images `(B, 8, 8)` in [0, 1] and labels: training and test images, then labels."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 8, 8)
    return train_test_split(images, labels, test_size=0.25, stratify=labels, random_state=seed)


def learn_digits(task: DigitsTask) -> tuple[keras.Model, float]:
    """Returns a network from images `(B, 8, 8)` to logits, and its accuracy on the test part."""
    images, test_images, labels, test_labels = digits(task.seed)
    keras.utils.set_random_seed(task.seed)
    model = deep_tensor_network(
        10,
        LocalEmbedding("trigonometric"),
        num_layers=task.num_layers,
        bond_dim=task.bond_dim,
        num_sites=images.shape[1],
        num_features=images.shape[2],
        skip=True,
    )
    steps = task.epochs * -(-len(images) // task.batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(task.learning_rate, steps)
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=task.weight_decay),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(images, labels, epochs=task.epochs, batch_size=task.batch_size, verbose=0)
    predicted = model.predict(test_images, verbose=0).argmax(-1)
    return model, float(np.mean(predicted == test_labels))
