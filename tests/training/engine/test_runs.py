import contextlib

import pytest

from training.base.errors import InputError
from training.classify.config import ClassifyConfig
from training.engine.runs import Run, finish_all


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1', "\x00", None])
def test_damaged_descriptions_of_a_run(tmp_path, content):
    run = Run(tmp_path / "run")
    run.start(ClassifyConfig(), {"a": 1})
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


def test_finish_all_trains_what_is_not_finished(tmp_path, capsys):
    configs = [ClassifyConfig(name=name) for name in ("first", "second")]
    done = Run(tmp_path / "first")
    done.start(configs[0], {"digest": "x"})
    done.finish({"loss": 1.0})

    def train(config, run):
        assert config is configs[1]
        run.start(config, {"digest": "x"})
        run.finish({"loss": 2.0})

    results = finish_all(configs, tmp_path, train, {"digest": "x"})
    assert results == [{"loss": 1.0}, {"loss": 2.0}]
    assert capsys.readouterr().out == "run 2 of 2: second\n"
    with pytest.raises(InputError):
        finish_all(configs, tmp_path, train, {"digest": "y"})


def test_finish_all_leaves_a_run_to_the_process_that_trains_it(tmp_path, capsys):
    configs = [ClassifyConfig(name=name) for name in ("first", "second", "third")]
    elsewhere, trained = contextlib.ExitStack(), []
    for name in ("first", "second"):
        assert elsewhere.enter_context(Run(tmp_path / name).locked())

    def train(config, run):
        trained.append(config.name)
        run.start(config, {})
        run.finish({"loss": 3.0})
        if config is configs[2]:  # the other process finishes one of its runs, and is ended
            Run(tmp_path / "first").start(configs[0], {})
            Run(tmp_path / "first").finish({"loss": 1.0})
            elsewhere.close()

    results = finish_all(configs, tmp_path, train)
    assert results == [{"loss": 1.0}, {"loss": 3.0}, {"loss": 3.0}]
    assert trained == ["third", "second"]
    assert capsys.readouterr().out.splitlines() == [
        "run 3 of 3: third",
        "waiting for second, which another process trains",
    ]
