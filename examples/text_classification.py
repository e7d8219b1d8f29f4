"""Classifies strings of your own with tensorized spectral attention."""

import keras
import numpy as np

from keras_tnattn.models import text_classifier

TEXTS = [
    ("the soup was hot and the bread fresh", "food"),
    ("a sweet cake with ripe fruit", "food"),
    ("we ate fish and drank cold wine", "food"),
    ("the cook burned the rice", "food"),
    ("fresh bread and sweet butter", "food"),
    ("the train was late again", "travel"),
    ("our flight leaves from the north gate", "travel"),
    ("a long road over the hills", "travel"),
    ("the ship sails to the island tonight", "travel"),
    ("two tickets for the night train", "travel"),
]


def encode(texts, vocabulary, length=12):
    """Turns texts into ids `(B, length)`; 0 is padding, 1 an unknown word."""
    ids = np.zeros((len(texts), length), "int32")
    for row, text in zip(ids, texts, strict=True):
        words = text.lower().split()[:length]
        row[: len(words)] = [vocabulary.get(word, 1) for word in words]
    return ids


def main(epochs=60):
    """Trains on the texts above and classifies two new ones."""
    keras.utils.set_random_seed(0)
    texts, labels = zip(*TEXTS, strict=True)
    words = sorted({word for text in texts for word in text.split()})
    vocabulary = {word: i for i, word in enumerate(words, start=2)}
    classes = sorted(set(labels))

    model = text_classifier(len(words) + 2, len(classes), attention="tsa", embedding_dim=16)
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    targets = np.array([classes.index(label) for label in labels])
    model.fit(encode(texts, vocabulary), targets, epochs=epochs, verbose=0)

    new = ["fresh fish and bread", "the late train to the island"]
    for text, probabilities in zip(
        new, model.predict(encode(new, vocabulary), verbose=0), strict=True
    ):
        print(f"{classes[probabilities.argmax()]} ({probabilities.max():.0%}): {text}")


if __name__ == "__main__":
    main()
