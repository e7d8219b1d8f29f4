"""Times contenders side by side: interleaved runs in one process, and their medians.

Import this before Keras and TensorFlow: it starts them without their messages.
"""

import argparse
import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(1, str(ROOT / "training"))

from keras_tnattn_train.processes.backend import start_backend  # noqa: E402

start_backend()

import keras  # noqa: E402

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def quick(description: str) -> bool:
    """Reads a command line that has one option, `--quick`; returns whether it was given."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: a try")
    return parser.parse_args().quick


def describe_machine():
    """Prints the machine and the versions, and sets the seed."""
    keras.utils.set_random_seed(0)
    backend = keras.backend.backend()
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(": ")[1] for line in lines if "model name" in line), cpu)
    print(
        f"{os.cpu_count()} cores, {cpu}, GPUs: {', '.join(_gpus()) or 'none'}; "
        f"Python {platform.python_version()}, {backend} {importlib.metadata.version(backend)}, "
        f"Keras {keras.__version__}; seed 0"
    )


def _gpus() -> list[str]:
    if keras.backend.backend() == "tensorflow":
        return [device.name for device in tf.config.list_physical_devices("GPU")]
    import jax

    return [device.device_kind for device in jax.devices() if device.platform == "gpu"]


def medians(
    contenders: dict[str, Callable], repeats: int = 9, warm_ups: int = 2
) -> dict[str, float]:
    """Returns the median seconds of each contender; every round runs each of them once."""
    for run in contenders.values():
        for _ in range(warm_ups):
            run()
    seconds = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, run in contenders.items():
            _synchronize()
            start = time.perf_counter()
            run()
            _synchronize()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def _synchronize():
    """Waits for GPU kernels, which may still run after a call of TensorFlow has returned."""
    if keras.backend.backend() == "tensorflow" and _gpus():
        tf.test.experimental.sync_devices()


def forward(function: Callable, *inputs: "tf.Tensor") -> Callable:
    """Compiles `function(*inputs)` without XLA."""
    compiled = tf.function(function, jit_compile=False)
    return lambda: compiled(*inputs)


def forward_and_backward(function: Callable, *inputs: "tf.Tensor", layer=None) -> Callable:
    """Compiles a function and its gradients by inputs and weights of `layer`, without XLA."""
    # Get the shape from a trace, because a run would leave allocated memory behind.
    outputs = tf.function(function).get_concrete_function(*inputs).structured_outputs
    upstream = tf.random.normal(outputs.shape)

    @tf.function(jit_compile=False)
    def run(*inputs):
        # A Keras variable given to a raw GradientTape yields no gradient; its value does.
        weights = [] if layer is None else [v.value for v in layer.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(*inputs)
        return outputs, tape.gradient(outputs, [*inputs, *weights], output_gradients=upstream)

    return lambda: run(*inputs)


def print_row(label: str, seconds: dict[str, float], peer: str):
    """Prints milliseconds of each contender and how many times faster than the peer it is."""
    cells = [f"{name} {1e3 * t:9.2f} ms ({seconds[peer] / t:5.2f}x)" for name, t in seconds.items()]
    print(f"{label:28s} " + "   ".join(cells), flush=True)
