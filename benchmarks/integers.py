"""Memory and time of products with integers: `python benchmarks/integers.py --runtime litert`.

Three untrained models, four pairs of dense layers (8.4 M weights), an attention and a convolutional
one, as floats, with the runtime's own dynamic int8, and compressed to 8 and 4 bits. Each file is
measured alone in a process of its own on one thread, the files in turn; the least of the rounds
counts. Memory is what loading and the first call add. Errors are relative to the float model.
LiteRT's own int8 needs `--quantizer`, the Python of an environment with `ai-edge-quantizer`.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

import keras
import numpy as np

from keras_small import compress, export
from keras_small.runtimes import file_costs
from keras_small.runtimes.exporting import write_file

layers = keras.layers


def dense():
    x = inputs = keras.Input((512,))
    for _ in range(4):
        hidden = layers.Dense(2048, activation="relu")(x)
        x = layers.Add()([x, layers.Dense(512)(hidden)])
    return keras.Model(inputs, x)


def attention():
    x = inputs = keras.Input((64, 256))
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 64)(x, x))
        hidden = layers.Dense(1024, activation="gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(256)(hidden))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def convolutional():
    x = inputs = keras.Input((32, 32, 3))
    for filters in (32, 64, 128):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


MODELS = {"dense": dense, "attention": attention, "convolutional": convolutional}


SUFFIXES = {"onnxruntime": ".onnx", "litert": ".tflite"}
BY_LITERT = """
import sys
from ai_edge_quantizer import quantizer, recipe
work = quantizer.Quantizer(sys.argv[1])
work.load_quantization_recipe(recipe.dynamic_wi8_afp32())
work.quantize().export_model(sys.argv[2])
"""


def files_of(model, data, folder, runtime, python):
    """Writes the model in all forms; returns the paths by name."""
    suffix = SUFFIXES[runtime]
    files = {"float": export(model, folder / f"float{suffix}", data[:8])}
    dynamic = folder / f"dynamic{suffix}"
    if runtime == "onnxruntime":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(files["float"], dynamic, weight_type=QuantType.QInt8)
    elif python:
        command = [python, "-c", BY_LITERT, files["float"], dynamic]
        subprocess.run(command, check=True, capture_output=True)
    if dynamic.exists():
        files["its own int8"] = dynamic
    for bits in (8, 4):
        options = {"formats": (), "for_runtime": runtime, "verbose": 0}
        small = compress(model, bits=bits, data=data, **options).model
        path = folder / f"{bits}{suffix}"
        write_file(small, path, data[:8], data=[data])
        files[f"ours, {bits} bits"] = path
    return files


def measure(name, rounds, runtime, python):
    keras.utils.set_random_seed(0)
    model, rng = MODELS[name](), np.random.default_rng(0)
    data, test = (rng.normal(size=(n, *model.input_shape[1:])).astype("float32") for n in (128, 32))
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        files = files_of(model, data, Path(folder), runtime, python)
        for _ in range(rounds):
            for variant, path in files.items():
                found.setdefault(variant, []).append(file_costs(path, model, test))
        float_least = None
        for variant, costs in found.items():
            names = ("resident_bytes", "one_row_us", "many_rows_us")
            least = [min(getattr(cost, name) for cost in costs) for name in names]
            float_least = float_least or least
            shares = [f"{x / y:.2f}" for x, y in zip(least, float_least, strict=True)]
            print(
                f"| {name} | {variant} | {costs[0].bytes / 1e6:.1f} | {least[0] / 1e6:.0f} "
                f"({shares[0]}) | {least[1]:,.0f} ({shares[1]}) | {least[2]:,.0f} ({shares[2]}) | "
                f"{costs[0].error:.4f} |",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--runtime", choices=SUFFIXES, default="onnxruntime")
    parser.add_argument("--quantizer", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| model | weights | MB | MB of memory | us, 1 row | us, 32 rows | error |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name in options.models:
        measure(name, options.rounds, options.runtime, options.quantizer)


if __name__ == "__main__":
    main()
