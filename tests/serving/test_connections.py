"""What clients do to connections, and what the server does to them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import tensorflow as tf
from serving_models import write, write_table
from serving_servers import (
    ROOT,
    as_process,
    connected,
    get,
    in_thread,
    post,
    received,
    wait_for,
)

from keras_tnattn_serving.monitoring import Lines

GET = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"


def live(client):
    """Waits for the answer to `GET`, which may come in pieces."""
    data = b""
    while not data.endswith(b'{"live":true}'):
        part = client.recv(65536)
        assert part, f"closed after {data!r}"
        data += part
    return True


def send_until_closed(client, data, most):
    """Returns how many bytes were taken."""
    taken = 0
    with contextlib.suppress(ConnectionError, TimeoutError):
        while taken < most:
            client.sendall(data)
            taken += len(data)
    return taken


@pytest.mark.parametrize(
    "line",
    [b"X-A: " + b"a" * 1000 + b"\r\n", b"a" * 1000, b"\r\n" * 500],
    ids=["many headers", "one header", "empty lines"],
)
def test_a_head_without_end_is_cut_off(plain, line):
    with in_thread(plain) as (url, _), connected(url) as client:
        begun = b"" if line.startswith(b"\r\n") else GET + b"X-B: "
        client.sendall(begun)
        assert send_until_closed(client, line, 50_000_000) < 5_000_000
        assert get(f"{url}/v2/health/live")[0] == 200


@pytest.mark.parametrize(("size", "code"), [(3000, 200), (4100, 431), (60_000, 431)])
def test_the_size_of_a_head_is_limited(plain, size, code):
    with in_thread(plain, max_head=4096) as (url, _):
        for head in (
            GET + b"X-A: " + b"a" * size + b"\r\nConnection: close\r\n\r\n",
            GET + b"A" * size + b": a\r\nConnection: close\r\n\r\n",
            GET.replace(b" HTTP", b"?" + b"a" * size + b" HTTP") + b"Connection: close\r\n\r\n",
        ):
            with connected(url) as client:
                client.sendall(head)
                answer = received(client)
            assert answer.startswith(b"HTTP/1.1 %d " % code)
            assert (b"--max-head" in answer) == (code == 431)


def test_a_long_body_is_no_long_head(plain):
    body = json.dumps({"instances": [[1, 2]]}).encode() + b" " * 100_000
    request = b"POST /v1/models/double:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    with in_thread(plain, max_head=1000) as (url, _), connected(url) as client:
        client.sendall((request % len(body) + body) * 3 + GET + b"Connection: close\r\n\r\n")
        assert received(client).count(b"HTTP/1.1 200 OK") == 4


def test_many_requests_on_one_connection_have_many_heads(plain):
    with in_thread(plain, max_head=1000) as (url, _), connected(url) as client:
        for _ in range(50):
            client.sendall(GET + b"\r\n")
            assert live(client)


@pytest.mark.parametrize("first", [b"", GET + b"\r\n"], ids=["at once", "after a request"])
def test_half_a_head_is_given_up(plain, first):
    with in_thread(plain, head_s=0.3) as (url, _), connected(url) as client:
        if first:
            client.sendall(first)
            assert live(client)
        client.sendall(GET)
        time.sleep(0.1)
        client.sendall(b"X-A: b\r\n")
        answer = received(client)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"within 0.3 s (--head-s)" in answer


@pytest.mark.parametrize("sent", [b"", GET + b"\r\n", b"\r\n"], ids=["new", "used", "empty line"])
def test_an_idle_connection_is_closed(plain, sent):
    with in_thread(plain, keep_alive_s=2, head_s=0.5) as (url, _), connected(url) as client:
        client.sendall(sent)
        assert (b" 200 OK" in received(client)) == sent.startswith(b"GET")


def test_a_body_that_is_not_wanted_ends(plain):
    head = b"POST /v1/models/nobody:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n"
    with in_thread(plain, head_s=0.3) as (url, _), connected(url) as client:
        client.sendall(head + b"{")
        assert received(client).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    "requests",
    [1, pytest.param(1000, marks=pytest.mark.slow)],
    ids=["one answer", "many requests at once"],
)
def test_a_client_that_does_not_read_its_answers_is_left(tmp_path, requests):
    write_table(tmp_path, 20)  # an answer of 20 MB, more than the system's buffers hold
    with in_thread(tmp_path, keep_alive_s=1.5) as (url, _), connected(url) as client:
        body = b'{"instances": [0.5]}'
        head = b"POST /v1/models/table:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        client.sendall(head % len(body) + body + (GET + b"\r\n") * (requests - 1))
        answered = 'requests_total{code="200",method="POST",model="table"} 1.0'
        wait_for(lambda: answered in get(f"{url}/metrics")[1])
        wait_for(lambda: "in_flight 1.0" in get(f"{url}/metrics")[1])  # the one that asks
        time.sleep(4)
        assert 0 < len(received(client)) < 20_000_000  # the rest was thrown away


def test_a_client_that_reads_slowly_gets_its_answer(tmp_path):
    write_table(tmp_path, 20)
    with in_thread(tmp_path, keep_alive_s=1.5) as (url, _), connected(url) as client:
        body = b'{"instances": [0.5]}'
        head = b"POST /v1/models/table:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        client.sendall(head % len(body) + body)
        answer = bytearray()
        while not answer.endswith(b"]]}"):
            part = client.recv(2**20)
            assert part, f"closed after {len(answer)} bytes"
            answer += part
            time.sleep(0.02)
        assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["predictions"][0]) == 2_000_000


def test_connections_are_limited_and_earlier_ones_go_on(plain):
    with in_thread(plain, max_connections=2) as (url, _), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(url)) for _ in range(3)]
        for client in clients[:2]:
            client.sendall(GET + b"\r\n")
            assert live(client)
        clients[2].sendall(GET + b"\r\n")
        answer = received(clients[2])
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"more than 2 connections (--max-connections)" in answer
        clients[0].sendall(GET + b"\r\n")
        assert live(clients[0])
        clients[1].close()
        wait_for(lambda: get(f"{url}/v2/health/live")[0] == 200)


def test_what_is_no_http_is_told_as_json(plain):
    with in_thread(plain) as (url, _), connected(url) as client:
        client.sendall(b"\x16\x03\x01\x02\x00 hello\r\n\r\n")
        head, _, body = received(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body) == {"error": "Invalid HTTP request received."}


def test_websockets_are_not_spoken(plain):
    with in_thread(plain) as (url, _), connected(url) as client:
        upgrade = b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\n"
        client.sendall(GET + upgrade + b"Sec-WebSocket-Version: 13\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.slow
def test_sigterm_answers_who_has_connected_before(plain):
    """Connections that wait behind the socket, and clients that are slow to ask."""
    with (
        as_process(plain, "--drain-s", 0, "--head-s", 60) as (url, process),
        contextlib.ExitStack() as stack,
    ):
        slow = [stack.enter_context(connected(url)) for _ in range(3)]
        os.kill(process.pid, signal.SIGSTOP)  # so that the system takes the connections alone
        waiting = [stack.enter_context(connected(url)) for _ in range(20)]
        for client in waiting:
            client.sendall(GET + b"\r\n")
        process.send_signal(signal.SIGTERM)
        os.kill(process.pid, signal.SIGCONT)
        for client in waiting:
            assert b'{"live":true}' in received(client)
        time.sleep(0.5)
        for client in slow:
            client.sendall(GET)
        time.sleep(0.1)
        for client in slow:
            client.sendall(b"\r\n")
            answer = received(client)
            assert b'{"live":true}' in answer
            assert b"connection: close" in answer
        assert process.wait(10) == 0


@pytest.mark.slow
def test_sigterm_does_not_wait_long_for_clients_that_ask_nothing(plain):
    with as_process(plain, "--drain-s", 0) as (url, process), connected(url):
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert time.monotonic() - began < 15  # of the 30 s of --stop-s and the 75 of --keep-alive-s


def test_lines_are_written_in_order_and_dropped_when_nobody_reads():
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream, os.fdopen(read) as reader:
        lines = Lines(stream)
        for i in range(30_000):
            lines.write(f"{i:09d}")
        assert lines.dropped > 0
        lines.close(0.1)  # returns, although nobody reads
        rest = [reader.readline() for _ in range(30_000 - lines.dropped)]
        assert rest == sorted(rest)
        assert rest[:1000] == [f"{i:09d}\n" for i in range(1000)]
        lines.close(10)


def test_a_reader_that_has_gone_does_not_end_the_writing():
    read, write = os.pipe()
    os.close(read)
    with contextlib.suppress(BrokenPipeError), os.fdopen(write, "w") as stream:
        lines = Lines(stream)
        lines.write("a")
        wait_for(lambda: lines.dropped == 1)
        lines.write("b")
        wait_for(lambda: lines.dropped == 2)
        lines.close()


@pytest.mark.slow
def test_full_pipes_do_not_stop_the_server(tmp_path):
    x = tf.TensorSpec([None], tf.float32, "x")

    def failing(x):
        return {"y": x + tf.strings.to_number(tf.io.read_file("/no/such/file"))}

    write(tmp_path / "m", {}, serving_default=(lambda x: {"y": x}, x), failing=(failing, x))
    command = [sys.executable, "-m", "keras_tnattn_serving", str(tmp_path), "--port", "0"]
    with subprocess.Popen(
        [*command, "--access-log", "json", "--log-texts"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            while not (line := process.stdout.readline()).startswith("http"):
                pass
            url = line.split()[0]
            wait_for(lambda: "LOADING" not in json.dumps(get(f"{url}/v1/models")[1]))
            body = {"signature_name": "failing", "instances": [1.0] * 500}
            for _ in range(100):  # 2 kB each on both, pipes of 64 kB that nobody reads
                assert post(f"{url}/v1/models/m:predict", body)[0] == 500
            assert get(f"{url}/v2/health/ready")[0] == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
