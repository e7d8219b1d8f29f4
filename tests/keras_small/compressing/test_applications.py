"""All families of `keras.applications`, compressed, loaded in another process, and in each runtime.

    pytest -m slow -s tests/keras_small/compressing/test_applications.py

The smallest model of each family with random weights, five classes and its smallest pictures.
Prints a row for each: the error of the outputs, the share of the small model's bytes that stays in
floats, and the relative change of the outputs by the files of ONNX Runtime, LiteRT and OpenVINO.
"""

import subprocess
import sys

import exported_files
import keras
import numpy as np
import pytest

import keras_small
from keras_small.runtimes.exporting import FORMS

pytestmark = pytest.mark.slow

# The smallest sides of pictures that are not 32.
SIDES = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}
FAMILIES = (
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Small",
    "EfficientNetB0",
    "EfficientNetV2B0",
    "NASNetMobile",
    "DenseNet121",
    "ResNet50",
    "ResNet50V2",
    "ConvNeXtTiny",
    "Xception",
    "InceptionV3",
    "InceptionResNetV2",
    "VGG16",
)
LOADED = """
import sys
import keras, numpy as np
import keras_small
path, inputs, outputs = sys.argv[1:]
model = keras.models.load_model(path)
np.save(outputs, model.predict(np.load(inputs), verbose=0))
"""


@pytest.mark.parametrize("factor", [4, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_keras_applications(family, factor, tmp_path):
    keras.utils.set_random_seed(0)
    side = SIDES.get(family, 32)
    model = getattr(keras.applications, family)(
        weights=None, input_shape=(side, side, 3), classes=5, classifier_activation=None
    )
    pictures = np.random.default_rng(0).normal(size=(8, side, side, 3)).astype("float32")
    result = keras_small.compress(model, factor, data=pictures, verbose=0)
    report = result.report
    expected = result.model.predict(pictures, verbose=0)
    assert report.ratio >= factor
    result.save(tmp_path / "small.keras")
    again = in_another_process(tmp_path, pictures)
    size = np.abs(expected).max()
    np.testing.assert_allclose(again, expected, atol=1e-5 * size)
    kept = sum(row.bytes_after for row in report.layers if row.format == "kept")
    cells = [f"{report.error:.4f}", f"{100 * kept / report.bytes_after:.0f} %"]
    for suffix in (".onnx", ".tflite", ".xml"):
        path = tmp_path / f"small{suffix}"
        keras_small.export(result.model, path, pictures)
        (outputs,) = exported_files.run(path, pictures)
        change = float(np.linalg.norm(outputs - expected) / np.linalg.norm(expected))
        assert change < max(FORMS[suffix].max_error, 1e-4), suffix
        cells.append(f"{change:.4f}")
    print(f"\n| {family} | {factor} | {' | '.join(cells)} |")


def in_another_process(folder, pictures):
    """Returns what the model that was saved there answers once it is loaded."""
    inputs, outputs = folder / "inputs.npy", folder / "outputs.npy"
    np.save(inputs, pictures)
    command = [sys.executable, "-c", LOADED, folder / "small.keras", inputs, outputs]
    subprocess.run(command, check=True)
    return np.load(outputs)
