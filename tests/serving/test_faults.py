"""The server under overload, on SIGTERM, with bad versions, models, requests and clients."""

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
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

# The client of the benchmark.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from load import (
    Connection,
    LostError,
    RefusedError,
    encoded,
    environment,
    free_port,
    memory,
    percentile,
    running,
)

pytestmark = pytest.mark.slow

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


def assert_answered(outcomes: collections.Counter, *allowed: object) -> None:
    """There were answers, and no outcome but the allowed ones."""
    assert outcomes[200] > 0
    assert set(outcomes) <= {200, *allowed}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of all models; a test leaves it as it was, but for the numbers of versions."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "work").mkdir()
    write_version(folder / "work", 1)
    write_models(folder)
    return folder


def test_ten_times_the_load_that_the_server_can_take(folder):
    port = free_port()
    seconds = 5.0
    with serving(folder, port) as process:
        capacity = asyncio.run(closed_loop(port, 16, seconds))[200] / seconds
        before = memory(process)
        outcomes, latencies = asyncio.run(open_loop(port, 10 * capacity, seconds))
        after = memory(process)
        p99 = percentile(latencies, 0.99)
        # The clients use the same cores, so the accepted rate may fall, but not below a quarter.
        rate = outcomes[200] / seconds
        assert_answered(outcomes, 429, 503, "not sent: all 256 connections were waiting")
        assert outcomes[429] > 0
        assert rate > capacity / 4
        # A request may wait for a full queue and two batches; allow twice that.
        assert p99 < 2 * (QUEUE + 16) / rate + 0.5
        assert after < before + 200


def test_sigterm_under_load(folder):
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
        assert process.returncode == 0
        assert took < 32  # --drain-s, --stop-s and the exit
        assert_answered(outcomes, 429, 503, "refused")


def test_versions_swapped_under_load(folder):
    port = free_port()
    number = max(int(path.name) for path in (folder / "work").iterdir())

    async def run(process) -> collections.Counter:
        stop = asyncio.Event()
        load = asyncio.create_task(closed_loop(port, 8, stop))
        for version in range(number + 1, number + 6):
            await asyncio.to_thread(write_version, folder / "work", version)
            shutil.rmtree(folder / "work" / str(version - 1))
            while await asyncio.to_thread(newest, port) != version:
                await asyncio.sleep(0.05)
        stop.set()
        return await load

    with serving(folder, port) as process:
        before = memory(process)
        outcomes = asyncio.run(run(process))
        assert_answered(outcomes)
        assert memory(process) < before + 200


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


def test_a_damaged_version(folder):
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
        state, code = versions[str(number + 1)]
        assert state == "END"
        assert code != "OK"
        assert versions[str(number)] == ("AVAILABLE", "OK")
        assert_answered(outcomes)


def test_a_killed_server_starts_again_on_its_port(folder):
    port = free_port()
    with serving(folder, port) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with serving(folder, port):
        assert_answered(asyncio.run(closed_loop(port, 4, 1.0)))


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


def test_the_longest_answers(folder):
    port = free_port()
    path = "/v1/models/long:predict"
    with serving(folder, port, "--max-answer", "50000000"), Health(port) as health:
        code, body = request(port, path, encoded(instances=[[0.5] * 8] * 40))
        refused = request(port, path, encoded(instances=[[0.5] * 8] * 400))[0]
    assert code == 200
    assert len(body) > 4e7
    assert refused == 413
    assert health.slowest < 1


def test_models_that_never_return(folder):
    port, bad = free_port(), encoded(instances=[[2.0] * 8])
    paths = [f"/v1/models/{name}:predict" for name in STUCK_MODELS]
    with serving(folder, port, "--deadline-s", "5"):
        before = {request(port, path, BODY)[0] for path in paths}
        waiting = {request(port, path, bad)[0] for path in paths}
        again = {request(port, path, BODY)[0] for path in paths}
        outcomes = asyncio.run(closed_loop(port, 4, 3.0))
        ready, live = request(port, READY)[0], request(port, "/v2/health/live")[0]
    assert (before, waiting, again) == ({200}, {504}, {503})
    assert (ready, live) == (503, 200)
    assert_answered(outcomes)  # of another model


def test_versions_of_pipes_and_of_links_out_of_the_folder(folder, tmp_path):
    port = free_port()
    scratch = tmp_path
    with serving(folder, port):
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
    assert states_now == {"3": "END", "2": "END", "1": "AVAILABLE"}
    assert asked == 200


def _copy(source: str, target: str) -> None:
    if Path(source).is_fifo():
        os.mkfifo(target)
    else:
        shutil.copy2(source, target)


def test_requests_while_a_model_loads(folder):
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
    assert set(codes) == {200, 503}
    assert absent == 404


def test_logs_that_nobody_reads(folder):
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
    assert_answered(outcomes)
    assert (live, status) == (200, 0)


DEEP = b'{"instances":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
GZIP = {"Content-Encoding": "gzip"}
BAD_REQUESTS = {
    "10,000 instances": (encoded(instances=[[0.5] * 8] * 10_000), 413),
    "a text of 1 MB": (encoded(signature_name="text", instances=["x" * 1_000_000]), 413),
    "a body of 8 MB": (encoded(instances=["x" * 8_000_000]), 413),
    "invalid UTF-8": (b'{"instances": ["\xff\xfe"]}', 400),
    "wrong types": (encoded(instances=[["a"] * 8]), 400),
    "JSON 200,000 lists deep": (DEEP, 400),
    "NaN": (b'{"instances": [[NaN, 1, 1, 1, 1, 1, 1, 1]]}', 200),
    "a body in gzip": (gzip.compress(BODY), 200, GZIP),
    "a gzip bomb": (gzip.compress(bytes(100_000_000)), 413, GZIP),
    "half a gzip": (gzip.compress(BODY)[:-9], 400, GZIP),
    "a body in Brotli": (BODY, 415, {"Content-Encoding": "br"}),
    "a foreign Host": (BODY, 421, {"Host": "example.com"}),
    "a row too short": (encoded(instances=[[1.0]]), 400),
    "no JSON": (b"\x00\x01\x02", 400),
}


@pytest.fixture(scope="module")
def served(folder):
    """A port, and the process that serves there, with a short deadline."""
    port = free_port()
    with serving(folder, port, "--deadline-s", "2") as process:
        yield port, process


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_requests_leave_the_server_as_it_was(name, served):
    port, process = served
    before = memory(process)
    body, expected, *headers = BAD_REQUESTS[name]
    assert request(port, PATH, body, *headers)[0] == expected
    assert newest(port) > 0
    assert memory(process) < before + 300


def test_outputs_and_paths_that_json_cannot_hold(served):
    port, _ = served
    code, body = request(port, "/v1/models/complex:predict", BODY)
    assert code == 400
    assert b"complex" in body
    nan = encoded(signature_name="nan", instances=[[0.0] * 8])
    _, body = request(port, "/v1/models/complex:predict", nan)
    assert b"NaN,NaN" in body.replace(b" ", b"")
    binary = {"Inference-Header-Content-Length": "2"}
    code, body = request(port, "/v2/models/work/infer", b"{}\0\0", binary)
    assert code == 400
    assert b"binary_data" in body
    assert request(port, "/v1/models/work/versions/%D9%A1:predict", BODY)[0] == 400


def test_a_head_of_200_mb_is_cut_off(served):
    assert endless_head(served[0]) < 10_000_000


def head(length: int) -> bytes:
    """Returns the head of a request."""
    return f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("data", "hang_up"),
    [(b"POST /v1/mod", False), (head(1000) + b'{"inst', False), (head(len(BODY)) + BODY, True)],
    ids=["half a head", "half a body", "gone before the answer"],
)
def test_200_clients_that_send(data, hang_up, served):
    port, process = served
    before = memory(process)
    with contextlib.ExitStack() as sockets:
        for _ in range(200):
            client = sockets.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(data)
        if hang_up:
            sockets.close()
        assert newest(port) > 0
    time.sleep(3)
    assert newest(port) > 0
    assert memory(process) < before + 300


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
