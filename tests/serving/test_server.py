import contextlib
import http.client
import json
import shutil
import signal
import socket
import threading
import time
import urllib.parse

import pytest
import tensorflow as tf
from serving_servers import as_process, get, in_thread, post, post_for_headers, wait_for

from keras_tnattn_serving.__main__ import _address, main
from keras_tnattn_serving.app import create_app
from keras_tnattn_serving.monitoring import Monitoring
from keras_tnattn_serving.repository import Repository
from keras_tnattn_serving.settings import Settings


def write_slow(folder, seconds):
    """Writes a model that takes its time for a batch of any size."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def wait(x):
        x = tf.numpy_function(lambda x: time.sleep(seconds) or x, [x], tf.float32)
        return {"y": tf.ensure_shape(x, [None])}

    module = tf.Module()
    module.f = wait
    tf.saved_model.save(module, str(folder / "slow" / "1"), {"serving_default": wait})
    return folder


def test_the_printed_address_is_a_url():
    assert _address("127.0.0.1", 8501) == "http://127.0.0.1:8501"
    assert urllib.parse.urlsplit(_address("::1", 8501)).hostname == "::1"


def in_parallel(count, ask):
    answers = [None] * count

    def store(i):
        answers[i] = ask()

    threads = [threading.Thread(target=store, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_beyond_the_queue_the_answer_is_429(tmp_path):
    with in_thread(write_slow(tmp_path, 0.3), max_batch=1, max_queue=3) as (url, _):
        path = f"{url}/v1/models/slow:predict"
        answers = in_parallel(12, lambda: post_for_headers(path, {"instances": [1.0]}))
        codes = [code for code, *_ in answers]
        assert set(codes) == {200, 429}
        assert codes.count(200) >= 4
        for code, body, headers in answers:
            if code == 429:
                assert int(headers["Retry-After"]) >= 1
                assert "queue is full" in body["error"]


def test_after_the_deadline_the_answer_is_504_and_the_server_goes_on(tmp_path):
    with in_thread(write_slow(tmp_path, 0.5), deadline_s=0.2) as (url, _):
        path = f"{url}/v1/models/slow:predict"
        late = (504, {"error": "Deadline of 0.2 s (--deadline-s) exceeded"})
        assert post(path, {"instances": [1.0]}) == late
        wait_for(lambda: get(f"{url}/v2/health/ready")[0] == 200)


def test_half_a_body_is_given_up(tmp_path, plain):
    with in_thread(plain, deadline_s=0.3) as (url, _):
        with socket.create_connection(urllib.parse.urlsplit(url).netloc.split(":")) as client:
            client.sendall(
                b"POST /v1/models/double:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n{"
            )
            assert b" 408 " in client.recv(1000)
        assert post(f"{url}/v1/models/double:predict", {"instances": [[1, 2]]})[0] == 200


def test_limits_are_named(plain):
    with in_thread(plain, max_instances=2, max_text=3, max_body=200) as (url, _):
        for name, instances, part in (
            ("double", [[1, 2]] * 3, "at most 2 (--max-instances)"),
            ("named", ["abcd"], "at most 3 (--max-text)"),
            ("named", ["a" * 300], "at most 200 (--max-body)"),
        ):
            code, body = post(f"{url}/v1/models/{name}:predict", {"instances": instances})
            assert code == 413
            assert part in body["error"]
        assert post(f"{url}/v1/models/named:predict", {"instances": ["abc"]})[0] == 200


def test_metrics_count_what_was_asked(plain):
    with in_thread(plain) as (url, _):
        post(f"{url}/v1/models/double:predict", {"instances": [[1, 2], [3, 4]]})
        post(f"{url}/v1/models/double:predict", {"instances": [[1]]})
        post(f"{url}/v1/models/{'x' * 50}:predict", {"instances": [1]})
        text = get(f"{url}/metrics")[1]
    values = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")
    )
    prefix = "keras_tnattn_serving"
    requests = f"{prefix}_requests_total"
    assert values[f'{requests}{{code="200",method="POST",model="double"}}'] == "1.0"
    assert values[f'{requests}{{code="400",method="POST",model="double"}}'] == "1.0"
    # The names of models that are not there are no labels: anybody could make up any number.
    assert values[f'{requests}{{code="404",method="POST",model=""}}'] == "1.0"
    assert "xxx" not in text
    assert values[f'{prefix}_batch_rows_sum{{signature="serving_default"}}'] == "2.0"
    assert values[f'{prefix}_versions{{model="double",state="AVAILABLE"}}'] == "1.0"
    assert values[f"{prefix}_queue_rows"] == "0.0"
    assert values[f'{prefix}_request_seconds_count{{model="double"}}'] == "2.0"


def test_methods_that_a_client_makes_up_are_no_labels(tmp_path):
    monitoring = Monitoring(Repository(tmp_path, 1, 1), access_log=False, log_texts=False)
    for method in ("GET", "MADEUP1", "MADEUP2"):
        monitoring.request({"method": method, "status": 405}, 0.1)
    page = monitoring.page().decode()
    assert 'requests_total{code="405",method="GET",model=""} 1.0' in page
    assert 'requests_total{code="405",method="other",model=""} 2.0' in page
    assert "MADEUP" not in page


@pytest.mark.parametrize("log_texts", [False, True])
def test_the_access_log_holds_texts_on_request_alone(plain, capsys, log_texts):
    with in_thread(plain, access_log=True, log_texts=log_texts) as (url, _):
        post(f"{url}/v1/models/named:predict", {"instances": ["a secret", "b"]})
    (line,) = capsys.readouterr().out.splitlines()
    record = json.loads(line)
    assert record["ms"] > 0
    expected = {"model": "named", "version": 1, "signature": "serving_default", "rows": 2}
    expected |= {"method": "POST", "status": 200, "client": "127.0.0.1"}
    assert expected.items() <= record.items()
    assert ("secret" in line) == log_texts


def write_loop(folder, version=1, least=0):
    """Writes a model that multiplies matrices as many times as it is told, in TensorFlow alone."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, "n")])
    def count(n):
        x = tf.random.normal([300, 300])
        steps = tf.maximum(tf.reduce_max(n), least)
        x = tf.while_loop(lambda i, x: i < steps, lambda i, x: (i + 1, tf.tanh(x @ x)), (0, x))[1]
        return {"y": tf.zeros_like(n) + tf.cast(tf.reduce_sum(x) * 0, tf.int32)}

    module = tf.Module()
    module.f = count
    partial = folder / "loop" / ".partial"
    tf.saved_model.save(module, str(partial), {"serving_default": count})
    partial.rename(folder / "loop" / str(version))
    return folder


def connected(url):
    host = urllib.parse.urlsplit(url).netloc
    return contextlib.closing(http.client.HTTPConnection(host))


def in_flight(url):
    """Whether a request is being answered beside the one that asks."""
    return "requests_in_flight 2.0" in get(f"{url}/metrics")[1]


def test_sigterm_finishes_what_was_begun_and_exits_with_0(tmp_path):
    with as_process(write_loop(tmp_path), "--drain-s", 3) as (url, process):
        with connected(url) as idle, connected(url) as waiting:
            idle.request("GET", "/v2/health/live")  # kept alive: the server does not wait for it
            assert idle.getresponse().read()
            waiting.request("POST", "/v1/models/loop:predict", '{"instances": [2000]}')
            wait_for(lambda: in_flight(url))
            process.send_signal(signal.SIGTERM)
            wait_for(lambda: get(f"{url}/v2/health/ready")[0] == 503, 5)
            answer = waiting.getresponse()
            assert (answer.status, json.loads(answer.read())) == (200, {"predictions": [0]})
            assert process.wait(5) == 0  # of 30 seconds that it may take
        with pytest.raises(OSError, match="refused"):
            get(f"{url}/v2/health/live")


@pytest.mark.slow
def test_models_that_never_return_do_not_take_all_threads_of_tensorflow(tmp_path):
    names = ["loop", "second", "third", "fourth"]
    write_loop(tmp_path)
    for name in names[1:]:
        shutil.copytree(tmp_path / "loop", tmp_path / name)
    with as_process(tmp_path, "--deadline-s", 60) as (url, _), contextlib.ExitStack() as stack:
        for name in names[:3]:
            client = stack.enter_context(connected(url))
            body = '{"instances": [2000000000]}'
            client.request("POST", f"/v1/models/{name}:predict", body)
        wait_for(lambda: "in_flight 4.0" in get(f"{url}/metrics")[1])
        assert post(f"{url}/v1/models/fourth:predict", {"instances": [1]})[0] == 200


@pytest.mark.slow
def test_sigterm_does_not_wait_longer_for_what_never_ends(tmp_path):
    options = ("--drain-s", 0, "--stop-s", 1)
    with as_process(write_loop(tmp_path), *options) as (url, process), connected(url) as waiting:
        waiting.request("POST", "/v1/models/loop:predict", '{"instances": [2000000000]}')
        wait_for(lambda: in_flight(url))
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.slow
def test_sigterm_does_not_wait_for_a_version_that_is_loading(tmp_path):
    write_loop(tmp_path)
    with as_process(tmp_path, "--drain-s", 0, "--poll-s", 0.1) as (url, process):
        write_loop(tmp_path, version=2, least=2_000_000_000)  # never warm
        wait_for(lambda: '"LOADING"' in json.dumps(get(f"{url}/v1/models/loop")[1]))
        assert post(f"{url}/v1/models/loop:predict", {"instances": [1]})[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nowhere"], "Received: nowhere"),
        ([".", "--workers", "0"], "workers=0"),
        ([".", "--max-batch", "0"], "max_batch=0"),
        ([".", "--deadline-s", "nan"], "deadline_s=nan"),
    ],
)
def test_invalid_options_are_one_line(capsys, arguments, part):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert part in error
    assert error.count("\n") == 1


def test_a_port_that_is_taken_is_one_line(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([str(tmp_path), "--port", str(taken.getsockname()[1])]) == 2
    assert "Could not listen on 127.0.0.1:" in capsys.readouterr().err
    assert main([str(tmp_path), "--port", "70000"]) == 2
    assert "Could not listen on 127.0.0.1:70000" in capsys.readouterr().err


def test_errors_of_the_library(tmp_path):
    with pytest.raises(NotADirectoryError, match="nowhere"):
        create_app(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="threads=0"):
        Settings(threads=0)
