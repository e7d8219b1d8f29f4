import gzip

import numpy as np
import pytest

from keras_tnattn_train.data.graphs import load_graph
from keras_tnattn_train.options.errors import InputError

NODES = "split,label,words\ntrain,b,0 2\nvalidation,10,1\ntest,b,\nnone,2,3 1 0 2\n"
EDGES = "source,target\n0,1\n2,1\n1,0\n3,3\n"


def folder(path, nodes=NODES, edges=EDGES):
    path.mkdir(parents=True, exist_ok=True)
    (path / "nodes.csv").write_text(nodes)
    with gzip.open(path / "edges.csv.gz", "wt") as file:
        file.write(edges)
    return str(path)


def test_two_tables(tmp_path):
    graph = load_graph(folder(tmp_path))
    assert graph.class_names == ("2", "10", "b")
    assert graph.labels.tolist() == [2, 1, 2, 0]
    expected = [[0.5, 0, 0.5, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0.25] * 4]
    np.testing.assert_array_equal(graph.features, expected)
    # Both directions, once each, without the loop.
    assert sorted(map(tuple, graph.edges.tolist())) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    assert {part: np.flatnonzero(nodes).tolist() for part, nodes in graph.parts.items()} == {
        "train": [0],
        "validation": [1],
        "test": [2],
    }


def test_columns_of_numbers(tmp_path):
    nodes = "size,label,split,age\n1,a,train,3\n2,b,test,0\n0,a,validation,5\n"
    graph = load_graph(folder(tmp_path, nodes, "source,target\n0,2\n"))
    np.testing.assert_array_equal(graph.features, [[0.25, 0.75], [1, 0], [0, 1]])


def test_a_named_graph_is_a_folder_of_the_data(tmp_path):
    folder(tmp_path / "cora")
    assert len(load_graph("cora", str(tmp_path)).labels) == 4
    with pytest.raises(InputError, match="Expected --data-dir"):
        load_graph("cora")


@pytest.mark.parametrize(
    ("nodes", "edges", "part"),
    [
        (NODES, "source,target\n0,4\n", "nodes 0 to 3. Received: .*the nodes 0 to 4"),
        (NODES, "source,target\n", "no edges"),
        (NODES, "source,target\n0,x\n", "'x'"),
        (NODES, "from,to\n0,1\n", "a column 'source'"),
        (NODES.replace("none", "dev"), EDGES, "'dev'"),
        (NODES.replace("test,b", "none,b"), EDGES, "no test nodes"),
        (NODES.replace("0 2\n", "0 two\n"), EDGES, "'two'"),
        (NODES.replace("0 2\n", "0 -2\n"), EDGES, "a negative word"),
        (NODES.replace("words", "mass"), EDGES, "could not convert"),
        ("split,label\ntrain,a\ntest,b\nvalidation,a\n", EDGES, "nodes with features"),
        (NODES.replace(",10,", ",b,").replace(",2,", ",b,"), EDGES, "two classes or more"),
    ],
)
def test_tables_of_another_kind(tmp_path, nodes, edges, part):
    with pytest.raises(InputError, match=part):
        load_graph(folder(tmp_path, nodes, edges))


def test_no_such_folder(tmp_path):
    with pytest.raises(InputError, match="Expected dataset to be one of cora"):
        load_graph("pubmed")
    with pytest.raises(InputError, match=r"Expected a table nodes\.tsv or \.csv"):
        load_graph(str(tmp_path))


def test_the_fingerprint_changes_with_the_graph(tmp_path):
    graphs = [
        load_graph(folder(tmp_path / "a")),
        load_graph(folder(tmp_path / "b", edges=EDGES + "0,2\n")),
        load_graph(folder(tmp_path / "c", NODES.replace("0 2\n", "0 3\n"))),
        load_graph(folder(tmp_path / "d", NODES.replace("none,2", "train,2"))),
    ]
    assert len({graph.fingerprint() for graph in graphs}) == 4
    assert load_graph(folder(tmp_path / "e")).fingerprint() == graphs[0].fingerprint()
