"""Compares the server with plain FastAPI, one text at a time, and with LitServe.

    pip install litserve
    python benchmarks/serving.py                      # an untrained classifier
    python benchmarks/serving.py --empty              # one that computes next to nothing
    python benchmarks/serving.py --model saved_models/docstrings/1

Each server runs in its own process and loads the same SavedModel. They take turns for several
rounds, and the table has the medians of the rounds. Each client keeps a connection and sends the
next text, of 5 to 300 words, when the last one is answered. The clients run in this process, which
never loads TensorFlow. LitServe has our batch size and wait. Our server runs once for each engine;
the last column compares the first of these with each server. CPU is the processor time of a server
for a request, in milliseconds, which other programs change less than the rate. MB is the resident
memory of the first process of a server. The progress is printed to stderr, the table to stdout.
"""

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from load import (
    ROOT,
    Connection,
    describe_machine,
    encoded,
    environment,
    free_port,
    memory,
    percentile,
    processor_seconds,
    running,
    table,
)

MAX_BATCH, WAIT_MS = 32, 2.0
OURS = ("auto", "onnxruntime", "litert", "tensorflow")  # our server, by engine
SERVERS = (*OURS, "plain", "litserve")


def write_classifier(folder: Path, empty: bool) -> None:
    """Exports the paper's classifier, untrained: 20,000 words, 200 words per text, 7 classes.

    The empty one adds up one number for each word.
    """
    import keras

    from keras_tnattn.models import text_classifier
    from keras_tnattn.text.words import word_vectorizer
    from keras_tnattn_train.exports import Classifier, Version, export

    words = [f"word{i}" for i in range(20_000)]
    vectorizer = word_vectorizer([" ".join(words)])
    model = text_classifier(vectorizer.vocabulary_size(), 7)
    if empty:
        parts = (keras.layers.Embedding(vectorizer.vocabulary_size(), 1), keras.layers.Flatten())
        inputs = keras.Input((200,), dtype="int32")
        model = keras.Sequential([inputs, *parts, keras.layers.Dense(7, "softmax")])
    task = Classifier(model, vectorizer, [f"class {i}" for i in range(7)])
    export(task, folder, Version(engines=OURS[1:3]))


def load_model(path: str):
    """Returns a function from texts to labels and probabilities."""
    import tensorflow as tf

    model = tf.saved_model.load(path)
    signature = model.signatures["serving_default"]

    def predict(texts: list[str]) -> list[dict]:
        outputs = signature(text=tf.constant(texts))
        assert model  # keeps the weights
        labels, rows = outputs["label"].numpy(), outputs["probabilities"].numpy()
        return [
            {"label": label.decode(), "probabilities": row.tolist()}
            for label, row in zip(labels, rows, strict=True)
        ]

    predict(["warm up"])
    return predict


def serve_plain(path: str, port: int) -> None:
    """Serves one text at a time."""
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Body(BaseModel):
        text: str

    predict = load_model(path)
    app = FastAPI()

    @app.get("/health")
    def health() -> str:
        return "ok"

    @app.post("/predict")
    def answer(body: Body) -> dict:
        return predict([body.text])[0]

    uvicorn.run(app, port=port, log_level="error", access_log=False)


def command(name: str, model: Path, port: int) -> tuple[list[str], str, str]:
    """Returns the command of a server, the path that says if it is ready, and that for texts."""
    if name in OURS:
        options = ["--max-batch", str(MAX_BATCH), "--batch-wait-ms", str(WAIT_MS)]
        options += ["--engine", name]
        folder = str(model.parents[1])
        start = ["-m", "keras_tnattn_serving", folder, "--port", str(port), *options]
        return start, "/v2/health/ready", f"/v1/models/{model.parent.name}:predict"
    if name == "litserve":
        start = [str(Path(__file__).with_name("serving_litserve.py")), str(model), str(port)]
    else:
        start = [__file__, "--serve-plain", str(port), "--model", str(model)]
    return start, "/health", "/predict"


def texts(count: int) -> list[str]:
    """Returns texts of 5 to 300 words."""
    generator = random.Random(0)
    return [
        " ".join(f"word{generator.randrange(20_000)}" for _ in range(generator.randint(5, 300)))
        for _ in range(count)
    ]


async def measured(port: int, path: str, bodies: list[bytes], clients: int, seconds: float):
    """Returns the requests per second and the latencies with this number of clients."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        connection = Connection(port)
        i = number * 37
        while time.perf_counter() < end:
            began = time.perf_counter()
            status, content = await connection.post(path, bodies[i % len(bodies)])
            if status != 200:
                raise RuntimeError(f"{status}: {content[:200]!r}")
            latencies.append(time.perf_counter() - began)
            i += 1
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(client(n) for n in range(clients)))
    return len(latencies) / (time.perf_counter() - began), latencies


def one_round(name: str, model: Path, clients: list[int], seconds: float) -> dict[int, tuple]:
    """Starts a server and measures it with each number of clients."""
    port = free_port()
    start, ready, path = command(name, model, port)
    form = (
        (lambda t: encoded(instances=[t]))
        if path.startswith("/v1")
        else (lambda t: encoded(text=t))
    )
    bodies = [form(text) for text in texts(200)]
    results = {}
    began = time.perf_counter()
    with running(start, port, ready) as process:
        say(f"{name}: ready after {time.perf_counter() - began:.1f} s")
        asyncio.run(measured(port, path, bodies, 8, min(2, seconds)))  # warm
        for count in clients:
            used = processor_seconds(process)
            rate, latencies = asyncio.run(measured(port, path, bodies, count, seconds))
            used = 1000 * (processor_seconds(process) - used) / len(latencies)
            shares = [1000 * percentile(latencies, share) for share in (0.5, 0.95, 0.99)]
            results[count] = (rate, *shares, used, memory(process))
            say(f"{name}: {count} clients, {rate:.0f} requests/s, p50 {shares[0]:.1f} ms")
    return results


def say(text: str) -> None:
    """Prints a line of progress."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Runs the benchmark, or one of the peers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="folder of a version of a text classifier")
    parser.add_argument("--empty", action="store_true", help="serve a model of next to no cost")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=float, default=5, help="per measurement (default: 5)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=SERVERS)
    parser.add_argument("--serve-plain", type=int, metavar="PORT", help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write_classifier(options.write, options.empty)
        return
    if options.serve_plain:
        serve_plain(str(options.model), options.serve_plain)
        return
    describe_machine()
    with tempfile.TemporaryDirectory() as scratch:
        model = options.model
        if not model:
            say("writing the classifier")
            model = Path(scratch, "classifier", "1")
            writing = [sys.executable, __file__, "--write", str(model.parent)]
            writing += ["--empty"] * options.empty
            subprocess.run(writing, check=True, cwd=ROOT, env=environment())
        rounds = [
            {
                name: one_round(name, model.resolve(), options.clients, options.seconds)
                for name in options.servers
            }
            for _ in range(options.rounds)
        ]
    shares = ("p50 ms", "p95 ms", "p99 ms")
    lines = [("clients", "server", "requests/s", *shares, "CPU ms", "MB", "ours / this")]
    for count in options.clients:
        medians = {
            name: [statistics.median(r[name][count][i] for r in rounds) for i in range(6)]
            for name in options.servers
        }
        ours = next((medians[n][0] for n in OURS if n in medians), float("nan"))
        for name, (rate, *shares, used, size) in medians.items():
            shown = [*(f"{share:.1f}" for share in shares), f"{used:.2f}"]
            lines.append((count, name, f"{rate:.0f}", *shown, f"{size:.0f}", f"{ours / rate:.2f}"))
    print(table(lines))


if __name__ == "__main__":
    sys.exit(main())
