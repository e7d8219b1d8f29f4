import math

import numpy as np
import pytest
from planted_graph import write
from run_folders import assert_refused

from keras_tnattn_studies import compare_nodes
from keras_tnattn_studies.reproduce import main


def test_the_table_has_means_and_extremes_by_layer():
    rows = {
        ("gcn", seed): {"weights": 1200, "test_accuracy": share, "epochs": 40, "seconds": 2.0}
        for seed, share in enumerate((0.75, 0.5, 0.625))
    }
    header, _, line = compare_nodes.table(rows).splitlines()
    names, cells = ([cell.strip() for cell in x.split("|")[1:-1]] for x in (header, line))
    assert dict(zip(names, cells, strict=True)) == {
        **{"layer": "GCN", "weights": "1,200", "seeds": "3", "test %": "62.5 ± 12.5"},
        **{"lowest": "50.0", "highest": "75.0", "epochs": "40.0 ± 0.0", "seconds": "2.0 ± 0.0"},
    }


@pytest.mark.slow
def test_several_layers_and_seeds_in_one_table(tmp_path, capsys):
    graph = write(tmp_path / "planted")
    folder = tmp_path / "table"
    arguments = ["compare-nodes", "--dataset", graph, "--run-dir", str(folder), "--epochs", "25"]
    arguments += ["--learning-rate", "0.05", "--layers"]
    assert main([*arguments, "gcn", "filter", "--seeds", "0"]) == 0
    first = (folder / "seeds.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in first[1:]] == [["filter", "0"], ["gcn", "0"]]
    capsys.readouterr()

    assert main([*arguments, "gcn", "--seeds", "0", "1"]) == 0
    printed = capsys.readouterr().out
    assert "gcn, seed 1" in printed
    assert "gcn, seed 0" not in printed
    rows = (folder / "seeds.csv").read_text().splitlines()
    assert set(first) < set(rows)
    accuracies = [100 * float(row.split(",")[3]) for row in rows if row.startswith("gcn,")]
    table = (folder / "table.md").read_text(encoding="utf-8")
    assert table in printed
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    deviation = abs(accuracies[0] - accuracies[1]) / math.sqrt(2)
    assert cells[2][0] == "GCN"
    assert cells[2][2:4] == ["2", f"{np.mean(accuracies):.1f} ± {deviation:.1f}"]
    assert cells[3][:1] + cells[3][2:3] == ["FILTER", "1"]

    assert_refused(capsys, [*arguments, "gcn", "--hidden-dim", "3"], "hidden_dim=3", main=main)
    (folder / "seeds.csv").write_text("layer,seed\ngcn,0\n")
    assert_refused(capsys, [*arguments, "gcn"], "seeds.csv", "Delete it", main=main)
