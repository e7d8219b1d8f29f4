"""Sizes, agreement and times of one model in all engines: `python benchmarks/engines.py`.

The models are a classifier of ids (an embedding and two dense layers), a convolutional and a
recurrent one; each as it is, quantized by Keras, and compressed 4, 8 and 30 times, also for LiteRT.
`minilm` is the sentence encoder all-MiniLM-L6-v2 of `compressed_minilm.py`, of ids; it needs the
extra `hub`, and is compressed 4, 6.7 and 8 times.
The engines are TensorFlow (a SavedModel), ONNX Runtime, OpenVINO and LiteRT, on one thread,
TensorFlow on its own choice. Agreement is the largest difference from the outputs of the Keras
model, relative to its largest output. Times are the medians of calls, the engines in turn; with
`--processor` those of the processor, which other programs change less.
"""

import argparse
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

from keras_small import compress, export
from keras_tnattn_runtime.layout import file_sizes

SUFFIXES = {"TensorFlow": "", "ONNX Runtime": ".onnx", "OpenVINO": ".xml", "LiteRT": ".tflite"}
ROWS = (1, 32)


def classifier():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(5000, 64),
            layers.Dense(256, activation="relu"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(46, activation="softmax"),
        ]
    )


def convolutional():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(256, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )


def recurrent():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(5000, 64),
            layers.GRU(64),
            layers.Dense(46, activation="softmax"),
        ]
    )


def minilm():
    from keras_tnattn_train.data.foreign_models import fetch
    from keras_tnattn_train.demos.minilm import CACHE, original

    return original(fetch("minilm", CACHE) / "all_minilm_l6_v2")


OURS = ((4, None, None), (8, 4, None), (30, 4, None), (8, 4, "litert"), (30, 4, "litert"))
OF_MINILM = ((4, 8, None), (6.7, 4, None), (8, 2, None))
MODELS = {"classifier": classifier, "convolutional": convolutional, "recurrent": recurrent}
PRETRAINED = {"minilm": minilm}


def smoothed(model):
    """Gives the weights singular values that fall, as those of trained models do."""
    for layer in model.layers:
        weights = layer.get_weights()
        if weights and weights[0].ndim == 2:
            u, s, vt = np.linalg.svd(weights[0], full_matrices=False)
            weights[0] = ((u * (s * np.exp(-np.arange(len(s)) / 8))) @ vt).astype("float32")
            layer.set_weights(weights)
    return model


def inputs_of(model, rows):
    rng = np.random.default_rng(0)
    shape = model.inputs[0].shape
    if model.inputs[0].dtype == "int32":
        return rng.integers(1, 5000, (rows, 64)).astype("int32")
    return rng.normal(size=(rows, *shape[1:])).astype("float32")


def variants(model, make, ours):
    """Yields the model as it is, as Keras quantizes it, and compressed."""
    yield "float", model
    data = inputs_of(model, 128)
    for bits in (8, 4):
        copy = make()
        copy.set_weights(model.get_weights())
        try:
            copy.quantize(f"int{bits}")
            yield f"Keras int{bits}", copy
        except (ValueError, NotImplementedError) as error:
            print(f"  Keras int{bits}: {error}")
    for target, bits, runtime in ours:
        name = f"ours {target}x" + (f" for {runtime}" if runtime else "")
        options = {"goal": target, "bits": bits or 32, "for_runtime": runtime, "verbose": 0}
        try:
            yield name, compress(model, data=data, **options).model
        except ValueError as error:
            print(f"  {name}: {str(error).splitlines()[0]}")


def runner(engine, path):
    """Returns a function of inputs, on one thread."""
    if engine == "TensorFlow":
        import tensorflow as tf

        loaded = tf.saved_model.load(str(path))
        return lambda x: loaded.serve(tf.constant(x)).numpy()
    if engine == "ONNX Runtime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(path), options)
        name = session.get_inputs()[0].name
        return lambda x: session.run(None, {name: x})[0]
    if engine == "OpenVINO":
        import openvino

        settings = {"INFERENCE_NUM_THREADS": 1, "EXECUTION_MODE_HINT": "ACCURACY"}
        compiled = openvino.Core().compile_model(path, "CPU", settings)
        return lambda x: compiled(x)[0]
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(str(path), num_threads=1).get_signature_runner()
    details = run.get_input_details()
    (name,) = details

    def call(x):
        single = details[name]["shape_signature"][0] == 1
        parts = [x[n : n + 1] for n in range(len(x))] if single else [x]
        return np.concatenate([next(iter(run(**{name: part}).values())) for part in parts])

    return call


def medians(calls, x, count, clock):
    """Returns the median microseconds of each function; they are called in turn."""
    times = {name: [] for name in calls}
    for n in range(count + 3):
        for name, call in calls.items():
            start = clock()
            call(x)
            if n >= 3:
                times[name].append(clock() - start)
    return {name: 1e6 * float(np.median(seconds)) for name, seconds in times.items()}


def measure(name, model, make, ours, count, clock):
    print(f"\n## {name}\n\n| variant | weights kB | engine | file kB | difference | us, 1 row |"
          " us, 32 rows |\n| --- | ---: | --- | ---: | ---: | ---: | ---: |")  # fmt: skip
    for variant, small in variants(model, make, ours):
        weights = sum(np.asarray(w.numpy()).nbytes for w in small.weights)
        with tempfile.TemporaryDirectory() as folder:
            calls, sizes = {}, {}
            for engine, suffix in SUFFIXES.items():
                try:
                    path = export(small, Path(folder) / f"model{suffix}")
                    calls[engine] = runner(engine, path)
                    sizes[engine] = sum(file_sizes(path).values())
                except RuntimeError as error:
                    print(f"| {variant} | | {engine} | {str(error).splitlines()[0][:100]} | | | |")
            example = inputs_of(small, 32)
            expected = small.predict(example, verbose=0)
            times = {n: medians(calls, inputs_of(small, n), count, clock) for n in ROWS}
            for engine, call in calls.items():
                error = np.abs(call(example) - expected).max() / np.abs(expected).max()
                one, many = (times[rows][engine] for rows in ROWS)
                print(
                    f"| {variant} | {weights / 1000:.0f} | {engine} | {sizes[engine] / 1000:.0f} | "
                    f"{error:.0e} | {one:,.0f} | {many:,.0f} |",
                    flush=True,
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*MODELS, *PRETRAINED]
    parser.add_argument("--models", nargs="+", choices=names, default=list(MODELS))
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--processor", action="store_true", help="measure processor time")
    options = parser.parse_args()
    how = options.calls, time.process_time if options.processor else time.perf_counter
    for name in options.models:
        keras.utils.set_random_seed(0)
        if name in PRETRAINED:
            make = PRETRAINED[name]
            measure(name, make(), make, OF_MINILM, *how)
        else:
            make = MODELS[name]
            measure(name, smoothed(make()), make, OURS, *how)


if __name__ == "__main__":
    main()
