"""Times the sentence encoder from the start of Python to the first vector, by steps.

    python benchmarks/encoder_start.py [--backends jax tensorflow numpy] [--folder FOLDER]

Each run is a new process of this Python; the fastest counts. Keras imports scikit-learn and
matplotlib where they are installed, so that an environment without them starts sooner; so does one
whose bytecode is kept (without PYTHONDONTWRITEBYTECODE). `FOLDER` is one that
`keras-tnattn export minilm --onnx FOLDER` wrote, and adds ONNX Runtime without Keras.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Each prints the seconds of its steps.
WITH_KERAS = """
import time
start = time.perf_counter()
import keras
imported = time.perf_counter()
import keras_small
encoder = keras_small.load("minilm")
loaded = time.perf_counter()
encoder.encode(["How many elements are there?"])
print(imported - start, loaded - imported, time.perf_counter() - loaded)
"""
WITH_ONNX = """
import sys, time
sys.path.insert(0, sys.argv[1])
start = time.perf_counter()
import reader
imported = time.perf_counter()
encoder = reader.load(sys.argv[1])
loaded = time.perf_counter()
encoder.encode(["How many elements are there?"])
print(imported - start, loaded - imported, time.perf_counter() - loaded)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs="*", default=["jax", "tensorflow", "numpy"])
    parser.add_argument("--folder", help="an exported encoder")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    programs = {backend: [WITH_KERAS] for backend in options.backends}
    if options.folder:
        programs["ONNX Runtime"] = [WITH_ONNX, str(Path(options.folder).resolve())]
    print("seconds        in all   imports  loading  first vector")
    for name, program in programs.items():
        best = min(timed(name, program) for _ in range(options.runs))
        print(f"{name:12}" + "".join(f"{seconds:9.2f}" for seconds in best), flush=True)


def timed(backend, program):
    """Returns the seconds of a new process to its end, and those of its steps."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", *program], env=environment, capture_output=True, text=True
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(done.stderr)
    return seconds, *map(float, done.stdout.split())


if __name__ == "__main__":
    main()
