import json
import threading
import time

import keras
import pytest

from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.finishing import finish
from keras_tnattn_train.runs.run import Run, open_run


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1', "\x00", None])
def test_damaged_descriptions_of_a_run(tmp_path, content):
    run = Run(tmp_path / "run")
    run.start_or_check(ClassifyConfig(), {"a": 1})
    run.finish({"loss": 1.0})
    for name, read in (
        ("results.json", lambda: run.results),
        ("data.json", lambda: run.check_data({"a": 1})),
        ("config.json", lambda: run.read_config(ClassifyConfig, {})),
    ):
        path = run.folder / name
        path.write_bytes(b"\xff" if content is None else content.encode())
        with pytest.raises(InputError, match="Received"):
            read()


def test_metrics_that_are_read_and_written_again_are_the_same(tmp_path):
    run = Run(tmp_path)
    run.write_metrics([{"epoch": n, "loss": 1 / 3, "seconds": 12.5} for n in (1, 2)])
    text = (tmp_path / "metrics.csv").read_text()
    run.write_metrics(run.read_metrics())
    assert (tmp_path / "metrics.csv").read_text() == text


def test_a_study_with_other_options_is_refused_without_waiting(tmp_path, capsys):
    study = Run(tmp_path / "study")
    study.start_study(ClassifyConfig(epochs=1), {})
    with study.lock(), pytest.raises(InputError, match="epochs=1"):
        study.start_study(ClassifyConfig(epochs=2), {})
    new = Run(tmp_path / "new")

    class Started(Run):
        """A study that another process starts before this one has the lock."""

        def lock(self, wait=False):
            if not self.exists:
                new.start_or_check(ClassifyConfig(epochs=1), {})
            return super().lock(wait)

    with pytest.raises(InputError, match="epochs=1"):
        Started(new.folder).start_study(ClassifyConfig(epochs=2), {})
    with study.lock():
        other = threading.Timer(0.1, study.start_study, (ClassifyConfig(epochs=1), {}))
        other.start()
        time.sleep(2)
        assert other.is_alive()
        assert "waiting for" in capsys.readouterr().out
    other.join()


def test_only_the_first_of_several_processes_locks_a_run(tmp_path, monkeypatch):
    with Run(tmp_path / "run").lock():
        monkeypatch.setattr("keras_tnattn_train.runs.run.process_id", lambda: 1)
        with open_run(tmp_path / "run").lock() as free:
            assert free


def test_an_empty_folder_is_a_new_run(tmp_path):
    run = Run(tmp_path)
    assert not run.exists
    run.start_or_check(ClassifyConfig(), {"a": 1})
    assert json.loads((tmp_path / "data.json").read_text()) == {"a": 1}
    with pytest.raises(InputError, match="which exists"):
        run.check_new()


def test_a_start_that_fails_leaves_no_folder_behind(tmp_path):
    run = Run(tmp_path / "some" / "where" / "run")

    def interrupted():
        with run.starting() as folder:
            assert folder.is_dir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_data_of_which_a_run_says_nothing_are_other_data(tmp_path):
    run = Run(tmp_path / "run")
    run.start_or_check(ClassifyConfig(), {"a": 1})
    run.check_data({"a": 1})
    for data in ({"a": 2}, {"a": 1, "b": 3}):
        with pytest.raises(InputError, match="Received: other texts"):
            run.check_data(data)


class TestFollowedRun:
    @pytest.fixture
    def followed(self, tmp_path, monkeypatch):
        monkeypatch.setenv("KERAS_DISTRIBUTION_PROCESS_ID", "1")
        return open_run(tmp_path / "runs/run")

    def test_writes_nothing(self, followed, tmp_path):
        with followed.lock() as free:
            assert free
        followed.start_or_check(ClassifyConfig(), {"a": 1})
        followed.write_metrics([{"epoch": 1}])
        assert followed.lead(lambda: 1 / 0) is None
        assert followed.tensorboard() == []
        assert list(tmp_path.iterdir()) == []

    def test_may_exist_already(self, followed):
        Run(followed.folder).start_or_check(ClassifyConfig(), {"a": 1})
        followed.check_new()
        followed.start_or_check(ClassifyConfig(), {"a": 1})
        with pytest.raises(InputError, match="data with which the run"):
            followed.start_or_check(ClassifyConfig(), {"a": 2})


def test_the_leader_works(tmp_path):
    assert open_run(tmp_path).lead(lambda: 3) == 3
    assert type(open_run(tmp_path)) is Run


def test_a_run_exports_if_asked_for(tmp_path):
    pytest.importorskip("tensorflow")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    def write(folder, version):
        path = folder / str(version)
        path.mkdir(parents=True)
        return path

    for export in (False, True):
        config = ClassifyConfig(export=export, saved_models=str(tmp_path / "saved"), name="mine")
        run = Run(tmp_path / f"run-{export}")
        run.start_or_check(config, {})
        results = finish(config, run, model, {"loss": 1.0}, write)
        assert (tmp_path / "saved/mine/1").exists() is export
        assert ("exported" in results) is export
        assert run.results == results
