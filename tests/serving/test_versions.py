import os
import shutil
import threading

import pytest
from serving_models import write_factor as write
from serving_servers import get, in_thread, post, wait_for

from keras_tnattn_serving import repository as repository_module
from keras_tnattn_serving.__main__ import _hint


def states(url):
    return {v["version"]: v["state"] for v in get(f"{url}/v1/models/m")[1]["model_version_status"]}


def answer(url, version=None):
    path = "m" if version is None else f"m/versions/{version}"
    code, body = post(f"{url}/v1/models/{path}:predict", {"instances": [1.0]})
    return body["predictions"][0] if code == 200 else code


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "m", 1, 1.0)
    return tmp_path / "m"


def test_a_new_version_takes_over_and_a_removed_one_goes(folder):
    with in_thread(folder.parent) as (url, _):
        assert answer(url) == answer(url, 1) == 1.0
        write(folder, 12, 12.0)
        wait_for(lambda: states(url) == {"12": "AVAILABLE", "1": "END"})
        assert answer(url) == 12.0
        assert answer(url, 1) == 404
        shutil.rmtree(folder / "12")  # back to the one before
        wait_for(lambda: states(url)["1"] == "AVAILABLE" and states(url)["12"] == "END")
        assert answer(url) == 1.0
        shutil.rmtree(folder / "1")
        wait_for(lambda: answer(url) == 404)
        assert get(f"{url}/v2/health/ready")[0] == 503


def test_a_version_whose_files_change_is_loaded_again(folder, tmp_path_factory):
    other = write(tmp_path_factory.mktemp("other"), 1, 5.0)
    with in_thread(folder.parent) as (url, inference):
        former = inference.repository.versions("m")[0]
        os.utime(folder / "1/saved_model.pb", (1, 1))  # nothing else changes
        wait_for(lambda: former.loaded is None)
        first = inference.repository.versions("m")[0]
        shutil.copytree(other, folder / "1", dirs_exist_ok=True)
        seen = set()
        wait_for(lambda: seen.add(answer(url)) or 5.0 in seen)
        assert seen <= {1.0, 5.0}  # the one before answers meanwhile
        assert states(url) == {"1": "AVAILABLE"}
        assert first.loaded is None
        (folder / "1/saved_model.pb").write_bytes(b"?")
        wait_for(lambda: inference.repository.versions("m")[0].files != first.files)
        assert answer(url) == 5.0  # what cannot be loaded replaces nothing


def test_a_version_that_returns_while_it_is_used_stays(folder):
    repository = repository_module.Repository(folder.parent, 1, 8)
    repository.refresh()
    with repository.use("m") as version:
        (folder / "1").rename(folder / "aside")
        repository.refresh()
        assert version.state is repository_module.State.UNLOADING
        (folder / "aside").rename(folder / "1")
        repository.refresh()
        assert repository.find("m") is version


def test_the_newest_versions_are_served_together(folder):
    write(folder, 2, 2.0)
    write(folder, 3, 3.0)
    with in_thread(folder.parent, served_versions=2) as (url, _):
        assert [answer(url, v) for v in (1, 2, 3, None)] == [404, 2.0, 3.0, 3.0]
        assert get(f"{url}/v2/models/m")[1]["versions"] == ["3", "2"]


@pytest.mark.parametrize("damage", ["graph", "weights", "no weights"])
def test_a_damaged_version_leaves_the_old_one_serving(folder, damage):
    path = write(folder, 2, 2.0)
    file = path / "saved_model.pb" if damage == "graph" else path / "variables"
    if damage == "no weights":
        shutil.rmtree(file)
    else:
        file = file if file.is_file() else next(file.glob("*.data-*"))
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
    with in_thread(folder.parent) as (url, _):
        assert answer(url) == 1.0
        assert states(url) == {"1": "AVAILABLE", "2": "END"}
        status = get(f"{url}/v1/models/m/versions/2")[1]["model_version_status"][0]["status"]
        assert status["error_code"] != "OK"
        assert status["error_message"]
        # Mended, it takes over.
        shutil.rmtree(path)
        write(folder, 2, 2.0)
        wait_for(lambda: answer(url) == 2.0)


def test_requests_in_flight_finish_on_their_version(folder):
    gate = threading.Event()
    gate.set()  # loading warms the version up
    write(folder, 2, 2.0, gate)
    with in_thread(folder.parent) as (url, inference):
        gate.clear()
        answers = []
        thread = threading.Thread(target=lambda: answers.append(answer(url)))
        thread.start()
        wait_for(lambda: inference.repository.versions("m")[0].requests == 1)
        shutil.rmtree(folder / "2")
        wait_for(lambda: states(url)["2"] == "UNLOADING")
        assert not answers
        gate.set()
        thread.join()
        assert answers == [2.0]
        wait_for(lambda: states(url)["2"] == "END")
        assert answer(url) == 1.0


def test_swaps_lose_no_request(folder):
    stop, wrong, count = threading.Event(), [], [0]

    def ask(url):
        while not stop.is_set():
            code, body = post(f"{url}/v1/models/m:predict", {"instances": [1.0, 1.0]})
            count[0] += 1
            if code != 200 or len(set(body["predictions"])) != 1:
                wrong.append((code, body))

    with in_thread(folder.parent, poll_s=0.05) as (url, _):
        threads = [threading.Thread(target=ask, args=(url,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for version in range(2, 6):
            write(folder, version, float(version))
            shutil.rmtree(folder / str(version - 1))
            wait_for(lambda version=version: answer(url) == version)
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert count[0] > 20


def test_what_is_no_version_is_left_alone(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    write(outside, 1, 9.0)
    (folder.parent / "linked").symlink_to(outside, target_is_directory=True)
    for name in ("007", "0", "latest", ".partial-3"):
        shutil.copytree(folder / "1", folder / name)
    with in_thread(folder.parent) as (url, _):
        assert states(url) == {"1": "AVAILABLE"}
        assert get(f"{url}/v1/models/linked")[0] == 404


def test_a_folder_that_cannot_be_read_does_not_stop_the_others(tmp_path, monkeypatch, caplog):
    for name in ("good", "secret"):
        write(tmp_path / name, 1, 1.0)
    repository = repository_module.Repository(tmp_path, 1, 8)
    repository.refresh()
    assert repository.available("secret") == [1]
    read = repository_module._folders

    def refusing(folder):
        if folder.name in ("secret", "unknown"):
            raise PermissionError(13, "Permission denied", str(folder))
        return read(folder)

    monkeypatch.setattr(repository_module, "_folders", refusing)
    (tmp_path / "unknown").mkdir()
    write(tmp_path / "good", 2, 2.0)
    repository.refresh()
    assert repository.available("good") == [2]
    assert repository.available("secret") == [1]  # as before
    assert "Permission denied" in caplog.text
    fresh = repository_module.Repository(tmp_path, 1, 8)
    fresh.refresh()
    assert fresh.scanned
    assert fresh.available("good") == [2]


def test_a_folder_without_models_is_explained(tmp_path):
    write(tmp_path / "m", 1, 1.0)
    assert f"give the one that it is in, {tmp_path}" in _hint(tmp_path / "m")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.keras").touch()
    assert f"--run-dir {tmp_path / 'run'} --resume --export" in _hint(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    assert "NAME/VERSION/ as --export writes them" in _hint(tmp_path / "empty")
