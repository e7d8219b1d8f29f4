"""Processor time and peak of memory of `keras_small.compress` at the sizes of real models.

    python benchmarks/compress_sizes.py
    python benchmarks/compress_sizes.py --models mobilenet resnet --ways compress ort_int8
    KERAS_BACKEND=jax python benchmarks/compress_sizes.py --models digits bilstm
    python benchmarks/compress_sizes.py --growth

Each way of making each model smaller runs in a process of its own. The seconds are those of the
processor, without imports and the making of the model. The peak is that of the memory which the
process itself holds, without the pages of files, sampled every 5 ms; the start is what it held
before. The last column is the time that `compress` expected by the clock. Weights and inputs are
random, of seed 0, so that nothing is fetched. `--growth` compresses one encoder with twice as many
blocks each time, and with four times as many rows.
"""

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from own_memory import sampled_peak

RNG = np.random.default_rng(0)


def application(name, side, rows):
    """A network of `keras.applications`, with random pictures."""

    def make():
        import keras

        model = getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3))
        return model, RNG.normal(size=(rows, side, side, 3)).astype("float32")

    return make


def encoder(blocks, features, rows=64, length=64, words=30522):
    """A transformer encoder with a table of words, and their ids."""

    def make():
        import keras
        from keras import layers

        ids = keras.Input((length,), dtype="int32")
        x = layers.LayerNormalization()(layers.Embedding(words, features)(ids))
        for _ in range(blocks):
            heads = features // 64
            attended = layers.MultiHeadAttention(heads, 64)(x, x)
            x = layers.LayerNormalization()(x + attended)
            hidden = layers.Dense(4 * features, activation="gelu")(x)
            x = layers.LayerNormalization()(x + layers.Dense(features)(hidden))
        model = keras.Model(ids, layers.GlobalAveragePooling1D()(x))
        return model, RNG.integers(0, words, (rows, length)).astype("int32")

    return make


def digits():
    """Two convolutions and two dense layers, on digits."""
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(80, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    return model, RNG.random((1347, 8, 8, 1)).astype("float32")


def bilstm():
    """A table of words, a recurrent layer of both directions, and an answer."""
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((50,), dtype="int32"),
            layers.Embedding(1500, 32),
            layers.Bidirectional(layers.LSTM(32)),
            layers.Dense(5, activation="softmax"),
        ]
    )
    return model, RNG.integers(0, 1500, (512, 50)).astype("int32")


# Each model, and how many times smaller it is to become.
MODELS = {
    "mobilenet": (application("MobileNetV2", 224, 64), 4),
    "resnet": (application("ResNet50", 224, 32), 8),
    "efficientnet": (application("EfficientNetV2S", 384, 32), 4),
    "convnext": (application("ConvNeXtTiny", 224, 32), 4),
    "densenet": (application("DenseNet121", 224, 32), 4),
    "nasnet": (application("NASNetMobile", 224, 32), 4),
    "encoder_23m": (encoder(6, 384), 8),
    "encoder_110m": (encoder(12, 768), 8),
    "digits": (digits, 10),
    "bilstm": (bilstm, 8),
}

# One encoder, with more blocks and with more rows.
GROWTH = {
    **{f"blocks_{n}": (encoder(n, 384, words=4000), 8) for n in (2, 4, 8, 16)},
    **{f"rows_{n}": (encoder(2, 384, rows=n, words=4000), 8) for n in (16, 64, 256, 1024)},
}


def compress(model, data, factor):
    import keras_small

    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        result = keras_small.compress(model, factor, data=data)
    expected = re.search(r"expected time: about (.*)", told.getvalue())
    return {
        "bytes": result.report.bytes_after,
        "error": result.report.error,
        "expected": expected.group(1),
    }


def _rounded_by_keras(model, mode):
    model.quantize(mode)
    return {"bytes": sum(int(np.prod(w.shape)) * _item_size(w.dtype) for w in model.weights)}


def _item_size(dtype):
    return 0.5 if dtype == "int4" else np.dtype(dtype).itemsize


def keras_int8(model, data, factor):
    return _rounded_by_keras(model, "int8")


def keras_int4(model, data, factor):
    return _rounded_by_keras(model, "int4")


def ort_int8(model, data, factor):
    """ONNX Runtime's static quantizer, by ranges; the seconds have the export, too."""
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder, "small.onnx")
        static_int8(model, small, data)
        return {"bytes": small.stat().st_size}


def static_int8(model, path, data):
    """Writes a file of ONNX Runtime's static quantizer, and one of floats beside it."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self, name):
            self.rows = iter([{name: data[i : i + 1]} for i in range(len(data))])

        def get_next(self):
            return next(self.rows, None)

    model(data[:1])  # Keras refuses to export a model that was never called
    floats = str(path.with_name("floats.onnx"))
    model.export(floats, format="onnx", verbose=False)
    name = onnx.load(floats, load_external_data=False).graph.input[0].name
    quantize_static(floats, str(path), Reader(name), per_channel=True)


WAYS = {way.__name__: way for way in (compress, keras_int8, keras_int4, ort_int8)}


def measure(name, way):
    import keras

    import keras_small  # noqa: F401

    keras.utils.set_random_seed(0)
    make, factor = {**MODELS, **GROWTH}[name]
    model, data = make()
    weights = sum(int(np.prod(w.shape)) for w in model.weights) * 4
    seconds = time.process_time()
    clock = time.perf_counter()
    with sampled_peak() as memory:
        found = WAYS[way](model, data, factor)
    return {
        "weights": weights,
        "start": memory["before"],
        "processor": time.process_time() - seconds,
        "clock": time.perf_counter() - clock,
        "peak": memory["peak"],
        **found,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--growth", action="store_true", help="encoders of four sizes and rows")
    parser.add_argument("--only", nargs=2, metavar=("MODEL", "WAY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(*arguments.only)))
        return
    if arguments.growth:
        arguments.models = list(GROWTH)
        arguments.ways = ["compress"]
    print(
        f"{'model':14}{'way':12}{'MB':>8}{'cpu s':>8}{'clock s':>9}{'start GB':>10}{'peak GB':>9}"
        f"{'times':>7}{'error':>8}  expected"
    )
    for name in arguments.models:
        for way in arguments.ways:
            command = [sys.executable, __file__, "--only", name, way]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{name:14}{way:12} failed: {done.stderr.strip().splitlines()[-1]}")
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{name:14}{way:12}{row['weights'] / 1e6:8.1f}{row['processor']:8.1f}"
                f"{row['clock']:9.1f}{row['start'] / 1e9:10.2f}{row['peak'] / 1e9:9.2f}"
                f"{row['weights'] / row['bytes']:7.1f}{row.get('error', float('nan')):8.4f}"
                f"  {row.get('expected', '')}",
                flush=True,
            )


if __name__ == "__main__":
    main()
