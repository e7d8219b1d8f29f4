"""The README's Python runs as it stands there."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_python_block_runs(block, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The block about a trained model says what it is, not how it was trained.
    given = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(3)])
    names = {"model": given, "inputs": np.ones((8, 64), "float32")}
    exec(compile(block, str(README), "exec"), names)
    if "network" in names:
        assert names["network"](np.array([[0, 1, 1]])).shape == (1, 3, 2)
        assert names["encoder"](np.ones((1, 3, 8), "float32")).shape == (1, 3, 8)
        assert names["model"].output_shape == (None, None, 8000)
        names["hidden"].build((None, 1024))
        assert names["hidden"].count_params() == 1_168
    elif names["model"] is not given:
        names["model"].fit(np.ones((2, 200), "int32"), np.zeros(2, "int32"), verbose=0)
        assert names["model"].layers[1].count_params() == 320
    else:
        assert "low_rank" in capsys.readouterr().out
        small = keras.models.load_model("small.keras")
        assert 8 * small.count_params() <= given.count_params()


def test_nothing_is_left_to_fill_in():
    assert not re.search(r"@[A-Z]+@", README.read_text(encoding="utf-8"))


def test_there_are_blocks():
    assert len(BLOCKS) == 3
