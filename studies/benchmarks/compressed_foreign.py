"""Compresses networks of other people and compares them with other quantization.

    python studies/benchmarks/compressed_foreign.py mobilenet
    python studies/benchmarks/compressed_foreign.py fer --fold --rows 8:2 8:2:heal
    python studies/benchmarks/compressed_foreign.py deepcut --quantizer PYTHON

`mobilenet` is the MobileNetV2 of nsfwjs, `fer` a network of facial expressions and `deepcut` one
that finds words in Thai text. Each row is a model: how many times smaller it is, how often its top
class is that of the original on inputs that were used for nothing else, and the time of a call with
one input, on one core. The peers are Keras' int8 and int4, ONNX Runtime's static int8 and, if
PYTHON can import it, that of ai-edge-quantizer, calibrated with 256 of our inputs. A row of ours is
`TARGET:BITS`, `TARGET:floats`, `TARGET:coded` (the size is then that of the coded file, `.tnz`), or
any of them with `:heal`, and its size is relative to the original, also with `--fold`.

Healing sees more inputs from where those for calibration are from, of images also mirrored and
mixed ones. There is one for each learning rate, one after the other, and `heal` undoes those that
raise the error on the inputs for calibration. TensorFlow 2.21 with oneDNN crashes when it trains
the network of fer: set `TF_ENABLE_ONEDNN_OPTS=0`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import foreign_networks
import keras
import numpy as np

from keras_small import compress, export
from keras_small.building.saving import file_bytes
from keras_small.runtimes.exporting import write_file
from keras_small.storage.sizes import byte_count

# For each network the function of its inputs and the rows of ours.
NETWORKS = {
    "mobilenet": (
        foreign_networks.crops,
        ("4:4", "8:2", "8:2:heal", "1.5:floats:heal", "2:floats:heal", "3:floats:heal"),
    ),
    "fer": (foreign_networks.faces, ("4:4", "8:2", "8:2:heal")),
    "deepcut": (foreign_networks.characters, ("4:4", "8:2", "8:2:heal")),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/keras_tnattn").expanduser())
    parser.add_argument("--rows", nargs="*")
    parser.add_argument("--calibration", type=int, default=1024)
    parser.add_argument("--held-out", type=int, default=800)
    parser.add_argument("--heal-inputs", type=int, default=1024)
    parser.add_argument("--heal-epochs", type=int, default=2)
    parser.add_argument("--heal-batch", type=int, default=32)
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[1e-3])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--fold",
        action="store_true",
        help="compress mobilenet or fer with normalizations folded into convolutions",
    )
    parser.add_argument("--quantizer", help="a Python with ai-edge-quantizer and ai-edge-litert")
    options = parser.parse_args()
    if options.fold and options.network == "deepcut":
        parser.error("Expected --fold with mobilenet or fer. Received: deepcut")
    inputs_of, rows = NETWORKS[options.network]
    keras.utils.set_random_seed(options.seed)
    read = getattr(foreign_networks, options.network)
    model = read(options.cache)
    source = read(options.cache, fold=True) if options.fold else model
    counts = (options.calibration, options.held_out)
    calibration, held = inputs_of(options.cache, counts, options.seed)
    table = Table(model, held)
    if options.peers:
        keras_rows(table, model)
        with tempfile.TemporaryDirectory() as folder:
            onnx_rows(table, model, calibration, Path(folder))
            if options.quantizer:
                litert_rows(table, model, calibration, Path(folder), options.quantizer)
    for row in rows if options.rows is None else options.rows:
        own_row(table, source, calibration, row, options)


def more_inputs(options):
    """Returns inputs for healing, from where those for calibration are from."""
    inputs_of, counts = NETWORKS[options.network][0], (options.heal_inputs, 1)
    if options.network == "deepcut":
        return inputs_of(options.cache, counts, options.seed)[0]
    # Other crops: those of the seed itself are for calibration.
    images, _ = inputs_of(options.cache, counts, options.seed + 1)
    return foreign_networks.varied(images, options.seed)


class Table:
    """Prints a row for each model."""

    def __init__(self, model, held):
        self.held, self.size = held, byte_count(model)
        self.classes = None
        self.show("original", keras_call(model), self.size)

    def show(self, name, call, size, note=""):
        classes = np.concatenate([top_class(call(part(self.held, i))) for i in batches(self.held)])
        if self.classes is None:
            self.classes = classes
        same = 100 * np.mean(classes == self.classes)
        half = 1.96 * np.sqrt(same * (100 - same) / len(classes))
        print(
            f"{name:24} {size:>10,} bytes, {self.size / size:5.2f} times smaller, agreement "
            f"{same:.1f} +- {half:.1f} %, {milliseconds(call, self.held):.2f} ms{note}",
            flush=True,
        )


def own_row(table, model, calibration, row, options):
    target, bits, *heal = row.split(":")
    if bits == "coded":
        how = {"coded": True}
    else:
        how = {"bits": 32 if bits == "floats" else int(bits), "formats": ()}
    start = time.process_time()
    try:
        factor = float(target) * byte_count(model) / table.size
        result = compress(model, factor, data=calibration, verbose=0, **how)
    except ValueError as error:
        print(f"compress {row}: {error}", flush=True)
        return
    if heal:
        before = top_class(result.model.predict(table.held, verbose=0))
        print(f"{row}: before healing {100 * np.mean(before == table.classes):.1f} %", flush=True)
        inputs = more_inputs(options)
        for rate in options.learning_rates:
            losses = result.heal(inputs, options.heal_epochs, rate, options.heal_batch)
            print(f"{row}: {rate}, losses {losses}, error {result.report.error:.3f}", flush=True)
    note = f", error {result.report.error:.3f}, made in {time.process_time() - start:.0f} s"
    name = f"compress {row}{' folded' if options.fold else ''}"
    size = file_bytes(result.model, ".tnz") if bits == "coded" else byte_count(result.model)
    table.show(name, keras_call(result.model), size, note)


def keras_rows(table, model):
    for mode in ("int8", "int4"):
        peer = keras.models.clone_model(model)
        peer.set_weights(model.get_weights())
        peer.quantize(mode)
        table.show(f"Keras {mode}", keras_call(peer), byte_count(peer))


def onnx_rows(table, model, calibration, folder):
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path = export(model, folder / "model.onnx")
    table.show("ONNX Runtime floats", onnx_call(path), path.stat().st_size)
    path, how = folder / "ours.onnx", {"formats": (), "for_runtime": "onnxruntime"}
    small = compress(model, bits=8, data=calibration, verbose=0, **how).model
    write_file(small, path, part(calibration, 0, 8), max_error=0.1, data=[calibration])
    table.show("ONNX, our integers", onnx_call(path), path.stat().st_size)
    path = folder / "model.onnx"
    quant_pre_process(str(path), str(folder / "prepared.onnx"), skip_symbolic_shape=True)
    names = [value.name for value in onnx.load(path).graph.input]

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self.rows = iter(batches(calibration, 16)[:16])

        def get_next(self):
            start = next(self.rows, None)
            if start is None:
                return None
            return dict(zip(names, flat(part(calibration, start, 16)), strict=True))

    small = folder / "int8.onnx"
    quantization.quantize_static(
        str(folder / "prepared.onnx"), str(small), Reader(), per_channel=True
    )
    table.show("ONNX Runtime int8", onnx_call(small), small.stat().st_size)


def onnx_call(path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, flat(inputs), strict=True)))[0]


# Run by another Python, because the package needs versions of its own.
QUANTIZE = """
import sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter
from ai_edge_quantizer import quantizer, recipe
model, data, small = sys.argv[1:]
arrays = list(np.load(data).values())
inputs = Interpreter(model).get_signature_runner("serving_default").get_input_details()
rows = [dict(zip(inputs, (a[i:i + 1] for a in arrays))) for i in range(len(arrays[0]))]
made = quantizer.Quantizer(model, recipe.static_wi8_ai8())
made.quantize(made.calibrate({"serving_default": rows}), small)
"""


def litert_rows(table, model, calibration, folder, python):
    path = folder / "model.tflite"  # by Keras: the quantizer needs the names of its tensors
    model.export(path, format="litert", verbose=False)
    table.show("LiteRT floats", litert_call(path), path.stat().st_size)
    np.savez(folder / "inputs.npz", *flat(part(calibration, 0, 256)))
    small = folder / "int8.tflite"
    command = [python, "-c", QUANTIZE, str(path), str(folder / "inputs.npz"), str(small)]
    subprocess.run(command, check=True, capture_output=True)
    table.show("ai-edge-quantizer int8", litert_call(small), small.stat().st_size)


def litert_call(path):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=1)
    run = interpreter.get_signature_runner()
    details = run.get_input_details()
    output = next(iter(run.get_output_details().values()))

    def call(inputs):
        classes = []
        for row in zip(*flat(inputs), strict=True):
            pairs = zip(details.items(), row, strict=True)
            named = {name: in_integers(array[None], detail) for (name, detail), array in pairs}
            classes.append(in_floats(next(iter(run(**named).values())), output))
        return np.concatenate(classes)

    return call


def in_integers(array, detail):
    """Returns floats as the integers that an input asks for, and other arrays as they are."""
    scale, zero = detail["quantization"]
    if not scale:
        return array
    limits = np.iinfo(detail["dtype"])
    numbers = np.clip(np.rint(array / scale) + zero, limits.min, limits.max)
    return numbers.astype(detail["dtype"])


def in_floats(array, detail):
    scale, zero = detail["quantization"]
    return (array.astype("float32") - zero) * scale if scale else array


def keras_call(model):
    return model.predict_on_batch


def flat(inputs):
    return inputs if isinstance(inputs, list) else [inputs]


def part(inputs, start, size=32):
    return keras.tree.map_structure(lambda array: array[start : start + size], inputs)


def batches(inputs, size=32):
    return range(0, len(flat(inputs)[0]), size)


def top_class(outputs):
    return outputs.argmax(axis=-1) if outputs.shape[-1] > 1 else outputs[:, 0] > 0.5


def milliseconds(call, inputs):
    """Returns the median time of a call with one input, of the processor."""
    times = []
    for turn in range(40):
        one = part(inputs, turn, 1)
        start = time.process_time()
        call(one)
        times.append(time.process_time() - start)
    return 1000 * np.median(times[5:])


if __name__ == "__main__":
    main()
