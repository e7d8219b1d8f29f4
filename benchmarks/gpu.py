"""All tables for a GPU from one command: JAX with XLA, in float32, TensorFloat-32 and bfloat16.

    make bench-gpu
    KERAS_BACKEND=jax python benchmarks/gpu.py --output gpu.csv --only dense filter
    KERAS_BACKEND=jax python benchmarks/gpu.py --quick     # small sizes: a try, also on a CPU

Contenders are interleaved in one process, each compiled once; the times are medians of nine runs
(of models: five training steps, three searches).
Beside each time stand the rates of arithmetic and of memory traffic that it implies, as shares of
what a large product of matrices and a large copy reach in the same process and precision. XLA
counts the operations before it chooses kernels, and the bytes in the compiled program. A share is
empty where XLA cannot count: the bytes of programs that call cuBLAS or cuDNN.

Tables: `dense`, layers beside `keras.layers.Dense`; `filter`, the graph filter of tensorized
spectral attention beside `jax.nn.dot_product_attention` (all tokens, and a window as wide as the
filter's band) and Keras' `MultiHeadAttention`; `contexts`, those of tensor-network attention beside
`jax.lax.associative_scan`; `models`, a training step and greedy search of the translators.
"""

import argparse
import contextlib
import csv
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Keras imports TensorFlow where there is one
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import keras
import numpy as np
from side_by_side import describe_machine, medians

from keras_small import LowRankDense
from keras_tnattn import TTDense
from keras_tnattn.models import PRESETS, translator
from keras_tnattn.ops import scan
from keras_tnattn.ops.spectral_filter import spectral_filter
from keras_tnattn.ops.time_graph import bandwidth
from keras_tnattn.search import BeamSearch

# Name to the dtype of the numbers and the precision of products. Weights stay in float32.
PRECISIONS = {
    "float32": ("float32", "highest"),
    "tf32": ("float32", "tensorfloat32"),
    "bfloat16": ("bfloat16", "default"),
}
COLUMNS = ("table", "case", "precision", "pass", "contender", "ms", "times_faster_than_first")
COLUMNS += ("share_of_matrix_rate", "share_of_bandwidth")
DAMPING, HEAD_DIM = 0.9, 64
SMALL = {"model_dim": 16, "feedforward_dim": 32, "num_heads": 2}
# Scores of all pairs of tokens beyond this length take over 4 GiB in float32.
ALL_PAIRS = 32_768


class Compiled:
    """A compiled program with its inputs, its operations and its bytes."""

    def __init__(self, function, *inputs):
        self.program = jax.jit(function).lower(*inputs).compile()
        self.inputs = inputs
        self.flops = _operations(function, inputs)
        costs = self.program.cost_analysis() or {}
        calls_library = 'custom_call_target="__cu' in self.program.as_text()
        self.bytes = None if calls_library else costs.get("bytes accessed")

    def __call__(self):
        jax.block_until_ready(self.program(*self.inputs))


def _operations(function, inputs):
    """FLOPs before kernels are chosen, which JAX counts on a CPU only; `None` for cuDNN's."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs)
    with jax.default_device(jax.devices("cpu")[0]):
        try:
            return jax.jit(function).lower(*shapes).cost_analysis()["flops"]
        except RuntimeError:
            return None


def with_gradients(function):
    """The function with its gradients by all inputs, for outputs weighted by ones."""

    def run(*inputs):
        outputs, pull_back = jax.vjp(function, *inputs)
        return outputs, pull_back(jnp.ones_like(outputs))

    return run


def of_layer(layer, *inputs):
    """A function of the inputs and the weights of a built layer, and all of these."""

    def call(weights, *inputs):
        # `stateless_call` would not cast the weights of the layer to its compute dtype.
        with keras.StatelessScope(list(zip(layer.trainable_variables, weights, strict=True))):
            return layer(*inputs)

    return call, ([v.value for v in layer.trainable_variables], *inputs)


def policy(dtype):
    """The Keras dtype policy that computes in a dtype."""
    return f"mixed_{dtype}" if dtype == "bfloat16" else dtype


def dense(quick, dtype):
    """`Dense`, and the layers that replace it."""
    sizes, rows = ((256,), (64,)) if quick else ((256, 512, 1024, 2048, 4096), (32, 200, 12_800))
    for size in sizes:
        for count in rows:
            x = jax.random.normal(jax.random.key(0), (count, size), dtype)
            layers = {
                "Dense": keras.layers.Dense(size, dtype=policy(dtype)),
                "TTDense": TTDense(size, dtype=policy(dtype)),
                "LowRankDense": LowRankDense(size, size // 8, dtype=policy(dtype)),
            }
            for layer in layers.values():
                layer.build((count, size))
            yield f"{size} x {size}, {count} rows", {n: of_layer(y, x) for n, y in layers.items()}


def filters(quick, dtype):
    """The graph filter and other attentions of one head."""
    window = bandwidth(DAMPING)
    for length in (512,) if quick else (1024, 4096, 16_384, 65_536, 131_072):
        keys, values = jax.random.normal(jax.random.key(0), (2, 1, 1, length, HEAD_DIM), dtype)
        # `(B, L, H, J)`, as JAX has them.
        query = jnp.swapaxes(keys, 1, 2)

        def filtered(keys, values):
            return spectral_filter(HEAD_DIM**-0.25 * keys, values, DAMPING)

        def windowed(q, k, v):
            return jax.nn.dot_product_attention(q, k, v, local_window_size=window)

        entries = {}
        if length <= ALL_PAIRS:
            layer = keras.layers.MultiHeadAttention(1, HEAD_DIM, dtype=policy(dtype))
            layer.build((1, length, HEAD_DIM), (1, length, HEAD_DIM))
            call, inputs = of_layer(layer, keys[:, 0])
            entries["MultiHeadAttention"] = (_to_itself(call), inputs)
            entries["dot_product_attention"] = (jax.nn.dot_product_attention, (query,) * 3)
            entries["the same in a window"] = (windowed, (query,) * 3)
        yield f"L {length}", {"filter": (filtered, (keys, values)), **entries}


def fused(quick, dtype):
    """The graph filter beside cuDNN's fused attention, which takes half precision on a GPU only."""
    window = bandwidth(DAMPING)
    for length in (512,) if quick else (1024, 4096, 16_384, 65_536, 131_072):
        keys, values = jax.random.normal(jax.random.key(0), (2, 1, 1, length, HEAD_DIM), dtype)
        query = jnp.swapaxes(keys, 1, 2)

        def filtered(keys, values):
            return spectral_filter(HEAD_DIM**-0.25 * keys, values, DAMPING)

        def attended(q, k, v, **options):
            return jax.nn.dot_product_attention(q, k, v, implementation="cudnn", **options)

        # cuDNN's windows are causal: as many pairs as here on both sides.
        def windowed(q, k, v):
            return attended(q, k, v, is_causal=True, local_window_size=(2 * window, 0))

        yield (
            f"L {length}",
            {
                "filter": (filtered, (keys, values)),
                "cuDNN": (attended, (query,) * 3),
                "cuDNN in a window": (windowed, (query,) * 3),
            },
        )


def _to_itself(call):
    return lambda weights, x: call(weights, x, x)


def contexts(quick, dtype):
    """Contexts of all sites of a closed chain."""
    cases = ((64, 4, 2),) if quick else ((1024, 8, 32), (4096, 16, 1), (16_384, 8, 1))
    for length, bond, batch in cases:
        shape = (length, batch, bond, bond)
        noise = jax.random.normal(jax.random.key(0), shape, dtype)
        matrices = jnp.eye(bond, dtype=dtype) + 0.1 * noise
        of_texts = jnp.swapaxes(matrices, 0, 1)
        folded = scan.fold_sites(matrices.reshape(length, batch, -1).swapaxes(0, 1))
        folded = folded.reshape(*folded.shape[:-1], bond, bond)
        yield (
            f"N {length}, D {bond}, B {batch}",
            {
                "associative_scan": (_scanned_contexts, (of_texts,)),
                "ours": (scan.closed_contexts, (folded,)),
            },
        )


def _scanned_contexts(matrices):
    """The product of the later matrices times that of the earlier ones, normalized.

    Along axis 1 of `(B, N, D, D)`: for gradients along axis 0, with `B = 1`, XLA of JAX 0.11 aborts
    on a GPU ("triton_tiling_propagation").
    """

    def product(a, b):
        c = a @ b
        return c / jnp.linalg.norm(c, axis=(-2, -1), keepdims=True)

    first = matrices[:, :1]
    unit = jnp.broadcast_to(jnp.eye(matrices.shape[-1], dtype=matrices.dtype), first.shape)
    earlier = jax.lax.associative_scan(
        product, jnp.concatenate([unit, matrices[:, :-1]], axis=1), axis=1
    )
    later = jax.lax.associative_scan(
        lambda a, b: product(b, a),
        jnp.concatenate([matrices[:, 1:], unit], axis=1),
        reverse=True,
        axis=1,
    )
    return product(later, earlier)


TABLES = {"dense": dense, "filter": filters, "contexts": contexts, "fused": fused}


def measure(table, quick, precision, limits, parts=("",)):
    """Yields a row for each pass and contender of the cases whose names have one of the parts."""
    dtype, _ = PRECISIONS[precision]
    cases = TABLES[table](quick, dtype)
    cases = [(n, c) for n, c in cases if any(part in n for part in parts)]
    passes = {"forward": lambda f: f, "forward and backward": with_gradients}
    # All programs at once, because that takes longest; measured when none is compiled any more.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {
            (case, name, n): pool.submit(Compiled, change(f), *x)
            for case, contenders in cases
            for name, change in passes.items()
            for n, (f, x) in contenders.items()
        }
    for case, contenders in cases:
        for name in passes:
            programs = {n: futures[case, name, n].result() for n in contenders}
            yield from rows_of(table, case, precision, name, programs, limits)


def rows_of(table, case, precision, name, programs, limits, repeats=9):
    seconds = medians(programs, repeats)
    first = next(iter(seconds.values()))
    for contender, time in seconds.items():
        program = programs[contender]
        shares = [
            round(amount / time / limit, 3) if amount else ""
            for amount, limit in zip((program.flops, program.bytes), limits, strict=True)
        ]
        row = (table, case, precision, name, contender, round(1e3 * time, 4))
        yield dict(zip(COLUMNS, (*row, round(first / time, 3), *shares), strict=True))


def measure_models(quick, precision, limits):
    """A training step of the translators, and a greedy search."""
    dtype, _ = PRECISIONS[precision]
    keras.config.set_dtype_policy(policy(dtype))
    batch, length, vocabulary = (2, 8, 100) if quick else (64, 32, 8000)
    rng = np.random.default_rng(0)
    source, target, labels = rng.integers(4, vocabulary, (3, batch, length), "int32")
    steps, searches = {}, {}
    for preset in ("sdpa", "plga-2"):
        options = {**PRESETS[preset], **(SMALL if quick else {})}
        if quick and preset == "plga-2":
            options["residual_units"] = 1
        model = translator(vocabulary, vocabulary, **options)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        steps[preset] = _Untold(
            lambda model=model: model.train_on_batch({"source": source, "target": target}, labels)
        )
        search = BeamSearch(model, 1, end_id=None, extra_tokens=2 if quick else 10)
        searches[preset] = _Untold(lambda search=search: jax.block_until_ready(search(source).ids))
    keras.config.set_dtype_policy("float32")
    with ThreadPoolExecutor() as pool:  # compiles
        list(pool.map(lambda preset: (steps[preset](), searches[preset]()), steps))
    case = f"{batch} x {length} tokens"
    yield from rows_of("models", case, precision, "training step", steps, limits, repeats=5)
    yield from rows_of("models", case, precision, "greedy search", searches, limits, repeats=3)


class _Untold:
    """A run whose operations are not counted."""

    flops = bytes = None

    def __init__(self, run):
        self.run = run

    def __call__(self):
        self.run()


def device_limits(quick, precision):
    """Operations a second of a large product, bytes a second of a large copy."""
    dtype, _ = PRECISIONS[precision]
    size = 512 if quick else 8192
    a = jax.random.normal(jax.random.key(0), (size, size), dtype)
    # Several times what the caches of a GPU hold, and long beside the start of a program.
    long = jnp.zeros((8, size, size), "float32")
    runs = {"product": Compiled(jnp.matmul, a, a), "copy": Compiled(lambda x: x + 1, long)}
    seconds = medians(runs)
    return 2 * size**3 / seconds["product"], 2 * long.nbytes / seconds["copy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: a try")
    parser.add_argument("--output", help="CSV file (default: only printed)")
    parser.add_argument("--only", nargs="+", choices=(*TABLES, "models"), default=None)
    parser.add_argument("--cases", nargs="+", default=("",), help="parts of names of cases")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=tuple(PRECISIONS))
    given = parser.parse_args()
    if keras.backend.backend() != "jax":
        parser.error(f"runs on KERAS_BACKEND=jax. Received: backend={keras.backend.backend()!r}")
    describe_machine()
    with contextlib.ExitStack() as stack:
        writer = None
        if given.output:
            file = stack.enter_context(open(given.output, "w", newline=""))
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
        for precision in given.precisions:
            # Not the context manager, which does not hold in the threads that compile.
            jax.config.update("jax_default_matmul_precision", PRECISIONS[precision][1])
            limits = device_limits(given.quick, precision)
            print(
                f"{precision}: {limits[0] / 1e12:.2f} TFLOP/s of a product, "
                f"{limits[1] / 1e9:.0f} GB/s of a copy"
            )
            for row in all_rows(given, precision, limits):
                print("  ".join(f"{row[name]!s:>8}" for name in COLUMNS), flush=True)
                if writer:
                    writer.writerow(row)
                    file.flush()


def all_rows(given, precision, limits):
    for table in given.only or ("dense", "filter", "contexts", "models"):
        if table == "models":
            yield from measure_models(given.quick, precision, limits)
        else:
            yield from measure(table, given.quick, precision, limits, given.cases)


if __name__ == "__main__":
    main()
