"""HTTP as its standards have it (RFC 9110, RFC 9112), on connections that stay in step."""

import contextlib
import http.client
import json
import time
import urllib.parse

import pytest
from serving_models import write_factor
from serving_servers import connected, in_thread, received

from keras_tnattn_serving.__main__ import main
from keras_tnattn_serving.settings import Settings

PREDICT = "/v1/models/double:predict"
INFER = "/v2/models/double/infer"
ROWS = b'{"instances": [[1, 2]]}'
TENSORS = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
).encode()
PROMPT = b'{"text_input": "a"}'
H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ")
WEBSOCKET = ("Upgrade: websocket", "connection: keep-alive, upgrade", "Sec-WebSocket-Key: a")
SEVERAL = ("Upgrade: foo/1, h2c", "Upgrade: bar", "Connection: x", "Connection: Upgrade")


@pytest.fixture(scope="module")
def url(plain):
    with in_thread(plain) as (url, _):
        yield url


def head(method, path, *lines, host="Host: x", version="1.1"):
    start = f"{method} {path} HTTP/{version}"
    return "\r\n".join([start, *filter(None, [host]), *lines, "", ""]).encode()


LIVE = head("GET", "/v2/health/live")


def with_length(path, body, *lines, **options):
    return head("POST", path, *lines, f"Content-Length: {len(body)}", **options) + body


def in_chunks(path, body, *lines, **options):
    parts = (body[:5], body[5:])
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return (
        head("POST", path, *lines, "Transfer-Encoding: chunked", **options) + chunks + b"0\r\n\r\n"
    )


def answer(stream, has_body=True):
    """Returns the status, the headers and the body of the next answer of a connection."""
    line = stream.readline()
    assert line.startswith(b"HTTP/1.1 "), f"closed, or out of step: {line!r}"
    headers = http.client.parse_headers(stream)
    size = int(headers.get("Content-Length", 0)) if has_body else 0
    return int(line.split()[1]), headers, stream.read(size)


def answers(data):
    """Returns the statuses of all answers."""
    return [int(part[:3]) for part in data.split(b"HTTP/1.1 ")[1:]]


@contextlib.contextmanager
def asking(url):
    with connected(url) as client, client.makefile("rb") as stream:
        yield client, stream


@pytest.mark.parametrize("lines", [H2C, WEBSOCKET, SEVERAL], ids=["h2c", "websocket", "several"])
@pytest.mark.parametrize("framed", [with_length, in_chunks])
@pytest.mark.parametrize("cut", ["whole", "after the head", "in bytes"])
def test_a_protocol_that_is_not_spoken_is_ignored(url, lines, framed, cut):
    for path, body, status, part in (
        (PREDICT, ROWS, 200, b"[2.0,4.0]"),
        (INFER, TENSORS, 200, b"[2.0,4.0]"),
        ("/v2/models/double/generate", PROMPT, 400, b"Expected a language model"),
        ("/v2/models/double/generate_stream", PROMPT, 400, b"Expected a language model"),
    ):
        request = framed(path, body, *lines)
        end = request.index(b"\r\n\r\n") + 4
        if cut == "whole":
            parts = [request]
        elif cut == "after the head":
            parts = [request[:end], request[end : end + 8], request[end + 8 :]]
        else:
            parts = [bytes([byte]) for byte in request]
        with asking(url) as (client, stream):
            for sent in (*parts, LIVE):
                client.sendall(sent)
                time.sleep(0.05 if len(sent) > 1 else 0)
            code, _, content = answer(stream)
            assert code == status
            assert part in content
            assert answer(stream)[2] == b'{"live":true}'


def test_a_long_body_after_the_wish_for_a_protocol(url):
    body = ROWS + b" " * 1_000_000
    with asking(url) as (client, stream):
        for framed in (with_length, in_chunks):
            client.sendall(framed(PREDICT, body, *H2C))
            assert answer(stream)[0] == 200


def test_requests_of_one_packet_that_ask_for_a_protocol(url):
    with asking(url) as (client, stream):
        upgraded = head("GET", "/v2/health/live", *H2C)
        client.sendall(
            with_length(PREDICT, ROWS) + in_chunks(PREDICT, ROWS, *H2C) + upgraded + LIVE
        )
        for expected in (b'{"predictions":[[2.0,4.0]]}',) * 2 + (b'{"live":true}',) * 2:
            assert answer(stream)[2] == expected
        client.sendall(upgraded * 2000)  # more than Python calls functions within each other
        for _ in range(2000):
            assert answer(stream)[0] == 200


@pytest.mark.parametrize(
    ("line", "version"),
    [("Connection: close", "1.1"), ("X-A: b", "1.0")],
    ids=["close", "HTTP/1.0"],
)
def test_the_last_request_may_ask_for_a_protocol(url, line, version):
    with connected(url) as client:
        client.sendall(with_length(PREDICT, ROWS, line, *H2C, version=version) + LIVE)
        data = received(client)
    assert answers(data) == [200]
    assert data.endswith(b'{"predictions":[[2.0,4.0]]}')


def test_no_proxy(url):
    with connected(url) as client:
        client.sendall(head("CONNECT", "x:80") + b"abc")
        assert answers(received(client)) == [400]


def test_the_limit_of_a_head_holds_for_one_that_asks_for_a_protocol(plain):
    with in_thread(plain, max_head=1000) as (url, _), connected(url) as client:
        client.sendall(head("GET", "/v2", *H2C, "X-A: " + "a" * 1000))
        assert answers(received(client)) == [431]


def test_what_follows_a_body_is_no_header(url):
    request = in_chunks(PREDICT, ROWS)[:-2]
    trailers = b"Host: y\r\nContent-Encoding: gzip\r\nX-A: b\r\n\r\n"
    with asking(url) as (client, stream):
        client.sendall(request + trailers + LIVE)
        assert answer(stream)[2] == b'{"predictions":[[2.0,4.0]]}'
        assert answer(stream)[2] == b'{"live":true}'


CHUNKED = head("POST", PREDICT, "Transfer-Encoding: chunked")
TO_NOBODY = CHUNKED.replace(b"double", b"nobody")


@pytest.mark.parametrize(
    ("parts", "statuses"),
    [
        ([CHUNKED + b"zz\r\nabc\r\n"], [400]),
        ([CHUNKED + b"fffffffffffffffffff\r\nabc\r\n"], [400]),
        ([CHUNKED + b"-1\r\nabc\r\n"], [400]),
        ([CHUNKED + b"1\r\nabc\r\n"], [400]),
        ([CHUNKED, b"2\r\nab\r\n", b"zz\r\n"], [400]),
        ([with_length(PREDICT, ROWS) * 2 + CHUNKED + b"zz\r\n" + LIVE], [200, 200, 400]),
        ([with_length(PREDICT, ROWS), CHUNKED + b"2\r\nab\r\n", b"zz\r\n"], [200, 400]),
        ([TO_NOBODY, b"2\r\nab\r\n", b"zz\r\n"], [404]),
        ([LIVE + TO_NOBODY, b"2\r\nab\r\n", b"zz\r\n"], [200, 404]),
        ([head("GET", "/v2", "Transfer-Encoding: chunked") + b"zz\r\n"], [400]),
        ([with_length(PREDICT, ROWS) + b"more" + LIVE], [200, 400]),
        ([with_length(PREDICT, ROWS, "Connection: close") + b"more" + LIVE], [200]),
        ([LIVE + head("GET", "/v2/\u00e9")], [200, 400]),
    ],
)
def test_what_cannot_be_read_is_refused_after_the_answers_before(url, parts, statuses):
    with connected(url) as client:
        for part in parts:
            client.sendall(part)
            time.sleep(0.1)
        data = received(client)
    assert answers(data) == statuses
    if statuses[-1] == 400:
        last = data[data.rindex(b"HTTP/1.1 ") :]
        assert b"connection: close" in last
        assert last.endswith(b'{"error": "Invalid HTTP request received."}')


def test_a_head_that_breaks_off_does_not_cost_the_answer_before(tmp_path, gate):
    write_factor(tmp_path / "m", 1, 2.0, gate)
    with in_thread(tmp_path, head_s=0.2) as (url, _), connected(url) as client:
        gate.clear()
        client.sendall(with_length("/v1/models/m:predict", b'{"instances": [1.0]}') + LIVE[:20])
        time.sleep(0.6)
        gate.set()
        data = received(client)
        assert answers(data) == [200, 408]
        assert b'{"predictions":[2.0]}' in data


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 23", "Content-Length: 23"],
        ["Content-Length: 23", "Content-Length: 5"],
        ["Content-Length: 23, 23"],
        ["Content-Length: +23"],
        ["Content-Length: -1"],
        ["Content-Length: 99999999999999999999999"],
        ["Content-Length: 23", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 23"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding: gzip"],
        ["X-A: b", " c"],
        ["X-A : b"],
    ],
)
def test_bodies_of_two_sizes_and_other_heads_that_servers_read_differently(url, lines):
    with connected(url) as client:
        client.sendall(head("POST", PREDICT, *lines) + ROWS)
        assert answers(received(client)) == [400]


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("framed", [with_length, in_chunks])
def test_bodies_that_nobody_reads_are_skipped(url, method, framed):
    request = framed("/v2/health/live", ROWS).replace(b"POST", method.encode())
    with asking(url) as (client, stream):
        client.sendall(request + LIVE)
        assert answer(stream, method != "HEAD")[0] in (200, 204, 405)
        assert answer(stream)[2] == b'{"live":true}'


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (head("GET", "/v2", "Host: x"), 400),
        (head("GET", "/v2", "Host: y"), 400),
        (head("GET", "/v2", host=None), 400),
        (head("GET", "/v2", host="Host: a b"), 400),
        (head("GET", "/v2", host="Host: x/y"), 400),
        (head("GET", "/v2", host="Host: user@x"), 400),
        (head("GET", "/v2", host="Host: x:80a"), 400),
        (head("GET", "/v2", host="Host: x, x"), 400),
        (head("GET", "/v2", host=None, version="1.0"), 200),
        (head("GET", "/v2", host="Host:"), 200),
        (head("GET", "/v2", host="Host: x:80"), 200),
        (head("GET", "/v2", host="host: a-b_c.example.com."), 200),
        (head("GET", "/v2", host="Host: [2001:db8::1]:80"), 200),
        (head("GET", "http://x/v2"), 200),
    ],
)
def test_one_host(url, request_head, status):
    with asking(url) as (client, stream):
        client.sendall(request_head)
        code, _, content = answer(stream)
        assert code == status
        assert (b"Expected one Host" in content) == (status == 400)


def ask(url, method, path, **headers):
    """Returns the status, the headers and the body of an answer."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=named)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, response.headers, content


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/page/main.js", "/metrics", "/monitoring/prometheus/metrics", "/openapi.json"),
        *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/double"),
        *("/v2/models/double/ready", "/v2/models/double/versions/1", "/v2/models/nobody"),
        *("/v1/models", "/v1/models/double", "/v1/models/double/versions/1"),
        *("/v1/models/double/metadata", "/v1/models/double/card", "/v1/models/nobody"),
        *("/nothing", "/page/nothing", "/v2/", PREDICT, INFER),
    ],
)
def test_head_is_get_without_a_body(url, path):
    status, headers, body = ask(url, "GET", path, Accept="text/html")
    assert body or status == 307
    found, same, nothing = ask(url, "HEAD", path, Accept="text/html")
    assert (found, nothing) == (status, b"")
    left_out = {"date", "content-length"} if "metrics" in path or status == 400 else {"date"}
    for name in {*headers, *same} - left_out:
        assert same[name] == headers[name]


READ, COMPUTE = "GET, HEAD, OPTIONS", "OPTIONS, POST"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/", READ),
        ("/page/main.js", READ),
        ("/metrics", READ),
        ("/v2/health/live", READ),
        ("/v2/models/double", READ),
        ("/v1/models", READ),
        ("/v1/models/double/versions/1", READ),
        (PREDICT, COMPUTE),
        ("/v1/models/double/versions/1:predict", COMPUTE),
        (INFER, COMPUTE),
        ("/v2/models/double/versions/1/infer", COMPUTE),
        ("/v2/models/double/generate", COMPUTE),
        ("/v2/models/double/generate_stream", COMPUTE),
        ("*", "GET, HEAD, OPTIONS, POST"),
    ],
)
def test_options_tells_the_methods_of_a_path(url, path, allowed):
    status, headers, body = ask(url, "OPTIONS", path)
    assert (status, headers["Allow"], body) == (204, allowed, b"")


def test_options_of_what_there_is_not(url):
    assert ask(url, "OPTIONS", "/nothing")[0] == 404
    # TensorFlow Serving's words for any path of its protocol that there is not.
    for path in ("/v1/nothing", "/v1/models/double:explain", "/v1/models/a/b"):
        status, headers, body = ask(url, "OPTIONS", path)
        assert (status, headers["Allow"]) == (400, None)
        assert json.loads(body) == {"error": f"Malformed request: OPTIONS {path}"}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "GET", "HEAD"])
def test_other_methods_are_told_those_of_the_path(url, method):
    for path, allowed in (("/v2/health/live", READ), ("/", READ), ("/page/main.js", READ)):
        status, headers, _ = ask(url, method, path)
        assert (status, headers["Allow"]) == ((200, None) if method in READ else (405, allowed))
    for path in (INFER, "/v2/models/double/generate", "/v2/models/double/generate_stream"):
        status, headers, _ = ask(url, method, path)
        assert (status, headers["Allow"]) == ((400, None) if method in COMPUTE else (405, COMPUTE))
    status, _, body = ask(url, method, "/v1/models")
    malformed = b"" if method in READ else f"Malformed request: {method} /v1/models".encode()
    assert status == (200 if method in READ else 400)
    assert malformed in body


def test_a_client_that_waits_is_told_to_go_on(url):
    for framed in (with_length, in_chunks):
        request = framed(PREDICT, ROWS, "Expect: 100-continue")
        end = request.index(b"\r\n\r\n") + 4
        with asking(url) as (client, stream):
            client.sendall(request[:end])
            assert answer(stream)[0] == 100
            client.sendall(request[end:] + LIVE)
            assert answer(stream)[2] == b'{"predictions":[[2.0,4.0]]}'
            assert answer(stream)[2] == b'{"live":true}'
            client.sendall(request + LIVE)  # a client that does not wait
            assert answer(stream)[2] == b'{"predictions":[[2.0,4.0]]}'
            assert answer(stream)[2] == b'{"live":true}'


def test_a_client_of_http_1_0_is_not_told_to_go_on(url):
    request = with_length(PREDICT, ROWS, "Expect: 100-continue", version="1.0")
    with connected(url) as client:
        client.sendall(request[: -len(ROWS)])
        time.sleep(0.1)
        client.sendall(ROWS)
        assert answers(received(client)) == [200]


def test_a_body_that_was_not_asked_for_ends_the_connection(url):
    """What follows would be the body to the server, and the next request to some clients."""
    request = with_length("/v1/models/nobody:predict", ROWS, "Expect: 100-continue")
    with connected(url) as client:
        client.sendall(request[: -len(ROWS)])
        data = received(client)
    assert answers(data) == [404]
    assert b"connection: close" in data


@pytest.mark.parametrize("begun", [with_length(PREDICT, ROWS)[:-3], CHUNKED + b"2\r\nab\r\n"])
def test_a_body_that_never_comes_ends_the_connection(plain, begun):
    with in_thread(plain, deadline_s=0.3, head_s=60) as (url, _), connected(url) as client:
        began = time.monotonic()
        client.sendall(begun)
        data = received(client)
        assert time.monotonic() - began < 10
    assert answers(data) == [408]
    assert b"connection: close" in data
    assert b"(--deadline-s)" in data


def test_a_body_without_end_is_refused_before_its_end(plain):
    with in_thread(plain, max_body=1000) as (url, _), asking(url) as (client, stream):
        client.sendall(head("POST", PREDICT, "Content-Length: 1000000000") + b" " * 5000)
        status, _, content = answer(stream)
        assert status == 413
        assert b"(--max-body)" in content


def test_answers_close_their_connections_before_the_server_stops(plain):
    with in_thread(plain) as (url, inference), connected(url) as client:
        inference.draining = True
        client.sendall(LIVE)
        data = received(client)
    assert answers(data) == [200]
    assert b"connection: close" in data


def test_scripts_of_other_pages_are_not_let_in_unasked(url):
    status, headers, _ = ask(url, "GET", "/v2", Origin="https://example.org")
    assert status == 200
    assert "Access-Control-Allow-Origin" not in headers
    asked = {"Origin": "https://example.org", "Access_Control_Request_Method": "POST"}
    assert "Access-Control-Allow-Origin" not in ask(url, "OPTIONS", PREDICT, **asked)[1]


@pytest.mark.parametrize("allowed", ["https://example.org", "*"])
def test_scripts_of_pages_that_are_allowed(plain, allowed):
    with in_thread(plain, allowed_origins=(allowed, "http://localhost:3000")) as (url, _):
        preflight = {
            "Origin": "https://example.org",
            "Access_Control_Request_Method": "POST",
            "Access_Control_Request_Headers": "content-type",
        }
        status, headers, _ = ask(url, "OPTIONS", PREDICT, **preflight)
        assert (status, headers["Access-Control-Allow-Origin"]) == (200, allowed)
        assert "POST" in headers["Access-Control-Allow-Methods"]
        assert "content-type" in headers["Access-Control-Allow-Headers"].lower()
        for path, code in (("/v2", 200), ("/nothing", 404), ("/v1/nothing", 400), (INFER, 405)):
            status, headers, _ = ask(url, "GET", path, Origin="https://example.org")
            assert (status, headers["Access-Control-Allow-Origin"]) == (code, allowed)
        with asking(url) as (client, stream):
            client.sendall(with_length(PREDICT, ROWS, "Origin: https://example.org"))
            status, headers, _ = answer(stream)
            assert (status, headers["Access-Control-Allow-Origin"]) == (200, allowed)
        if allowed == "*":
            return
        _, headers, _ = ask(url, "GET", "/v2", Origin="https://example.com")
        assert "Access-Control-Allow-Origin" not in headers
        assert "Origin" in headers["Vary"]
        preflight["Origin"] = "https://example.com"
        status, headers, _ = ask(url, "OPTIONS", PREDICT, **preflight)
        assert status == 400
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "origin",
    ["example.org", "https://example.org/", "https://", "null", "https://a b", "https://*"],
)
def test_an_origin_is_a_scheme_and_a_host(tmp_path, origin, capsys):
    with pytest.raises(ValueError, match="Received: allowed_origins="):
        Settings(allowed_origins=(origin,))
    assert main([str(tmp_path), "--allowed-origins", origin]) == 2
    assert "https://example.org" in capsys.readouterr().err
