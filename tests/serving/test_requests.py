"""What clients may send: encodings, hosts, binary tensors."""

import gzip
import http.client
import json
import urllib.parse
import zlib

import pytest
import tensorflow as tf
from serving_models import write
from serving_servers import get, in_thread, post

from keras_tnattn_serving.__main__ import _default_hosts

BODY = json.dumps({"instances": [[1, 2], [3, 4]]}).encode()
ANSWER = {"predictions": [[2.0, 4.0], [6.0, 8.0]]}
PREDICT = "/v1/models/double:predict"


@pytest.fixture(scope="module")
def url(plain):
    with in_thread(plain, max_body=200_000) as (url, _):
        yield url


def ask(url, method, path, body=None, headers=()):
    """Returns the status, the JSON or text, and the headers of an answer."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=60)
    connection.request(method, path, body, dict(headers))
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.getheader("content-type") == "application/json":
        content = json.loads(content)
    return answer.status, content, answer.headers


def sent(url, body, encoding):
    return ask(url, "POST", PREDICT, body, {"Content-Encoding": encoding})[:2]


def raw_deflate(data):
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


def gzipped(data):
    """The same bytes in every process, which then have the same tests."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzipped(BODY)),
        ("GZIP", gzipped(BODY)),
        ("x-gzip", gzipped(BODY)),
        ("gzip", gzipped(BODY[:9]) + gzipped(BODY[9:])),
        ("deflate", zlib.compress(BODY)),
        ("deflate", raw_deflate(BODY)),
        ("identity", BODY),
        ("gzip, identity", gzipped(BODY)),
    ],
)
def test_compressed_bodies_are_unpacked(url, encoding, body):
    assert sent(url, body, encoding) == (200, ANSWER)


@pytest.mark.parametrize(
    ("encoding", "body", "part"),
    [
        ("gzip", BODY, "as gzip: "),
        ("gzip", gzipped(BODY)[:-9], "it breaks off"),
        ("gzip", b"", "it breaks off"),
        ("gzip", gzipped(BODY) + b"more", "as gzip: "),
        ("deflate", zlib.compress(BODY)[:-1], "it breaks off"),
        ("deflate", zlib.compress(BODY) + b"more", "bytes after its end"),
        ("deflate", b"x", "it breaks off"),
    ],
)
def test_what_cannot_be_unpacked_is_told(url, encoding, body, part):
    code, answer = sent(url, body, encoding)
    assert code == 400
    assert part in answer["error"]


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress"])
def test_other_encodings_are_named(url, encoding):
    code, answer, headers = ask(url, "POST", PREDICT, BODY, {"Content-Encoding": encoding})
    assert code == 415
    assert answer["error"].endswith(f"Received: {encoding}")
    assert headers["Accept-Encoding"] == "gzip, deflate"


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_the_limit_of_a_body_is_that_of_what_it_unpacks_to(url, pack):
    encoding = "gzip" if pack is gzip.compress else "deflate"
    head, tail = b'{"instances": [[1, 2]]', b"}"
    fits = head + b" " * (200_000 - len(head + tail)) + tail
    assert sent(url, pack(fits), encoding)[0] == 200
    for size in (1, 50_000_000):
        code, answer = sent(url, pack(fits[:-1] + b" " * size + tail), encoding)
        assert code == 413
        assert "(--max-body)" in answer["error"]


def test_a_long_request_and_answer_are_those_of_a_short_one(url):
    rows = [[i, -i] for i in range(1000)]
    assert post(f"{url}{PREDICT}", {"instances": rows}) == (
        200,
        {"predictions": [[2.0 * a, 2.0 * b] for a, b in rows]},
    )
    padded = json.dumps({"instances": rows}).encode() + b" " * 40_000
    code, answer, _ = ask(url, "POST", PREDICT, padded)
    assert (code, answer["predictions"][999]) == (200, [1998.0, -1998.0])


def test_binary_tensors_are_refused_with_the_way_out(url):
    head = b'{"inputs": []}'
    headers = {"Inference-Header-Content-Length": len(head)}
    code, answer, _ = ask(url, "POST", "/v2/models/double/infer", head + b"\0" * 8, headers)
    assert code == 400
    assert "binary_data=False" in answer["error"]


def test_a_browser_gets_the_page_and_others_learn_that_the_server_lives(url):
    code, page, _ = ask(url, "GET", "/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert code == 200
    assert page.startswith(b"<!doctype html>")
    assert ask(url, "GET", "/", headers={"Accept": "*/*"})[:2] == (200, {"status": "alive"})


def test_headers_that_browsers_heed(url):
    for path in ("/", "/page/main.js", "/page/style.css", "/v1/models", "/v1/nothing", "/page/no"):
        headers = ask(url, "GET", path, headers={"Accept": "text/html"})[2]
        assert headers["X-Content-Type-Options"] == "nosniff"
        if path in ("/", "/page/main.js", "/page/style.css"):
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert "default-src 'self'" in headers["Content-Security-Policy"]
            assert headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize(
    "digits", ["\u0661", "\uff11", "\u0967", "\u00b9", "+1", "1_0", "-1", " 1"]
)
def test_versions_have_ascii_digits_alone(url, digits):
    version = urllib.parse.quote(digits)
    assert get(f"{url}/v1/models/double/versions/{version}")[0] == 400
    assert get(f"{url}/v2/models/double/versions/{version}")[0] == 404
    assert (
        post(f"{url}/v1/models/double/versions/{version}:predict", {"instances": [[1, 2]]})[0]
        == 400
    )


@pytest.mark.parametrize(
    ("allowed", "served", "refused"),
    [
        ("*", "example.com", ""),
        (
            "local",
            "localhost LOCALHOST:80 serving 127.0.0.1:8501 [::1]:8501 page.localhost",
            "example.com 127.0.0.1.example.com example.com.",
        ),
        ("Models.Example.com", "models.example.com:443", "localhost"),
        ("models.example.com local", "localhost", ""),
    ],
)
def test_hosts(plain, allowed, served, refused):
    with in_thread(plain, allowed_hosts=tuple(allowed.split())) as (url, _):
        for host in (*served.split(), *refused.split()):
            status, answer, _ = ask(url, "GET", "/v2/health/live", headers={"Host": host})
            assert status == (421 if host in refused.split() else 200), host
            assert status == 200 or "--allowed-hosts" in answer["error"]


def test_the_default_hosts_follow_the_address():
    assert _default_hosts("127.0.0.1") == _default_hosts("::1") == ("local",)
    assert _default_hosts("localhost") == ("local",)
    assert (
        _default_hosts("0.0.0.0") == _default_hosts("::") == _default_hosts("example.com") == ("*",)
    )


def test_outputs_and_inputs_that_json_does_not_have(tmp_path):
    x = tf.TensorSpec([None], tf.float32, "x")
    z = tf.TensorSpec([None], tf.complex64, "z")
    write(
        tmp_path / "waves",
        {},
        serving_default=(lambda x: {"spectrum": tf.complex(x, x), "y": x}, x),
        real=(lambda x: {"y": x}, x),
        inverse=(lambda z: {"y": tf.math.real(z)}, z),
    )
    with in_thread(tmp_path) as (url, _):
        path = f"{url}/v1/models/waves:predict"
        code, answer = post(path, {"instances": [1.0]})
        assert code == 400
        assert "the output spectrum of serving_default is complex64" in answer["error"]
        code, answer = post(path, {"signature_name": "inverse", "instances": [1.0]})
        assert code == 400
        assert "the input z of inverse is complex64" in answer["error"]
        assert post(path, {"signature_name": "real", "instances": [1.0]})[0] == 200
        tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}
        code, answer = post(f"{url}/v2/models/waves/infer", {"inputs": [tensor]})
        assert code == 400
        assert "complex64" in answer["error"]
        assert get(f"{url}/v2/models/waves")[1]["outputs"][0]["datatype"] == "complex64"


def test_a_failure_of_the_server_itself_is_json(plain, monkeypatch):
    with in_thread(plain) as (url, inference):
        monkeypatch.setattr(inference.repository, "find", lambda *_: 1 / 0)
        for path in (PREDICT, "/v2/models/double/infer"):
            code, answer = post(f"{url}{path}", {"instances": [[1, 2]]})
            assert (code, answer) == (500, {"error": "The server failed: ZeroDivisionError"})


def test_a_card_with_numbers_that_are_not_finite_is_json(tmp_path):
    text = tf.TensorSpec([None], tf.string, "text")
    card = {"scores": {"loss": float("nan")}}
    write(tmp_path / "m", card, serving_default=(lambda text: {"y": text}, text))
    with in_thread(tmp_path) as (url, _):
        code, answer = get(f"{url}/v1/models/m/card")
        assert (code, answer["scores"]) == (200, {"loss": "NaN"})
