"""Measures files in their runtimes: bytes, memory and time, and the error of their outputs."""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_small.asked.inputs import example_of
from keras_small.runtimes.computation import Expected
from keras_tnattn.typing import Tensors
from keras_tnattn_runtime.layout import file_sizes
from keras_tnattn_runtime.running import RUNNERS


@dataclasses.dataclass(frozen=True)
class FileCosts:
    """The costs of a file in its runtime.

    Attributes:
        path: The file.
        bytes: Its bytes, of OpenVINO those of both files.
        resident_bytes: Bytes of memory that loading it and the first call add to a process.
        one_row_us, many_rows_us: Microseconds of a call of one row, and of 32, on one thread.
        error: Relative error of its outputs, compared with those of the model.
        agreement: The share of the outputs whose largest number is at the same place as the
            model's; `None` if they have one number.
        changes: The changed forms of matrices of integers in the file, and why, by the paths of
            their layers.

    Example:
        >>> costs = FileCosts("small.onnx", 1200, 30_000, 12.0, 40.0, error=0.0, agreement=1.0)
        >>> costs.bytes, costs.many_rows_us / 32
        (1200, 1.25)
    """

    path: str
    bytes: int
    resident_bytes: int
    one_row_us: float
    many_rows_us: float
    error: float
    agreement: float | None
    changes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        text = (
            f"{self.bytes:>12,} bytes  {Path(self.path).name}: {self.resident_bytes:,} bytes of "
            f"memory; {self.one_row_us:,.0f} us for 1 row, {self.many_rows_us:,.0f} us for 32; "
            f"error {self.error:.4f}"
        )
        text += "" if self.agreement is None else f", agreement {self.agreement:.1%}"
        reasons = dict.fromkeys(self.changes.values())
        for reason in reasons:
            names = (name for name, why in self.changes.items() if why == reason)
            text += f"\n  {reason}: {', '.join(names)}"
        return text


def file_costs(path: str | os.PathLike, model: keras.Model, example: Tensors = None) -> FileCosts:
    """Measures a file in its runtime, in a process of its own, and compares it with its model.

    Args:
        path: A file `.onnx`, `.tflite` or `.xml` of `keras_small.export`.
        model: The model that it was written from.
        example: Inputs of the model. Default: two rows of random numbers; ids are 0 and 1.

    Returns:
        The costs. Times vary with what else the machine does.

    Raises:
        ValueError: If the file is of another kind.
        RuntimeError: If the runtime does not run the file.

    Example:
        ```python notest
        print(file_costs("model.onnx", model, inputs))
        ```
    """
    path = str(path)
    if not Path(path).suffix or Path(path).suffix not in RUNNERS:
        raise ValueError(f"Expected a file .onnx, .tflite or .xml. Received: path={path}")
    example = example_of(model, example)
    measured = _measure(path, example)
    expected = Expected(lambda inputs: model(inputs, training=False), [example])
    outputs = expected.outputs_of_file(path)
    return FileCosts(
        path,
        sum(file_sizes(path).values()),
        error=expected.error(outputs),
        agreement=expected.agreement(outputs),
        **measured,
    )


def _measure(path: str, example: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder, "inputs.npz")
        np.savez(inputs, **{f"{n:03}": x for n, x in enumerate(keras.tree.flatten(example))})
        command = [sys.executable, "-m", "keras_tnattn_runtime.measuring", path, str(inputs)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["unknown"])[-1]
        raise RuntimeError(f"Could not run {path} in a process of its own: {reason}")
    return json.loads(done.stdout.splitlines()[-1])


def file_outputs(path: str | os.PathLike) -> Callable[[Any], list[np.ndarray]]:
    """Returns a function from inputs of a model to the outputs of its file, run on one thread.

    The file runs in this process.

    Args:
        path: A file `.onnx`, `.tflite` or `.xml` of `keras_small.export`.

    Returns:
        A function that takes inputs with the structure of those of the model, whatever the file
        calls them, and returns a list of arrays.

    Example:
        ```python notest
        probabilities, = file_outputs("model.onnx")(inputs)
        ```
    """
    run = RUNNERS[Path(path).suffix](str(path))
    return lambda inputs: run(keras.tree.flatten(inputs))
