"""Writes ONNX files from the PyTorch backend, with Keras' exporter."""

from pathlib import Path

from keras_small.runtimes.computation import Computation
from keras_small.runtimes.trials import outputs_of


def write(wanted: Computation, path: Path, max_error: float) -> dict[str, str]:
    """Writes the file of a model for the sizes of its specs, and checks it; returns no changes."""
    signature = [wanted.specs]
    wanted.model.export(path, format="onnx", verbose=False, input_signature=signature)
    expected = wanted.expected_outputs()
    expected.check(outputs_of(path, expected.examples))
    return {}
