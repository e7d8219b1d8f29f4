"""Servers for tests: in a thread, or as a process of their own."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def in_thread(folder, loaded=True, **settings):
    """Serves a folder from this process; gives the address and the `Inference` behind it.

    With `loaded`, all models are loaded before.
    """
    from keras_tnattn_serving.app import create_app
    from keras_tnattn_serving.server import Server
    from keras_tnattn_serving.settings import Settings

    settings = Settings(**{"poll_s": 0.1, **settings})
    app = create_app(folder, settings)
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = Server(app, settings, listening)
    thread = threading.Thread(target=server.serve_until_stopped)
    thread.start()
    try:
        models = app.inference.repository
        wait_for(lambda: models.scanned and not (loaded and models.loading()))
        yield f"http://127.0.0.1:{port}", app.inference
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@contextlib.contextmanager
def as_process(folder, *options, port=0):
    """Serves a folder from a process of its own; gives the address and the process."""
    command = [sys.executable, "-m", "keras_tnattn_serving", str(folder), "--port", str(port)]
    process = subprocess.Popen(
        [*command, *map(str, options)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        line = process.stdout.readline()
        url = re.match(r"http://\S+", line).group()
        wait_for(lambda: "LOADING" not in json.dumps(get(f"{url}/v1/models")[1]))
        yield url, process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def connected(url):
    """Gives a socket that is connected to a server."""
    host, port = urllib.parse.urlsplit(url).netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        yield client


def received(client):
    """Everything until the server closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(65536):
            data += part
    return data


def wait_for(condition, seconds=60):
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def get(url):
    """Returns the status and the JSON of an answer to GET."""
    return _answer(urllib.request.Request(url))[:2]


def post(url, body):
    """Returns the status and the JSON of an answer to POST."""
    return _answer(urllib.request.Request(url, json.dumps(body).encode()))[:2]


def post_for_headers(url, body):
    """Returns the status, the JSON and the headers of an answer to POST."""
    return _answer(urllib.request.Request(url, json.dumps(body).encode()))


def _answer(request):
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, _json(answer.read()), answer.headers
    except urllib.error.HTTPError as answer:
        return answer.code, _json(answer.read()), answer.headers


def _json(body):
    try:
        return json.loads(body)
    except ValueError:
        return body.decode()
