"""Exports trained models as SavedModels that map text to labels and probabilities or translations.

An exported model only needs TensorFlow, neither Keras nor this package:

```python notest
model = tf.saved_model.load("saved_models/news/1")
model.signatures["serving_default"](tf.constant(["a text"]))
```

A translator contains operations of TensorFlow Text, so `import tensorflow_text` before you load it.

Models of text can be exported on the TensorFlow backend only, because its graphs process the text.
A Keras model of ids or other numbers can be exported as a SavedModel on the TensorFlow and JAX
backends (`export_saved_model`), as an ONNX file on TensorFlow and PyTorch (`export_onnx`), and as a
LiteRT file (`export_litert`) or an OpenVINO model (`export_openvino`) on TensorFlow. Files are
about as small as the model's weights: integers, factors and cores stay what they are.
"""

from keras_tnattn.export.classifier import export_classifier, labels_and_probabilities
from keras_tnattn.export.file_costs import FileCosts, file_costs, file_outputs
from keras_tnattn.export.formats import (
    export_file,
    export_litert,
    export_onnx,
    export_openvino,
    export_saved_model,
    file_sizes,
)
from keras_tnattn.export.language_model import export_language_model
from keras_tnattn.export.loading import LoadedClassifier, LoadedTranslator, load
from keras_tnattn.export.portable import export_portable
from keras_tnattn.export.portable_language_model import export_portable_language_model
from keras_tnattn.export.portable_translator import export_portable_translator
from keras_tnattn.export.signatures import (
    CLASS_NAMES,
    check_backend,
    class_names_file,
    export_signatures,
    next_version,
    versions_in,
)
from keras_tnattn.export.translator import export_translator
from keras_tnattn.export.web import export_web, export_web_translator
from keras_tnattn.export.web_search import export_web_search

__all__ = [
    "CLASS_NAMES",
    "FileCosts",
    "LoadedClassifier",
    "LoadedTranslator",
    "check_backend",
    "class_names_file",
    "export_classifier",
    "export_file",
    "export_language_model",
    "export_litert",
    "export_onnx",
    "export_openvino",
    "export_portable",
    "export_portable_language_model",
    "export_portable_translator",
    "export_saved_model",
    "export_signatures",
    "export_translator",
    "export_web",
    "export_web_search",
    "export_web_translator",
    "file_costs",
    "file_outputs",
    "file_sizes",
    "labels_and_probabilities",
    "load",
    "next_version",
    "versions_in",
]
