"""Is there a faster way to compute `TTDense` on a CPU?

    python studies/benchmarks/tt_dense_engines.py
    KERAS_BACKEND=jax python studies/benchmarks/tt_dense_engines.py

A layer of 1,024 inputs and units, rank 2 and factors of 2, of 12,800 rows: CPU time over all
threads, in ms, and that of `Dense` in the same engine and precision over it; medians of interleaved
runs. On TensorFlow also with XLA, in bfloat16, and by OpenVINO, as two products of small matrices;
on JAX also in a loop over pieces of 64 rows.
A copy of the input is a lower bound for any evaluation.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from side_by_side import describe_machine

# isort: split
import os
import statistics
import time

import keras
import numpy as np
from keras import ops

import keras_tnattn

ROWS, SIZE, FACTOR, REPEATS = 12800, 1024, 32, 9


def main():
    describe_machine()
    x = np.random.default_rng(0).normal(size=(ROWS, SIZE)).astype("float32")
    show("keras", keras_layers(x, "float32"))
    if keras.backend.backend() == "tensorflow":
        show("keras, XLA", keras_layers(x, "float32", jit_compile=True))
        show("keras, bfloat16", keras_layers(x, "bfloat16"))
        show("OpenVINO", openvino_models(x))


def show(engine, contenders):
    for run in contenders.values():
        run()
        run()
    seconds = {name: [] for name in contenders}
    for _ in range(REPEATS):
        for name, run in contenders.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    medians = {name: 1000 * statistics.median(times) for name, times in seconds.items()}
    print(
        f"{engine}: "
        + ", ".join(
            f"{name} {ms:.1f} ({medians['Dense'] / ms:.2f})" for name, ms in medians.items()
        ),
        flush=True,
    )


def keras_layers(x, dtype, jit_compile=False):
    layers = {
        "Dense": keras.layers.Dense(SIZE, use_bias=False, dtype=dtype),
        "TTDense": keras_tnattn.TTDense(SIZE, use_bias=False, dtype=dtype),
        "copy": lambda x: x + 1,
    }
    inputs = ops.cast(ops.convert_to_tensor(x), dtype)
    runs = {name: compiled(layer, inputs, jit_compile) for name, layer in layers.items()}
    if keras.backend.backend() == "jax":
        tensor_train = layers["TTDense"]
        pieces = ops.reshape(inputs, (-1, 64, SIZE))
        runs["TTDense in pieces"] = compiled(lambda x: ops.map(tensor_train, x), pieces, False)
    return runs


def compiled(layer, inputs, jit_compile):
    if isinstance(layer, keras.Layer):
        layer.build(inputs.shape)
    if keras.backend.backend() == "jax":
        import jax

        variables = [v.value for v in getattr(layer, "variables", ())]

        def stateless(variables, x):
            if not isinstance(layer, keras.Layer):
                return layer(x)
            return layer.stateless_call(variables, [], x)[0]

        function = jax.jit(stateless)
        return lambda: function(variables, inputs).block_until_ready()
    import tensorflow as tf

    function = tf.function(lambda x: layer(x), jit_compile=jit_compile, autograph=False)
    return lambda: function(inputs)


def openvino_models(x):
    """Returns requests: one product, and two of 32 x 32 matrices for each row."""
    import openvino
    from openvino import opset13 as op

    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(SIZE, SIZE)).astype("float32")
    left, right = rng.normal(size=(2, 2, FACTOR, FACTOR)).astype("float32")  # (r, i, j)

    def dense(x):
        return op.matmul(x, op.constant(kernel), False, False)

    def tensor_train(x):
        each = op.reshape(x, np.array([ROWS, 1, FACTOR, FACTOR]), False)
        each = op.matmul(each, op.constant(right[None]), False, False)  # (N, r, i, j)
        each = op.reshape(each, np.array([ROWS, 2 * FACTOR, FACTOR]), False)
        stacked = np.ascontiguousarray(left.reshape(2 * FACTOR, FACTOR).T)[None]
        each = op.matmul(op.constant(stacked), each, False, False)
        return op.reshape(each, np.array([ROWS, SIZE]), False)

    def request(build):
        parameter = op.parameter([ROWS, SIZE], np.float32)
        model = openvino.Model([build(parameter)], [parameter])
        precise = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": os.cpu_count()}
        run = openvino.Core().compile_model(model, "CPU", precise).create_infer_request()
        run.set_input_tensor(openvino.Tensor(x, shared_memory=True))
        return run

    runs = {"Dense": request(dense), "TTDense": request(tensor_train)}
    runs["TTDense"].infer()
    outputs = runs["TTDense"].get_output_tensor().data[:8]
    tensors = x[:8].reshape(8, FACTOR, FACTOR)
    expected = np.einsum("nab,rac,rbd->ncd", tensors, left, right).reshape(8, SIZE)
    np.testing.assert_allclose(outputs, expected, rtol=1e-3, atol=1e-2)
    return {name: run.infer for name, run in runs.items()}


if __name__ == "__main__":
    main()
