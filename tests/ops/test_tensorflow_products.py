"""The faulty product of TensorFlow that `tt_matmul_heads` avoids.

Once `test_tensorflow_still_errs...` fails, it may use a plain product again.
"""

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from conformance import to_numpy, tokens

from keras_tnattn.ops.tensor_train import tt_to_matrix
from keras_tnattn.ops.tensor_train.contraction import tt_matmul_heads

CODE = """
import numpy as np, tensorflow as tf
rng = np.random.default_rng(0)
x = rng.normal(size=(3, 1, 7, 8)).astype("float32")
kernel = rng.normal(size=(1, 8, 4)).astype("float32")
error = max(np.abs(tf.matmul(x, kernel).numpy() - x @ kernel).max() for _ in range(3))
raise SystemExit(0 if error < 1e-3 else 1)
"""


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a fault of TensorFlow")
def test_tensorflow_still_errs_in_the_product_of_a_single_head():
    tf = pytest.importorskip("tensorflow")
    if tf.__version__.split(".")[:2] != ["2", "21"] or tf.config.list_physical_devices("GPU"):
        pytest.skip("seen with TensorFlow 2.21 on a CPU")
    processor = Path("/proc/cpuinfo")
    if not processor.exists() or "avx512f" not in processor.read_text():
        pytest.skip("seen on processors with AVX-512, and not on one with AVX2 only")
    # In a process of its own, because the product reads beyond its operands.
    assert subprocess.run([sys.executable, "-c", CODE], capture_output=True).returncode != 0


def test_a_single_head_is_right():
    # With the plain product, where TensorFlow errs, this returns garbage or ends the process.
    cores = [tokens(1, 1, 2, 2, 2), tokens(1, 2, 2, 1, 2), tokens(1, 2, 2, 2, 1)]
    x = tokens(3, 7, 8, seed=1)
    expected = x @ to_numpy(tt_to_matrix(cores))[0]
    for _ in range(3):
        (got,) = tt_matmul_heads(keras.ops.convert_to_tensor(x), [cores])
        got = to_numpy(got)[:, 0]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
