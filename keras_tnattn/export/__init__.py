"""Trained models as SavedModels: raw text in, label and probabilities or a translation out.

An exported model needs TensorFlow alone, neither Keras nor this package:

```python notest
model = tf.saved_model.load("saved_models/news/1")
model.signatures["serving_default"](tf.constant(["a text"]))
```

That of a translator holds operations of TensorFlow Text: `import tensorflow_text` comes first.

Text is handled in TensorFlow's graphs, on that backend alone. Any Keras model of ids or other
numbers becomes a SavedModel on the TensorFlow and JAX backends (`export_saved_model`), an ONNX file
on TensorFlow and PyTorch (`export_onnx`) and a LiteRT file on TensorFlow (`export_litert`).
"""

from keras_tnattn.export.formats import export_litert, export_onnx, export_saved_model
from keras_tnattn.export.loading import Classifier, Translator, load
from keras_tnattn.export.writing import (
    CLASS_NAMES,
    check_backend,
    export,
    export_signatures,
    export_translator,
    labels_and_probabilities,
    next_version,
    versions_in,
)

__all__ = [
    "CLASS_NAMES",
    "Classifier",
    "Translator",
    "check_backend",
    "export",
    "export_litert",
    "export_onnx",
    "export_saved_model",
    "export_signatures",
    "export_translator",
    "labels_and_probabilities",
    "load",
    "next_version",
    "versions_in",
]
