"""What is shown while TensorFlow starts."""

import pytest
from import_path import run_python

CODE = """
import os
from keras_tnattn_train.processes import backend

with backend.without_noise():
    os.write(2, b"I0000 00:00:1.5  12 port.cc:153] oneDNN custom operations are on.\\n")
    os.write(2, b"2026-01-01 10:00:00.5: E cuda_platform.cc:51] failed call to cuInit: none\\n")
    os.write(2, b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\\n")
    os.write(2, b"E0000 00:00:1.5 disk.cc:1] an error\\n")
    os.write(2, b"a warning of another library\\n")
    os.write(2, b"it says: WARNING: All log messages before absl\\n")
backend.start_backend()
import keras
keras.ops.ones(2) + 1
"""


def test_start_up_messages_are_hidden_and_errors_shown():
    done = run_python("-c", CODE)
    assert done.stderr.splitlines() == [
        "E0000 00:00:1.5 disk.cc:1] an error",
        "a warning of another library",
        "it says: WARNING: All log messages before absl",
    ]
    assert done.stdout == ""


@pytest.mark.parametrize(("backend", "used"), [("jax", "numpy"), ("tensorflow", "tensorflow")])
def test_few_texts_are_not_compiled_and_packages_that_no_command_uses_spared(backend, used):
    pytest.importorskip(backend)
    pytest.importorskip("jax")
    code = "import sys; from keras_tnattn_train.predict import main; status = main(sys.argv[1:])\n"
    code += "print(status, sys.modules['keras'].backend.backend(), 'sklearn' in sys.modules)\n"
    code += "import sklearn"  # is there again
    text = "Draws a line with markers on the axes of the figure."
    done = run_python("-c", code, "docstrings", text, "--format", "lines", backend=backend)
    assert done.stdout.split()[0] == "matplotlib"
    assert done.stdout.splitlines()[1] == f"0 {used} False"
    assert done.stderr == ""
