"""Trains a network on pictures of digits, and makes it eight times smaller."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_small

keras.utils.set_random_seed(0)
pictures, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(pictures / 16, labels, random_state=0)
model = keras.Sequential(
    [
        keras.Input((64,)),
        layers.Dense(256, "relu"),
        layers.Dense(256, "relu"),
        layers.Dense(10, "softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, epochs=20, verbose=0)

result = keras_small.compress(model, 8, data=x, verbose=0)
size = result.save("small.keras", overwrite=True)
small = keras.models.load_model("small.keras")
small.compile(metrics=["accuracy"])
before, after = (m.evaluate(x_test, y_test, verbose=0)[-1] for m in (model, small))
print(f"before: {4 * model.count_params():,} bytes, accuracy {before:.1%}")
print(f"after:  {size:,} bytes, accuracy {after:.1%}")
