"""A run folder that an earlier version left, interrupted after one of two epochs."""

import csv
import shutil
from pathlib import Path

import pytest

from keras_tnattn_train.cli import train as main

EARLIER = Path(__file__).parents[1] / "data/earlier_runs"


@pytest.mark.slow
def test_it_resumes_to_what_the_earlier_version_measured(tmp_path):
    shutil.copytree(EARLIER / "rules", tmp_path / "run")
    assert main(["rules", "--run-dir", str(tmp_path / "run"), "--resume"]) == 0
    rows = [
        list(csv.DictReader(path.read_text().splitlines()))
        for path in (tmp_path / "run/metrics.csv", EARLIER / "rules-whole-metrics.csv")
    ]
    for row, expected in zip(*rows, strict=True):
        for name in ("epoch", "loss", "accuracy"):
            assert float(row[name]) == pytest.approx(float(expected[name]), rel=1e-4)
