"""Tokens per second of one process on one core, and of several that share each batch.

    python benchmarks/scaling.py                       # the paper's model #2, one process and two
    python benchmarks/scaling.py --model-dim 128 --residual-dim 64 --steps 5    # in a minute

N processes share N cores, which must be idle. If each were bound to one core, the thread that sends
gradients would wait for a time slice of the system, 4 ms, at every weight. The numbers of processes
take turns, --rounds times; the fastest round of each counts. A step trains on --batch-size pairs of
32 tokens, whatever the number of processes, and sends the gradients once between them: 4 bytes for
each weight. JAX on the CPU, gloo, float32, seed 0.

    python benchmarks/scaling.py --estimate           # what 8 and 64 GPUs would give, on paper

Divides the FLOPs of a batch's gradients, which XLA counts, by the rate of a GPU, and the bytes of a
ring all-reduce, `2 (N - 1) / N` times the gradients, by the rate of the slowest link. The optimizer
is not counted, and nothing overlaps.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

LENGTH, VOCABULARY, WARM_UPS = 32, 8000, 2


def train(given):
    """Trains in one process, and prints the seconds of a step and the number of weights."""
    from keras_tnattn_train.options.options import DeviceOptions
    from keras_tnattn_train.processes.devices import process_id, use_devices

    use_devices(DeviceOptions(devices=1), given.batch_size, None)
    import keras

    from keras_tnattn_train.runs.training import as_dataset

    class SameBatch(keras.utils.PyDataset):
        def __init__(self):
            super().__init__()
            rng = np.random.default_rng(0)
            ids = rng.integers(4, VOCABULARY, (3, given.batch_size, LENGTH), "int32")
            self.batch = {"source": ids[0], "target": ids[1]}, ids[2]

        def __len__(self):
            return WARM_UPS + given.steps

        def __getitem__(self, index):
            return self.batch

        def fill(self, batch, multiple):
            return batch

    class Clock(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.ends = []

        def on_train_batch_end(self, batch, logs=None):
            float(logs["loss"])  # waits for the step
            self.ends.append(time.perf_counter())

    model = build(given)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(keras.optimizers.Adam(1e-4, 0.9, 0.98, 1e-9), loss)
    clock = Clock()
    model.fit(as_dataset(SameBatch()), shuffle=False, verbose=0, callbacks=[clock])
    if process_id() == 0:
        seconds = (clock.ends[-1] - clock.ends[WARM_UPS - 1]) / given.steps
        print(json.dumps({"seconds": seconds, "weights": model.count_params()}))


def build(given):
    """Returns the translator."""
    import keras

    from keras_tnattn.models import PRESETS, translator

    keras.utils.set_random_seed(0)
    sizes = {"model_dim": given.model_dim, "residual_dim": given.residual_dim}
    preset = {**PRESETS["plga-2"], **{name: v for name, v in sizes.items() if v is not None}}
    return translator(VOCABULARY, VOCABULARY, **preset)


def count_flops(model, batch_size):
    """Returns the FLOPs of the gradients of a batch, as XLA counts them for the compiled code."""
    import jax
    from keras import ops

    ids = np.ones((batch_size, LENGTH), "int32")

    def loss(weights):
        logits, _ = model.stateless_call(weights, state, {"source": ids, "target": ids})
        return ops.mean(ops.logsumexp(logits, axis=-1) - logits[..., 0])

    state = [v.value for v in model.non_trainable_variables]
    weights = [v.value for v in model.trainable_variables]
    return jax.jit(jax.grad(loss)).lower(weights).compile().cost_analysis()["flops"]


def estimate(given):
    """Prints what more GPUs would give, if each computes a batch of --batch-size pairs."""
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["JAX_PLATFORMS"] = "cpu"  # elsewhere, XLA may not count all products
    model = build(given)
    flops, gradients = count_flops(model, given.batch_size), 4 * model.count_params()
    print(f"{flops / 1e9:,.0f} GFLOP and {gradients / 1e6:,.0f} MB of gradients a step and GPU")
    compute = flops / (1e12 * given.tflops)
    for gpus in (1, 8, 64):
        link = given.link if gpus <= 8 else given.network
        sent = 2 * (gpus - 1) / gpus * gradients / (1e9 * link)
        print(
            f"{gpus:2} GPUs: {1e3 * compute:.1f} ms of computing, {1e3 * sent:.1f} ms of sending "
            f"a step, {gpus * compute / (compute + sent):.1f} times one GPU"
        )


def measured(processes, words):
    """Starts so many processes on as many cores; returns what process 0 printed."""
    from keras_tnattn_train.processes.launching import free_port

    address = f"127.0.0.1:{free_port()}"
    cores = sorted(os.sched_getaffinity(0))[:processes]
    if len(cores) < processes:
        sys.exit(f"Expected a core for each process. Received: {len(cores)} cores, {processes}")
    started = [
        subprocess.Popen(
            [sys.executable, __file__, *words, "--train"],
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "KERAS_BACKEND": "jax",
                "KERAS_DISTRIBUTION_JOB_ADDRESSES": address,
                "KERAS_DISTRIBUTION_NUM_PROCESSES": str(processes),
                "KERAS_DISTRIBUTION_PROCESS_ID": str(number),
            },
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        for number in range(processes)
    ]
    try:
        outputs = [process.communicate()[0] for process in started]
    finally:  # after an interrupt
        for process in started:
            process.kill()
    if any(process.returncode for process in started):
        sys.exit("A process failed")
    # Before this line, gloo may report that it is connected.
    return json.loads(outputs[0].splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--model-dim", type=int)
    parser.add_argument("--residual-dim", type=int)
    parser.add_argument("--estimate", action="store_true", help="count instead of measuring")
    parser.add_argument("--tflops", type=float, default=20, help="rate that a GPU reaches")
    parser.add_argument("--link", type=float, default=300, help="GB/s between 8 GPUs of a machine")
    parser.add_argument("--network", type=float, default=40, help="GB/s between machines")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        return train(given)
    if given.estimate:
        return estimate(given)
    best = {}
    for _ in range(given.rounds):
        for processes in given.processes:
            result = measured(processes, sys.argv[1:])
            best[processes] = min(result["seconds"], best.get(processes, np.inf))
    weights = result["weights"]
    print(f"{weights:,} weights; {4 * weights / 1e6:,.0f} MB of gradients a step")
    for processes, seconds in best.items():
        rate = given.batch_size * LENGTH / seconds
        print(
            f"{processes} processes: {seconds:.2f} s a step, {rate:,.0f} target tokens/s, "
            f"{best[given.processes[0]] / seconds:.2f} times the first"
        )


if __name__ == "__main__":
    main()
