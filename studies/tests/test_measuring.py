import threading

import pytest

from keras_tnattn_studies.measuring import (
    measure_missing,
    read_measurements,
    write_measurements,
)
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.run import Run

KEYS = {"model": str, "seed": int}
COLUMNS = {"accuracy": float, "steps": int}
OUTCOME_KEYS = {"layer": str, "seed": int}
OUTCOME_COLUMNS = {"outcome": str, "epochs": int}


def test_only_what_is_missing_is_measured(tmp_path):
    path, measured, reported = tmp_path / "table.csv", [], []

    def measure(model, seed):
        if seed == 2:
            raise KeyboardInterrupt
        measured.append((model, seed))
        return {"accuracy": seed / 4, "steps": 10, "more": "left out"}

    def run(*wanted):
        return measure_missing(
            path,
            KEYS,
            COLUMNS,
            wanted,
            measure,
            lambda key: key,
            lambda rows: reported.append(len(rows)),
        )

    with pytest.raises(KeyboardInterrupt):
        run(("tsa", 1), ("mha", 1), ("tsa", 2))
    rows = run(("mha", 3), ("tsa", 1))
    assert measured == [("tsa", 1), ("mha", 1), ("mha", 3)]
    assert list(rows) == [("mha", 1), ("mha", 3), ("tsa", 1)]
    assert rows["mha", 3] == {"accuracy": 0.75, "steps": 10}
    assert path.read_text().splitlines() == [
        "model,seed,accuracy,steps",
        "mha,1,0.25,10",
        "mha,3,0.75,10",
        "tsa,1,0.25,10",
    ]
    assert reported == [1, 2, 3]


def test_rows_of_other_processes_are_kept(tmp_path):
    path, measured = tmp_path / "table.csv", []

    def measure(model, seed):
        measured.append(model)
        if model == "tsa":  # meanwhile another process measures two rows
            run("rgtn", "mha")
        return {"accuracy": 0.5, "steps": 10}

    def run(*models):
        wanted = [(model, 1) for model in models]
        return measure_missing(path, KEYS, COLUMNS, wanted, measure, lambda key: key)

    assert [model for model, _ in run("tsa", "mha")] == ["mha", "rgtn", "tsa"]
    assert measured == ["tsa", "rgtn", "mha"]

    def measure_last(model, seed):  # another process measures the last row, too
        run("dpa")
        return measure(model, seed)

    wanted = [("sdpa", 1), ("dpa", 1)]
    rows = measure_missing(path, KEYS, COLUMNS, wanted, measure_last, lambda key: key)
    assert {("sdpa", 1), ("dpa", 1)} <= rows.keys()
    with Run(tmp_path).lock():
        other = threading.Thread(target=run, args=("plga",))
        other.start()
        other.join(0.5)
        assert "plga" not in path.read_text()
    other.join()
    assert "plga" in path.read_text()


def test_missing_columns_are_an_error_unless_they_may_be_blank(tmp_path):
    path = tmp_path / "table.csv"
    arguments = (path, KEYS, COLUMNS, [("tsa", 0)], lambda model, seed: {"steps": 1}, str)
    with pytest.raises(KeyError, match="accuracy"):
        measure_missing(*arguments)
    assert measure_missing(*arguments, blanks=True) == {("tsa", 0): {"steps": 1}}
    assert path.read_text().splitlines()[1] == "tsa,0,,1"


def test_a_report_that_was_interrupted_is_made_up_for(tmp_path):
    reports = []

    def run(report):
        return measure_missing(
            tmp_path / "rows.csv",
            {"name": str},
            {"value": int},
            [("a",), ("b",)],
            lambda name: {"value": len(name)},
            lambda key: key,
            report,
        )

    run(lambda rows: None)
    rows = run(lambda rows: reports.append(dict(rows)))
    assert reports == [rows]
    assert len(rows) == 2


def test_a_table_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "table.csv"
    assert read_measurements(path, OUTCOME_KEYS, OUTCOME_COLUMNS) == {}
    rows = {("gat", 1): {"outcome": "trained", "epochs": 7}, ("gat", 0): {"outcome": "trained"}}
    write_measurements(path, rows, OUTCOME_KEYS, OUTCOME_COLUMNS)
    lines = path.read_text().splitlines()
    assert lines == ["layer,seed,outcome,epochs", "gat,1,trained,7", "gat,0,trained,"]
    result = read_measurements(path, OUTCOME_KEYS, OUTCOME_COLUMNS, blanks=True)
    assert list(result.items()) == list(rows.items())
    # Further columns do not matter.
    assert read_measurements(path, OUTCOME_KEYS, {"outcome": str})["gat", 0] == {
        "outcome": "trained"
    }
    with pytest.raises(InputError, match=r"for each layer and seed\. Received: .*table\.csv .*''"):
        read_measurements(path, OUTCOME_KEYS, OUTCOME_COLUMNS)


@pytest.mark.parametrize("text", ["layer,seed\ngat,0\n", "layer,seed,outcome,epochs\ngat,0,done\n"])
def test_a_table_without_a_column_or_a_cell(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(InputError, match="Delete it to measure all of them again"):
        read_measurements(path, OUTCOME_KEYS, OUTCOME_COLUMNS)
