"""The faulty products of TensorFlow that `tt_matmul_heads` and `GraphAttention` avoid.

Once this test fails, both may use a plain product again.
"""

import subprocess
import sys
from pathlib import Path

import keras
import pytest

CODE = """
import numpy as np, tensorflow as tf
rng = np.random.default_rng(0)
x = rng.normal(size=(3, 1, 7, 8)).astype("float32")
kernel = rng.normal(size=(1, 8, 4)).astype("float32")
error = max(np.abs(tf.matmul(x, kernel).numpy() - x @ kernel).max() for _ in range(3))
raise SystemExit(0 if error < 1e-3 else 1)
"""


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
