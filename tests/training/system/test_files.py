import os

import pytest

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.system.files import read_measurements, replacing, write_measurements


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def interrupted():
        with replacing(path) as partial:
            partial.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


KEYS, COLUMNS = {"layer": str, "seed": int}, {"outcome": str, "epochs": int}


def test_a_table_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "table.csv"
    assert read_measurements(path, KEYS, COLUMNS) == {}
    rows = {("gat", 1): {"outcome": "trained", "epochs": 7}, ("gat", 0): {"outcome": "trained"}}
    write_measurements(path, rows, KEYS, COLUMNS)
    lines = path.read_text().splitlines()
    assert lines == ["layer,seed,outcome,epochs", "gat,1,trained,7", "gat,0,trained,"]
    result = read_measurements(path, KEYS, COLUMNS, blanks=True)
    assert list(result.items()) == list(rows.items())
    # Further columns do not matter.
    assert read_measurements(path, KEYS, {"outcome": str})["gat", 0] == {"outcome": "trained"}
    with pytest.raises(InputError, match=r"for each layer and seed\. Received: .*table\.csv .*''"):
        read_measurements(path, KEYS, COLUMNS)


@pytest.mark.parametrize("text", ["layer,seed\ngat,0\n", "layer,seed,outcome,epochs\ngat,0,done\n"])
def test_a_table_without_a_column_or_a_cell(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(InputError, match="Delete it to measure all of them again"):
        read_measurements(path, KEYS, COLUMNS)
