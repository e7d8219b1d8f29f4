"""Time and memory of exports at the sizes of real models: `python benchmarks/export_sizes.py`.

ResNet50 (224 pixels) and encoders of 23 and 110 M weights, with random weights of seed 0, become
files of 8 bits for ONNX Runtime and LiteRT in two ways: made small by `compress(bits=8)` and
written by `keras_small`, and by the runtime's own quantizer. ONNX Runtime's makes those of encoders
with int8, as it does by default, and also with uint8, whose products cannot overflow on processors
without VNNI; both begin with the float file of `keras_small`. Each export is a process of its own.
Its seconds are those of the processor, for itself and for the process that tries its files, without
imports and the making or loading of the model. Memory is without the pages of files, divided by the
bytes of the float weights: what the process held before the export, its peak, and the peak of both
processes together. Then the files are measured in turn, each alone in a process of its own on one
thread; the least of the rounds counts. Memory at run is what loading and the first call add.
Errors are relative to the float model.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from compress_sizes import application, encoder, static_int8
from own_memory import sampled_peak, seconds_of_children

MODELS = {
    "resnet": application("ResNet50", 224, 32),
    "encoder_23m": encoder(6, 384),
    "encoder_110m": encoder(12, 768),
}
QUICK = {
    "encoder": encoder(1, 64, rows=8, words=1000),
}
SUFFIXES = {"onnxruntime": ".onnx", "litert": ".tflite"}
TEST_ROWS = 4


def compressed(name, runtime, folder):
    """Saves the model in 8 bits, for `ours`."""
    import keras_small

    model, _ = model_and_data(name)
    options = {"formats": (), "for_runtime": runtime, "verbose": 0}
    keras_small.compress(model, bits=8, **options).model.save(folder / "small.keras")


def model_and_data(name):
    import keras

    keras.utils.set_random_seed(0)
    return {**MODELS, **QUICK}[name]()


def ours(name, runtime, folder):
    """Returns what writes the file of the small model."""
    import keras

    from keras_small.runtimes.exporting import write_file

    _, data = model_and_data(name)
    keras.backend.clear_session()
    gc.collect()  # the float model
    small = keras.models.load_model(folder / "small.keras")
    path = folder / f"ours{SUFFIXES[runtime]}"
    return lambda: write_file(small, path, data[:2], data=[data])


def its_own(name, runtime, folder):
    """Returns what writes the file of the runtime's own int8."""
    model, data = model_and_data(name)
    path = folder / f"its_own{SUFFIXES[runtime]}"
    if runtime == "litert":
        return lambda: path.write_bytes(dynamic_by_litert(model))
    if data.dtype == "float32":
        return lambda: static_int8(model, path, data)
    return lambda: dynamic_by_onnxruntime(model, path, data, "QInt8")


def its_own_uint8(name, runtime, folder):
    """Returns what writes the file of the runtime's own uint8."""
    model, data = model_and_data(name)
    path = folder / f"its_own_uint8{SUFFIXES[runtime]}"
    return lambda: dynamic_by_onnxruntime(model, path, data, "QUInt8")


def dynamic_by_litert(model):
    """Returns a file of LiteRT's converter, with weights of int8."""
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def dynamic_by_onnxruntime(model, path, data, kind):
    """Writes a file of ONNX Runtime's dynamic quantizer; tables become integers, too."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    import keras_small

    floats = path.with_name(f"floats_{kind}.onnx")
    keras_small.export(model, floats, data[:2])  # Keras' own exporter has no file for gelu
    quantize_dynamic(floats, path, weight_type=QuantType[kind])


WAYS = {way.__name__: way for way in (ours, its_own, its_own_uint8)}


def ways_of(name, runtime):
    has_uint8 = runtime == "onnxruntime" and name.startswith("encoder")
    return [way for way in WAYS if has_uint8 or way != "its_own_uint8"]


def export(name, runtime, folder, way):
    """Prints what an export takes."""
    write = WAYS[way](name, runtime, folder)
    seconds = time.process_time()
    with sampled_peak() as own, sampled_peak(children=True) as both:
        write()
        seconds = time.process_time() - seconds + seconds_of_children()
    print(
        json.dumps(
            {"seconds": seconds, "start": own["before"], "own": own["peak"], "both": both["peak"]}
        )
    )


def measure(name, runtime, folder, rounds):
    """Prints what the files take in their runtime."""
    from keras_small.runtimes import file_costs

    model, data = model_and_data(name)
    weights = 4 * model.count_params()
    costs = {way: [] for way in ways_of(name, runtime)}
    for _ in range(int(rounds)):
        for way, found in costs.items():
            found.append(file_costs(folder / f"{way}{SUFFIXES[runtime]}", model, data[:TEST_ROWS]))
    names = ("bytes", "resident_bytes", "one_row_us", "many_rows_us", "error")
    least = {
        way: {key: min(float(getattr(x, key)) for x in found) for key in names}
        for way, found in costs.items()
    }
    print(json.dumps({"weights": weights, **least}))


PARTS = {part.__name__: part for part in (compressed, export, measure)}


def in_process(part, *words):
    """Runs a part in a process of its own; returns what it printed last."""
    command = [sys.executable, __file__, "--part", part, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout else None


def compare(name, runtime, rounds):
    ways = ways_of(name, runtime)
    with tempfile.TemporaryDirectory() as folder:
        in_process("compressed", name, runtime, folder)
        exports = {way: in_process("export", name, runtime, folder, way) for way in ways}
        measured = in_process("measure", name, runtime, folder, rounds)
    weights = measured["weights"]
    for way, found in exports.items():
        costs = measured[way]
        shares = {key: costs[key] / (measured["its_own"][key] or 1) for key in costs}
        peaks = [f"{found[key] / weights:.1f}" for key in ("start", "own", "both")]
        print(
            f"| {name} | {runtime} | {way.replace('_', ' ')} | {found['seconds']:.0f} | "
            f"{'; '.join(peaks)} | {costs['bytes'] / 1e6:.1f} | "
            f"{costs['resident_bytes'] / 1e6:.0f} ({shares['resident_bytes']:.2f}) | "
            f"{costs['one_row_us'] / 1000:.1f} ({shares['one_row_us']:.2f}) | "
            f"{costs['many_rows_us'] / 1000:.0f} ({shares['many_rows_us']:.2f}) | "
            f"{costs['error']:.4f} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--runtimes", nargs="+", choices=SUFFIXES, default=list(SUFFIXES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of a small encoder")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        part, name, runtime, folder, *words = options.part
        PARTS[part](name, runtime, Path(folder), *words)
        return
    print(
        "| model | runtime | file | export, s | start; own peak; of both | MB | MB of memory "
        "| ms, 1 row | ms, 32 rows | error |"
    )
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in QUICK if options.quick else options.models:
        for runtime in options.runtimes:
            compare(name, runtime, 1 if options.quick else options.rounds)


if __name__ == "__main__":
    main()
