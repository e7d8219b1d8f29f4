import threading
import time

import pytest

from keras_tnattn_studies.many import finish_all
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.run import Run


def test_finish_all_trains_what_is_not_finished(tmp_path, capsys):
    configs = [ClassifyConfig(name=name) for name in ("first", "second")]
    done = Run(tmp_path / "first")
    done.start_or_check(configs[0], {"digest": "x"})
    done.finish({"loss": 1.0})

    def train(config, run):
        assert config is configs[1]
        run.start_or_check(config, {"digest": "x"})
        run.finish({"loss": 2.0})

    results = finish_all(configs, tmp_path, train, {"digest": "x"})
    assert results == [{"loss": 1.0}, {"loss": 2.0}]
    assert capsys.readouterr().out == "run 2 of 2: second\n"
    with pytest.raises(InputError):
        finish_all(configs, tmp_path, train, {"digest": "y"})


def test_finish_all_leaves_a_run_to_the_process_that_trains_it(tmp_path, capsys):
    configs = [ClassifyConfig(name=name) for name in ("first", "second", "third", "fourth")]
    is_locked, trained = threading.Event(), []

    def train(config, run):
        trained.append(config.name)
        run.start_or_check(config, {})
        run.finish({"loss": 3.0})

    def other_process():  # it finishes one of its runs, and is killed
        with Run(tmp_path / "first").lock(), Run(tmp_path / "second").lock():
            is_locked.set()
            time.sleep(2)
            Run(tmp_path / "first").start_or_check(configs[0], {})
            Run(tmp_path / "first").finish({"loss": 1.0})

    class Finishing(Run):
        """A run that another process finishes before this one has the lock."""

        def lock(self, wait=False):
            if self.folder.name == "fourth" and not self.exists:
                self.start_or_check(configs[3], {})
                self.finish({"loss": 4.0})
            return super().lock(wait)

    other = threading.Thread(target=other_process)
    other.start()
    is_locked.wait()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras_tnattn_studies.many.Run", Finishing)
        results = finish_all(configs, tmp_path, train)
    other.join()
    assert [result["loss"] for result in results] == [1.0, 3.0, 3.0, 4.0]
    assert trained == ["third", "second"]
    assert capsys.readouterr().out.splitlines() == [
        "run 3 of 4: third",
        f"waiting for {tmp_path / 'first'}, which another process is training",
        "run 2 of 4: second",
    ]
