"""No request, no model and no version stops the others."""

import contextlib
import json
import os
import socket
import threading
import time
import urllib.parse

import numpy as np
import pytest
import tensorflow as tf
from serving_models import write as write_signatures
from serving_models import write_factor as write
from serving_models import write_table
from serving_servers import get, in_thread, post, post_for_headers, wait_for

from keras_tnattn_serving import repository as repository_module
from keras_tnattn_serving.errors import RequestError
from keras_tnattn_serving.repository import Repository, State


def test_a_long_answer_is_written_in_the_background(tmp_path):
    write_table(tmp_path, 20)
    with in_thread(tmp_path) as (url, _):
        answers = []
        path = f"{url}/v1/models/table:predict"
        thread = threading.Thread(target=lambda: answers.append(post(path, {"instances": [0.5]})))
        thread.start()
        names = set()
        while thread.is_alive():
            get(f"{url}/v2/health/live")
            names |= {t.name for t in threading.enumerate()}
        assert any(name.startswith("conversion") for name in names)
        ((code, body),) = answers
        assert code == 200
        expected = np.sin(np.float32(0.5) + np.arange(2_000_000, dtype="float32"))
        np.testing.assert_allclose(np.float32(body["predictions"][0]), expected, atol=1e-5)


def test_an_answer_above_the_limit_is_refused(tmp_path):
    write_table(tmp_path, 1)
    with in_thread(tmp_path, max_answer=3_000_000) as (url, _):
        path = f"{url}/v1/models/table:predict"
        assert post(path, {"instances": [1.0]})[0] == 200
        for body in ({"instances": [1.0] * 4}, {"inputs": [1.0] * 400}):
            code, answer = post(path, body)
            assert code == 413
            assert "at most 3000000 (--max-answer)" in answer["error"]
        tensor = {"name": "x", "shape": [4], "datatype": "FP32", "data": [1.0] * 4}
        assert post(f"{url}/v2/models/table/infer", {"inputs": [tensor]})[0] == 413


def test_outputs_that_are_not_wanted_do_not_count(tmp_path):
    x = tf.TensorSpec([None], tf.float32, "x")

    def both(x):
        return {"y": 2 * x, "long": tf.repeat(x[:, None], 10_000, axis=1)}

    write_signatures(tmp_path / "m", {}, serving_default=(both, x))
    with in_thread(tmp_path, max_answer=10_000) as (url, _):
        tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.5]}
        body = {"inputs": [tensor], "outputs": [{"name": "y"}]}
        code, answer = post(f"{url}/v2/models/m/infer", body)
        assert (code, answer["outputs"][0]["data"]) == (200, [3.0])
        body["outputs"] = [{"name": "long"}]
        assert post(f"{url}/v2/models/m/infer", body)[0] == 413


def test_a_model_that_never_returns_does_not_stop_the_others(tmp_path, gate):
    write(tmp_path / "stuck", 1, 1.0, gate)
    write(tmp_path / "m", 1, 2.0)
    with in_thread(tmp_path, deadline_s=0.5, max_queue=4) as (url, inference):
        stuck, other = (f"{url}/v1/models/{name}:predict" for name in ("stuck", "m"))
        gate.clear()
        waiting = [
            threading.Thread(target=post, args=(stuck, {"instances": [1.0]})) for _ in range(5)
        ]
        for thread in waiting:
            thread.start()
        assert post(other, {"instances": [1.0]}) == (200, {"predictions": [2.0]})
        for thread in waiting:
            thread.join()  # after the deadline
        code, body = get(f"{url}/v2/health/ready")
        assert code == 503
        assert "the model stuck has been computing one batch for " in body["error"]
        assert get(f"{url}/v2/health/live")[0] == 200
        assert get(f"{url}/v2/models/stuck/ready") == (503, {"name": "stuck", "ready": False})
        assert get(f"{url}/v2/models/m/ready")[0] == 200
        # No request waits for it any more, and the abandoned ones hold no place.
        assert inference.repository.find("stuck").batches.waiting == 0
        code, body, headers = post_for_headers(stuck, {"instances": [1.0]})
        assert code == 503
        assert "(--deadline-s)" in body["error"]
        assert int(headers["Retry-After"]) >= 1
        assert post(other, {"instances": [1.0]}) == (200, {"predictions": [2.0]})
        assert "oldest_batch_seconds 0.0" not in get(f"{url}/metrics")[1]
        # A new version has its own thread.
        write(tmp_path / "stuck", 2, 3.0)
        wait_for(lambda: post(stuck, {"instances": [1.0]}) == (200, {"predictions": [3.0]}))
        wait_for(lambda: get(f"{url}/v2/health/ready")[0] == 200)


def test_what_nobody_waits_for_is_not_computed(tmp_path, gate):
    write(tmp_path / "m", 1, 2.0, gate)
    with in_thread(tmp_path, max_batch=1, max_queue=64) as (url, inference):
        path = f"{url}/v1/models/m:predict"
        host, port = urllib.parse.urlsplit(url).netloc.split(":")
        batcher = inference.repository.find("m").batches
        gate.clear()
        body = b'{"instances": [1.0]}'
        head = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        with contextlib.ExitStack() as clients:
            for _ in range(30):
                client = clients.enter_context(socket.create_connection((host, int(port))))
                client.sendall(head % len(body) + body)
            wait_for(lambda: batcher.waiting == 29)  # one is being computed
        time.sleep(1)  # until the server knows
        gate.set()
        assert post(path, {"instances": [3.0]}) == (200, {"predictions": [6.0]})
        text = get(f"{url}/metrics")[1]
        assert 'batch_rows_count{signature="serving_default"} 2.0' in text
        assert 'requests_total{code="499",method="POST",model="m"} 29.0' in text


@pytest.mark.parametrize(("threads", "ready"), [(1, 503), (2, 200)])
def test_it_is_ready_again_when_the_batch_ends(tmp_path, gate, threads, ready):
    write(tmp_path / "m", 1, 2.0, gate)
    with in_thread(tmp_path, deadline_s=0.2, threads=threads) as (url, _):
        path = f"{url}/v1/models/m:predict"
        gate.clear()
        assert post(path, {"instances": [1.0]})[0] == 504
        wait_for(lambda: get(f"{url}/v2/health/ready")[0] == 503)
        assert get(f"{url}/v2/models/m/ready")[0] == ready  # the other thread goes on
        gate.set()
        wait_for(lambda: get(f"{url}/v2/health/ready")[0] == 200)
        assert post(path, {"instances": [1.0]}) == (200, {"predictions": [2.0]})


@contextlib.contextmanager
def loading_slowly(folder, version, factor, monkeypatch):
    """Adds a version whose warm-up waits for the event that this gives."""
    opened, warm_up = threading.Event(), repository_module.Servable.warm_up

    def slow(servable, max_batch):
        if servable.path.name == str(version):
            opened.wait(60)
        warm_up(servable, max_batch)

    monkeypatch.setattr(repository_module.Servable, "warm_up", slow)
    monkeypatch.setattr(repository_module, "_PATIENCE_S", 0.05)
    write(folder, version, factor)
    yield opened
    opened.set()


def states(url, name="m"):
    versions = get(f"{url}/v1/models/{name}")[1]["model_version_status"]
    return {v["version"]: v["state"] for v in versions}


def test_a_version_that_loads_for_long_does_not_stop_the_watcher(tmp_path, monkeypatch):
    for name in ("m", "n"):
        (tmp_path / name).mkdir()
    write(tmp_path / "m", 1, 1.0)
    with in_thread(tmp_path) as (url, _):
        m, n = (f"{url}/v1/models/{name}:predict" for name in ("m", "n"))
        with loading_slowly(tmp_path / "m", 2, 2.0, monkeypatch) as opened:
            wait_for(lambda: states(url) == {"1": "AVAILABLE", "2": "LOADING"})
            write(tmp_path / "n", 1, 5.0)
            wait_for(lambda: post(n, {"instances": [1.0]}) == (200, {"predictions": [5.0]}))
            assert post(m, {"instances": [1.0]}) == (200, {"predictions": [1.0]})
            code, body, headers = post_for_headers(
                f"{url}/v1/models/m/versions/2:predict", {"instances": [1.0]}
            )
            assert (code, headers["Retry-After"]) == (503, "2")
            assert "is loading" in body["error"]
            opened.set()
            wait_for(lambda: states(url) == {"1": "END", "2": "AVAILABLE"})
            assert post(m, {"instances": [1.0]}) == (200, {"predictions": [2.0]})


def test_no_thread_that_may_wait_for_ever_delays_the_end_of_the_process(tmp_path, monkeypatch):
    with (
        loading_slowly(tmp_path / "m", 1, 2.0, monkeypatch),
        in_thread(tmp_path, loaded=False, access_log=True),
    ):
        daemons = {thread.name for thread in threading.enumerate() if thread.daemon}
        assert {"watcher", "load m", "lines"} <= daemons


def test_a_model_that_is_loading_is_not_absent(tmp_path, monkeypatch):
    with (
        loading_slowly(tmp_path / "m", 1, 2.0, monkeypatch) as opened,
        in_thread(tmp_path, loaded=False) as (url, _),
    ):
        wait_for(lambda: states(url) == {"1": "LOADING"})
        for answer in (
            post(f"{url}/v1/models/m:predict", {"instances": [1.0]}),
            post(f"{url}/v2/models/m/infer", {"inputs": []}),
            get(f"{url}/v2/models/m"),
            get(f"{url}/v2/models/m/ready"),
            get(f"{url}/v1/models/m/metadata"),
            get(f"{url}/v1/models/m/card"),
        ):
            assert answer[0] == 503
            assert "m is loading" in answer[1]["error"]
        assert get(f"{url}/v2/health/ready")[0] == 503
        assert post(f"{url}/v1/models/other:predict", {"instances": [1.0]})[0] == 404
        opened.set()
        wait_for(lambda: get(f"{url}/v2/models/m/ready")[0] == 200)


def test_names_are_not_absent_before_the_first_scan(tmp_path):
    write(tmp_path / "m", 1, 1.0)
    repository = Repository(tmp_path, 1, 8)
    with pytest.raises(RequestError) as error:
        repository.find("m")
    assert error.value.status == 503
    repository.refresh()
    assert repository.find("m").number == 1


def test_a_version_that_never_loads_is_given_up(tmp_path, monkeypatch):
    write(tmp_path / "m", 1, 1.0)
    repository = Repository(tmp_path, 1, 8, load_s=0.2)
    repository.refresh()
    with loading_slowly(tmp_path / "m", 2, 2.0, monkeypatch) as opened:
        repository.refresh()
        assert repository.versions("m")[0].state is State.LOADING
        time.sleep(0.3)
        repository.refresh()
        new, old = repository.versions("m")
        assert (new.state, new.error_code) == (State.END, "DEADLINE_EXCEEDED")
        assert "0.2 s (--load-s)" in new.error_message
        assert old.state is State.AVAILABLE
        opened.set()
        wait_for(lambda: not any(t.name == "load m" for t in threading.enumerate()))
        repository.refresh()
        assert repository.available("m") == [1]  # what comes too late is dropped


def test_a_version_that_cannot_load_is_not_merely_absent(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "saved_model.pb").write_bytes(b"damaged")
    with in_thread(tmp_path) as (url, _):
        code, body = post(f"{url}/v1/models/m:predict", {"instances": [1.0]})
        assert code == 404
        assert "could not be loaded; GET /v1/models/m says why" in body["error"]


def test_only_the_last_failures_are_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(repository_module, "_ENDED", 2)
    for number in range(1, 5):
        (tmp_path / "m" / str(number)).mkdir(parents=True)
        (tmp_path / "m" / str(number) / "saved_model.pb").write_bytes(b"damaged")
    repository = Repository(tmp_path, 1, 8)
    repository.refresh()
    assert [version.number for version in repository.versions("m")] == [4, 3]


def pipe(version, _):
    (version / "assets.extra").mkdir()
    os.mkfifo(version / "assets.extra" / "model_card.json")


def card_outside(version, outside):
    (version / "assets.extra").mkdir()
    (outside / "secret.json").write_text('{"secret": 1}')
    (version / "assets.extra" / "model_card.json").symlink_to(outside / "secret.json")


def graph_outside(version, outside):
    (version / "saved_model.pb").rename(outside / "graph.pb")
    (version / "saved_model.pb").symlink_to(outside / "graph.pb")


def folder_outside(version, outside):
    (version / "variables").rename(outside / "variables")
    (version / "variables").symlink_to(outside / "variables", target_is_directory=True)


def link_to_nothing(version, _):
    (version / "extra").symlink_to(version / "nothing")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (pipe, "model_card.json, which is neither"),
        (card_outside, "Received: model_card.json, a link to "),
        (graph_outside, "Received: saved_model.pb, a link to "),
        (folder_outside, "Received: variables, a link to "),
        (link_to_nothing, "No such file"),
    ],
)
def test_links_that_lead_out_and_pipes_are_refused(tmp_path, tmp_path_factory, change, part):
    write(tmp_path / "m", 1, 1.0)
    change(write(tmp_path / "m", 2, 2.0), tmp_path_factory.mktemp("outside"))
    with in_thread(tmp_path) as (url, _):
        assert states(url) == {"1": "AVAILABLE", "2": "END"}
        status = get(f"{url}/v1/models/m/versions/2")[1]["model_version_status"][0]["status"]
        assert part in status["error_message"]
        assert status["error_code"] in ("FAILED_PRECONDITION", "NOT_FOUND")
        assert "secret" not in json.dumps(get(f"{url}/v1/models/m/card")[1])


def test_links_that_stay_inside_are_followed(tmp_path):
    write(tmp_path / "m", 1, 1.0)
    version = write(tmp_path / "m", 2, 2.0)
    (version / "variables").rename(version / "data")
    (version / "variables").symlink_to("data", target_is_directory=True)
    graph = tmp_path / "graph.pb"
    (version / "saved_model.pb").rename(graph)
    (version / "saved_model.pb").symlink_to(graph)
    with in_thread(tmp_path) as (url, _):
        assert post(f"{url}/v1/models/m:predict", {"instances": [1.0]}) == (
            200,
            {"predictions": [2.0]},
        )
