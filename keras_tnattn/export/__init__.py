"""Exports trained models as SavedModels that map text to translations or other answers.

An exported model only needs TensorFlow, neither Keras nor this package:

```python notest
model = tf.saved_model.load("saved_models/news/1")
model.signatures["serving_default"](tf.constant(["a text"]))
```

A translator contains operations of TensorFlow Text, so `import tensorflow_text` before you load it.

Models of text can be exported on the TensorFlow backend only, because its graphs process the text.
"""

from keras_tnattn.export.loading import load
from keras_tnattn.export.signatures import class_names_file, export_signatures

__all__ = ["class_names_file", "export_signatures", "load"]
