"""Tests the server under overload, on SIGTERM, with bad versions, models, requests and clients.

    python benchmarks/serving_faults.py                               # a minute of overload
    python benchmarks/serving_faults.py --seconds 5 --swaps 3         # shorter

Prints a table of outcomes; the exit status is 1 if one of them is wrong.
"""

import argparse
import asyncio
import collections
import contextlib
import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from load import (
    Connection,
    LostError,
    RefusedError,
    describe_machine,
    encoded,
    environment,
    free_port,
    memory,
    percentile,
    running,
    table,
)

PATH = "/v1/models/work:predict"
READY = "/v2/health/ready"
BODY = encoded(instances=[[0.5] * 8])
QUEUE = 64
STUCK_MODELS = ("never", "never2", "never3")  # models; more than the cores of a small machine


def write_version(folder: Path, version: int, steps: int = 300) -> Path:
    """Writes a model that computes for some milliseconds per row; completely or not at all."""
    import tensorflow as tf

    module = tf.Module()
    module.weights = tf.Variable(tf.random.normal([64, 64]) / 10)

    @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, "x")])
    def work(x):
        state = tf.tile(x, [1, 8])[:, None, :]
        state = tf.repeat(state, 64, axis=1)
        for _ in tf.range(steps):
            state = tf.tanh(state @ module.weights)
        return {"y": tf.reduce_sum(state, [1, 2]), "version": tf.fill(tf.shape(x)[:1], version)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def measure(text):
        return {"length": tf.strings.length(text)}

    module.work, module.measure = work, measure
    partial = folder / ".partial"
    tf.saved_model.save(module, str(partial), {"serving_default": work, "text": measure})
    return partial.rename(folder / str(version))


def write_function(folder: Path, **signatures) -> Path:
    """Writes version 1 of a model from float rows of 8 to named tensors."""
    import tensorflow as tf

    module = tf.Module()
    spec = tf.TensorSpec([None, 8], tf.float32, "x")
    module.functions = {
        name: tf.function(function, input_signature=[spec]) for name, function in signatures.items()
    }
    tf.saved_model.save(module, str(folder / ".partial"), module.functions)
    return (folder / ".partial").rename(folder / "1")


def write_models(folder: Path) -> None:
    """Writes a model that never returns, one of long answers, and one of complex outputs."""
    import tensorflow as tf

    def never(x):
        def turn(i, y):
            return i + 1, tf.tanh(y @ y)

        # Warm-ups, whose rows hold ones, end.
        turns = tf.where(tf.reduce_max(x) > 1, 2_000_000_000, 1)
        y = tf.while_loop(lambda i, y: i < turns, turn, (0, tf.eye(100)))[1]
        return {"y": x + tf.reduce_sum(y)}

    def long(x):
        return {"y": tf.sin(x[:, :1] + tf.range(100_000, dtype=tf.float32))}

    def not_finite(x):
        return {"y": x / 0}

    for name, signatures in {
        **{name: {"serving_default": never} for name in STUCK_MODELS},
        "long": {"serving_default": long},
        "complex": {"serving_default": lambda x: {"y": tf.complex(x, x)}, "nan": not_finite},
    }.items():
        (folder / name).mkdir()
        write_function(folder / name, **signatures)


def serving(folder: Path, port: int, *more: str):
    """Runs a server for the folder."""
    options = [
        "--max-queue",
        str(QUEUE),
        "--max-batch",
        "8",
        "--poll-s",
        "0.2",
        "--deadline-s",
        "10",
    ]
    command = ["-m", "keras_tnattn_serving", str(folder), "--port", str(port), *options, *more]
    return running(command, port, READY)


async def closed_loop(port: int, clients: int, stop: asyncio.Event | float) -> collections.Counter:
    """Runs clients that wait for each answer; counts the statuses, `lost` and `refused`."""
    outcomes: collections.Counter = collections.Counter()
    end = time.monotonic() + stop if isinstance(stop, float) else None

    async def client() -> None:
        connection = Connection(port)
        while not (time.monotonic() > end if end else stop.is_set()):
            try:
                outcomes[(await connection.post(PATH, BODY))[0]] += 1
            except RefusedError:
                outcomes["refused"] += 1
                await asyncio.sleep(0.05)
            except LostError:
                outcomes["lost"] += 1
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return outcomes


async def open_loop(port: int, rate: float, seconds: float) -> tuple[collections.Counter, list]:
    """Sends requests at a fixed rate; returns counts of outcomes, and latencies of successes."""
    outcomes: collections.Counter = collections.Counter()
    latencies: list[float] = []
    idle = [Connection(port) for _ in range(256)]
    tasks = set()

    async def request(connection: Connection) -> None:
        began = time.monotonic()
        try:
            status, _ = await connection.post(PATH, BODY)
            outcomes[status] += 1
            if status == 200:
                latencies.append(time.monotonic() - began)
        except (LostError, RefusedError) as error:
            outcomes["lost" if isinstance(error, LostError) else "refused"] += 1
        idle.append(connection)

    began, sent = time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        while sent < rate * now:
            sent += 1
            if idle:
                task = asyncio.create_task(request(idle.pop()))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            else:
                outcomes["not sent: all 256 connections were waiting"] += 1
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    for connection in idle:
        connection.close()
    return outcomes, latencies


def shown(outcomes: collections.Counter) -> str:
    """Formats outcomes."""
    return ", ".join(f"{key}: {count:,}" for key, count in sorted(outcomes.items(), key=str))


def answered(outcomes: collections.Counter, *allowed: object) -> bool:
    """Whether there were requests, all of them with allowed outcomes."""
    return outcomes[200] > 0 and set(outcomes) <= set(allowed)


def overload(folder: Path, options: argparse.Namespace) -> tuple[str, bool]:
    """Sends ten times the load that the server can take."""
    port, seconds = free_port(), options.seconds
    with serving(folder, port) as process:
        capacity = asyncio.run(closed_loop(port, 16, min(5.0, seconds)))[200] / min(5.0, seconds)
        before = memory(process)
        outcomes, latencies = asyncio.run(open_loop(port, 10 * capacity, seconds))
        after = memory(process)
        p99 = percentile(latencies, 0.99)
        # A request may wait for a full queue and two batches at the rate without overload; allow
        # twice that. The clients use the same cores, so the accepted rate may fall, but not below a
        # quarter.
        rate = outcomes[200] / seconds
        bound = 2 * (QUEUE + 16) / capacity + 0.5
        fine = after < before + 200 and p99 < bound and outcomes[429] > 0 and rate > capacity / 4
        allowed = (200, 429, 503, "not sent: all 256 connections were waiting")
        text = (
            f"capacity {capacity:.0f}/s, load {10 * capacity:.0f}/s for {seconds:g} s: "
            f"{shown(outcomes)}; accepted {rate:.0f}/s, p99 {p99:.2f} s (at most {bound:.1f}); "
            f"memory {before:.0f} to {after:.0f} MB"
        )
        return text, fine and answered(outcomes, *allowed)


def sigterm(folder: Path, options: argparse.Namespace) -> tuple[str, bool]:
    """Sends SIGTERM under load."""
    port = free_port()

    async def run(process) -> collections.Counter:
        stop = asyncio.Event()
        load = asyncio.create_task(closed_loop(port, 32, stop))
        await asyncio.sleep(2)
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            await asyncio.sleep(0.05)
        stop.set()
        return await load

    with serving(folder, port) as process:
        began = time.monotonic()
        outcomes = asyncio.run(run(process))
        took = time.monotonic() - began - 2
        text = f"{shown(outcomes)}; exit status {process.returncode} after {took:.1f} s"
        fine = process.returncode == 0 and took < 32  # --drain-s, --stop-s and the exit
        return text, fine and answered(outcomes, 200, 429, 503, "refused")


def swaps(folder: Path, options: argparse.Namespace) -> tuple[str, bool]:
    """Swaps versions under load."""
    port = free_port()

    async def run(process) -> collections.Counter:
        stop = asyncio.Event()
        load = asyncio.create_task(closed_loop(port, 8, stop))
        for version in range(2, 2 + options.swaps):
            await asyncio.to_thread(write_version, folder / "work", version)
            shutil.rmtree(folder / "work" / str(version - 1))
            while await asyncio.to_thread(newest, port) != version:
                await asyncio.sleep(0.05)
        stop.set()
        return await load

    with serving(folder, port) as process:
        before = memory(process)
        outcomes = asyncio.run(run(process))
        text = (
            f"{options.swaps} swaps: {shown(outcomes)}; "
            f"memory {before:.0f} to {memory(process):.0f} MB"
        )
        return text, answered(outcomes, 200) and memory(process) < before + 200


def newest(port: int) -> int:
    """Returns the version that answers, once the queue has room."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{PATH}", BODY)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["predictions"][0]["version"]
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise
            time.sleep(0.1)


def states(port: int) -> dict[str, tuple[str, str]]:
    """Returns the state and the error code of each version."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models/work", timeout=60) as answer:
        return {
            version["version"]: (version["state"], version["status"]["error_code"])
            for version in json.load(answer)["model_version_status"]
        }


def damaged(folder: Path, options: argparse.Namespace) -> tuple[str, bool]:
    """Adds a damaged version under load."""
    port = free_port()
    number = max(int(path.name) for path in (folder / "work").iterdir())

    async def run() -> collections.Counter:
        stop = asyncio.Event()
        load = asyncio.create_task(closed_loop(port, 8, stop))
        partial = folder / "work" / ".partial"
        await asyncio.to_thread(shutil.copytree, folder / "work" / str(number), partial)
        weights = next(partial.glob("variables/*.data-*"))
        weights.write_bytes(weights.read_bytes()[:1000])
        partial.rename(folder / "work" / str(number + 1))
        end = time.monotonic() + 60
        while time.monotonic() < end:
            await asyncio.sleep(0.5)
            if (await asyncio.to_thread(states, port)).get(str(number + 1), ("",))[0] == "END":
                break
        stop.set()
        return await load

    with serving(folder, port):
        outcomes = asyncio.run(run())
        versions = states(port)
        shutil.rmtree(folder / "work" / str(number + 1))
        new, old = versions[str(number + 1)], versions[str(number)]
        text = f"{shown(outcomes)}; new version: {' '.join(new)}, old version: {old[0]}"
        fine = new[0] == "END" and new[1] != "OK" and old == ("AVAILABLE", "OK")
        return text, fine and answered(outcomes, 200)


def killed(folder: Path, options: argparse.Namespace) -> tuple[str, bool]:
    """Kills the server with SIGKILL, and starts a new one on the same port."""
    port = free_port()
    with serving(folder, port) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    began = time.monotonic()
    with serving(folder, port):
        ready = time.monotonic() - began
        outcomes = asyncio.run(closed_loop(port, 4, 1.0))
    return f"ready again after {ready:.1f} s; {shown(outcomes)}", answered(outcomes, 200)


def request(
    port: int, path: str, body: bytes | None = None, headers: tuple = (), seconds: float = 120
) -> tuple[int, bytes]:
    """Returns the status and the body of an answer."""
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, dict(headers))
    try:
        with urllib.request.urlopen(asked, timeout=seconds) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


class Health:
    """Asks in a thread, all the time, whether the server lives; `slowest` is in seconds."""

    def __init__(self, port: int) -> None:
        self._port, self._stop, self.slowest = port, threading.Event(), 0.0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Health":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            request(self._port, "/v2/health/live")
            self.slowest = max(self.slowest, time.monotonic() - began)
            self._stop.wait(0.01)


def long_answers(folder: Path, options: argparse.Namespace) -> tuple[str, bool]:
    """Asks for the longest answers that are allowed, and for longer ones."""
    port = free_port()
    path = "/v1/models/long:predict"
    with serving(folder, port, "--max-answer", "50000000"), Health(port) as health:
        began = time.monotonic()
        code, body = request(port, path, encoded(instances=[[0.5] * 8] * 40))
        took = time.monotonic() - began
        refused = request(port, path, encoded(instances=[[0.5] * 8] * 400))[0]
    text = (
        f"{len(body) / 1e6:.0f} MB answered in {took:.1f} s, ten times as much: {refused}; "
        f"slowest health check {health.slowest:.2f} s"
    )
    return text, (code, refused) == (200, 413) and len(body) > 4e7 and health.slowest < 1


def stuck(folder: Path, options: argparse.Namespace) -> tuple[str, bool]:
    """Asks models that never return; another one answers, and the server is not ready."""
    port, bad = free_port(), encoded(instances=[[2.0] * 8])
    paths = [f"/v1/models/{name}:predict" for name in STUCK_MODELS]
    with serving(folder, port, "--deadline-s", "5"):
        before = {request(port, path, BODY)[0] for path in paths}
        waiting = {request(port, path, bad)[0] for path in paths}
        again = {request(port, path, BODY)[0] for path in paths}
        outcomes = asyncio.run(closed_loop(port, 4, 3.0))
        ready, live = request(port, READY)[0], request(port, "/v2/health/live")[0]
    text = (
        f"{len(STUCK_MODELS)} models answer {before}, {waiting} after the deadline, then {again}; "
        f"another model {shown(outcomes)}; ready {ready}, live {live}"
    )
    fine = (before, waiting, again, ready, live) == ({200}, {504}, {503}, 503, 200)
    return text, fine and answered(outcomes, 200)


def hanging_versions(folder: Path, options: argparse.Namespace) -> tuple[str, bool]:
    """Adds versions that never load, that are pipes, or that lead out of the folder."""
    port = free_port()
    with tempfile.TemporaryDirectory() as scratch, serving(folder, port):
        shutil.copytree(folder / "long", Path(scratch, "long"))
        original = Path(scratch, "long", "1")
        for number in (2, 3):
            shutil.copytree(original, Path(scratch, str(number)))
        (Path(scratch, "2") / "assets.extra").mkdir()
        os.mkfifo(Path(scratch, "2", "assets.extra", "model_card.json"))
        Path(scratch, "3", "saved_model.pb").unlink()
        Path(scratch, "3", "saved_model.pb").symlink_to(original / "saved_model.pb")
        for number in ("2", "3"):
            shutil.copytree(
                Path(scratch, number), Path(scratch, "new"), symlinks=True, copy_function=_copy
            )
            Path(scratch, "new").rename(folder / "long" / number)
        end, states_now = time.monotonic() + 60, {}
        while time.monotonic() < end and list(states_now.values()) != ["END", "END", "AVAILABLE"]:
            time.sleep(0.2)
            answer = json.loads(request(port, "/v1/models/long")[1])["model_version_status"]
            states_now = {v["version"]: v["state"] for v in answer}
        asked = request(port, "/v1/models/long:predict", BODY)[0]
        for number in ("2", "3"):
            shutil.rmtree(folder / "long" / number)
    text = f"states {states_now}; version 1 answers {asked}"
    return text, states_now == {"3": "END", "2": "END", "1": "AVAILABLE"} and asked == 200


def _copy(source: str, target: str) -> None:
    if Path(source).is_fifo():
        os.mkfifo(target)
    else:
        shutil.copy2(source, target)


def loading(folder: Path, options: argparse.Namespace) -> tuple[str, bool]:
    """Asks for models while they load."""
    port = free_port()
    command = [sys.executable, "-m", "keras_tnattn_serving", str(folder), "--port", str(port)]
    codes: list[int] = []
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        end = time.monotonic() + 120
        while 200 not in codes and time.monotonic() < end:
            with contextlib.suppress(OSError):
                codes.append(request(port, PATH, BODY)[0])
            time.sleep(0.02)
        absent = request(port, "/v1/models/nobody:predict", BODY)[0]
        process.kill()
    text = f"until it answers: {shown(collections.Counter(codes))}; a name that is absent: {absent}"
    return text, set(codes) == {200, 503} and absent == 404


def full_pipes(folder: Path, options: argparse.Namespace) -> tuple[str, bool]:
    """Writes logs that nobody reads."""
    port = free_port()
    command = [sys.executable, "-m", "keras_tnattn_serving", str(folder), "--port", str(port)]
    with subprocess.Popen(
        [*command, "--access-log", "json"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if request(port, READY)[0] == 200:
                    break
            time.sleep(0.1)
        asked = (request(port, "/v2/health/live")[0] for _ in range(2000))  # 200 bytes each
        outcomes = collections.Counter(asked)
        live = request(port, "/v2/health/live")[0]
        process.terminate()
        status = process.wait(60)
    text = f"{shown(outcomes)} with 64 kB of pipe; live {live}, exit status {status}"
    return text, answered(outcomes, 200) and (live, status) == (200, 0)


def bad_clients(folder: Path) -> Iterator[tuple[str, str, bool]]:
    """Sends bad requests; after each, a good request has to be answered."""
    rows = encoded(instances=[[0.5] * 8] * 10_000)
    deep = b'{"instances":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    cases = {
        "10,000 instances": (rows, 413),
        "a text of 1 MB": (encoded(signature_name="text", instances=["x" * 1_000_000]), 413),
        "a body of 8 MB": (encoded(instances=["x" * 8_000_000]), 413),
        "invalid UTF-8": (b'{"instances": ["\xff\xfe"]}', 400),
        "wrong types": (encoded(instances=[["a"] * 8]), 400),
        "JSON 200,000 lists deep": (deep, 400),
        "NaN": (b'{"instances": [[NaN, 1, 1, 1, 1, 1, 1, 1]]}', 200),
        "a body in gzip": (gzip.compress(BODY), 200, {"Content-Encoding": "gzip"}),
        "a gzip bomb": (gzip.compress(bytes(100_000_000)), 413, {"Content-Encoding": "gzip"}),
        "half a gzip": (gzip.compress(BODY)[:-9], 400, {"Content-Encoding": "gzip"}),
        "a body in Brotli": (BODY, 415, {"Content-Encoding": "br"}),
        "a foreign Host": (BODY, 421, {"Host": "example.com"}),
        "a row too short": (encoded(instances=[[1.0]]), 400),
        "no JSON": (b"\x00\x01\x02", 400),
    }
    port = free_port()
    with serving(folder, port, "--deadline-s", "2") as process:
        before = memory(process)
        for name, (body, expected, *headers) in cases.items():
            status = request(port, PATH, body, *headers)[0]
            fine = status == expected and newest(port) > 0
            yield name, f"{status}", fine
        code, body = request(port, "/v1/models/complex:predict", BODY)
        yield (
            "complex outputs",
            f"{code}: {body[:200].decode()}",
            code == 400 and b"complex" in body,
        )
        nan = encoded(signature_name="nan", instances=[[0.0] * 8])
        code, body = request(port, "/v1/models/complex:predict", nan)
        yield (
            "outputs that are NaN",
            f"{code}: {body[:40].decode()}",
            b"NaN, NaN" in body or (b"NaN,NaN" in body),
        )
        binary = {"Inference-Header-Content-Length": "2"}
        code, body = request(port, "/v2/models/work/infer", b"{}\0\0", binary)
        yield "binary tensors", f"{code}: {body.decode()}", code == 400 and b"binary_data" in body
        code = request(port, "/v1/models/work/versions/%D9%A1:predict", BODY)[0]
        yield "a version in Arabic digits", f"{code}", code == 400
        taken = endless_head(port)
        yield "a head of 200 MB", f"closed after {taken / 1e3:,.0f} kB", taken < 10_000_000
        for name, data, hang_up in (
            ("200 clients send half a head", b"POST /v1/mod", False),
            ("200 clients send half a body", head(1000) + b'{"inst', False),
            ("200 clients hang up before the answer", head(len(BODY)) + BODY, True),
        ):
            with contextlib.ExitStack() as sockets:
                for _ in range(200):
                    client = sockets.enter_context(socket.create_connection(("127.0.0.1", port)))
                    client.sendall(data)
                if hang_up:
                    sockets.close()
                others = newest(port) > 0
            time.sleep(3)
            fine = others and newest(port) > 0
            yield name, "others are answered" if fine else "others wait", fine
        grown = memory(process) - before
        yield "all of these", f"memory grew by {grown:.0f} MB", grown < 300


def endless_head(port: int) -> int:
    """Sends header lines; returns how many bytes were taken before the connection was closed."""
    line, taken = b"X-A: " + b"a" * 1000 + b"\r\n", 0
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with contextlib.suppress(OSError):
            while taken < 200_000_000:
                client.sendall(line)
                taken += len(line)
    return taken


def head(length: int) -> bytes:
    """Returns the head of a request."""
    return f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


def main() -> int:
    """Runs all scenarios; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of overload (default: 60)")
    parser.add_argument("--swaps", type=int, default=20, help="of versions (default: 20)")
    scenes = {
        "overload": overload,
        "SIGTERM under load": sigterm,
        "versions swapped under load": swaps,
        "a damaged version": damaged,
        "kill -9 and a restart": killed,
        "the longest answers": long_answers,
        "models that never return": stuck,
        "versions of pipes and links": hanging_versions,
        "requests while a model loads": loading,
        "logs that nobody reads": full_pipes,
    }
    parser.add_argument("--only", choices=[*scenes, "bad clients"], nargs="+")
    options = parser.parse_args()
    # Ends this process as Ctrl-C does, so that its servers are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    describe_machine()
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "work").mkdir()
        write_version(folder / "work", 1)
        write_models(folder)
        for name, scene in scenes.items():
            if not options.only or name in options.only:
                lines.append((name, *scene(folder, options)))
                print(*lines[-1], sep=": ", flush=True)
        if not options.only or "bad clients" in options.only:
            for line in bad_clients(folder):
                lines.append(line)
                print(*line, sep=": ", flush=True)
    shown_lines = [(name, text, "yes" if fine else "NO") for name, text, fine in lines]
    print("\n" + table([("scenario", "outcome", "as expected"), *shown_lines]))
    return 0 if all(fine for *_, fine in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
