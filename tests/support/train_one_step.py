"""Trains one step with whatever keras_tnattn is installed: run where nothing else is."""

import keras
import numpy as np

import keras_tnattn

model = keras.Sequential(
    [
        keras.layers.Embedding(50, 16, mask_zero=True),
        keras_tnattn.TensorizedSpectralAttention(2),
        keras_tnattn.MaskedAveragePooling1D(),
        keras_tnattn.TTDense(4, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy")
model.fit(np.ones((8, 10), "int32"), np.zeros(8, "int32"), verbose=0)
print(f"one step trained with {keras_tnattn.__file__}")
