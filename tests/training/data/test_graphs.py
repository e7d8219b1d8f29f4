import gzip
import itertools

import numpy as np
import pytest

from keras_tnattn_train.data.graphs import canonical_name, load_graph
from keras_tnattn_train.options.errors import InputError

NODES = "split,label,words\ntrain,b,0 2\nvalidation,10,1\ntest,b,\nnone,2,3 1 0 2\n"
EDGES = "source,target\n0,1\n2,1\n1,0\n3,3\n"


def folder(path, nodes=NODES, edges=EDGES):
    path.mkdir(parents=True, exist_ok=True)
    (path / "nodes.csv").write_text(nodes)
    with gzip.open(path / "edges.csv.gz", "wt") as file:
        file.write(edges)
    return str(path)


def parts_of(graph):
    return {part: np.flatnonzero(nodes).tolist() for part, nodes in graph.parts.items()}


def test_two_tables(tmp_path):
    graph = load_graph(folder(tmp_path))
    assert graph.class_names == ("2", "10", "b")
    assert graph.labels.tolist() == [2, 1, 2, 0]
    expected = [[0.5, 0, 0.5, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0.25] * 4]
    np.testing.assert_array_equal(graph.features, expected)
    # Both directions, once each, without the loop.
    assert sorted(map(tuple, graph.edges.tolist())) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    assert parts_of(graph) == {"train": [0], "validation": [1], "test": [2]}
    assert graph.edge_weights is graph.names is graph.labeled is None
    assert graph.notes[-1] == "1 self-loop dropped: the layers add one to every node"


def test_columns_of_numbers(tmp_path):
    nodes = "size,label,split,age\n1,a,train,3\n2,b,test,0\n0,a,validation,5\n"
    graph = load_graph(folder(tmp_path, nodes, "source,target\n0,2\n"))
    np.testing.assert_array_equal(graph.features, [[0.25, 0.75], [1, 0], [0, 1]])


def test_features_of_both_signs_are_divided_by_their_magnitudes(tmp_path):
    nodes = "label,split,x,y\na,train,1,-1.0001\nb,test,-3,1\na,validation,0,0\n"
    graph = load_graph(folder(tmp_path, nodes, "source,target\n0,2\n"))
    np.testing.assert_allclose(
        graph.features, [[0.499975, -0.500025], [-0.75, 0.25], [0, 0]], rtol=1e-5
    )
    assert any("some features are negative" in note for note in graph.notes)


def test_named_nodes_are_no_features(tmp_path):
    nodes = (
        ",id,label,split,x,index\n0,amy,a,train,1,7\n1, bob ,b,test,2,8\n2,3.0,a,validation,4,9\n"
    )
    edges = "source,target\namy,bob\n3,amy\n"
    graph = load_graph(folder(tmp_path, nodes, edges))
    assert graph.names == ("amy", "bob", "3")
    np.testing.assert_array_equal(graph.features, [[1], [1], [1]])
    assert sorted(map(tuple, graph.edges.tolist())) == [(0, 1), (0, 2), (1, 0), (2, 0)]
    assert "columns of nodes.csv that are not used: index" in graph.notes
    assert "column without a name of nodes.csv left out" in graph.notes
    with pytest.raises(InputError, match=r"row 3: the node 'amy', which row 2 is already"):
        load_graph(folder(tmp_path / "b", nodes.replace(" bob ", "amy"), edges))


@pytest.mark.parametrize(
    "names",
    ["0.0 0", "12 12", "+7 7", "007 7", "3. 3", "3.5 3.5", "-1 -1", "a.0 a.0", "1.0.0 1.0.0"],
)
def test_numbers_of_nodes_as_pandas_writes_them(names):
    name, canonical = names.split()
    assert canonical_name(f" {name} ") == canonical


class TestEdges:
    def graph(self, path, edges):
        return load_graph(folder(path, edges=edges))

    def test_weights(self, tmp_path):
        edges = "source,target,Weight,kind\n0,1,2.5,x\n1,0,2.5,x\n2,1,1e1,y\n3,0,0,y\n"
        graph = self.graph(tmp_path, edges)
        got = dict(zip(map(tuple, graph.edges.tolist()), graph.edge_weights.tolist(), strict=True))
        assert got == {(0, 1): 2.5, (1, 0): 2.5, (1, 2): 10, (2, 1): 10}
        assert graph.notes[-2:] == (
            "1 edge of weight 0 dropped",
            "columns of edges.csv.gz that are not used: kind",
        )

    def test_all_bad_rows_are_listed(self, tmp_path):
        edges = "source,target,weight\n0,9,1\n0,1,x\n0,2,-1\n0,1,1\n1,0,2\n0\n"
        with pytest.raises(InputError) as error:
            self.graph(tmp_path, edges)
        for part in (
            "5 bad rows: row 2: '9', which is no node; row 3: the weight 'x'",
            "row 4: the weight '-1', which is not a number >= 0",
            "row 6: an edge of another weight, 1, before; row 7: 1 field instead of 3",
            "the nodes are 0 to 3",
        ):
            assert part in str(error.value)
        assert "--skip-bad-rows" not in str(error.value)


class TestSplit:
    def nodes(self, labels):
        rows = [f"n{i},{label},{i}" for i, label in enumerate(labels)]
        return "\n".join(["name,label,x", *rows]) + "\n"

    def test_by_fractions_and_seed(self, tmp_path):
        path = folder(tmp_path, self.nodes("ab" * 50), "source,target\nn1,n2\n")
        graph = load_graph(path, test_fraction=0.3, validation_fraction=0.1, seed=1)
        parts = parts_of(graph)
        sizes = {part: len(nodes) for part, nodes in parts.items()}
        assert sizes == {"train": 60, "validation": 10, "test": 30}
        assert sorted(itertools.chain(*parts.values())) == list(range(100))
        assert [graph.labels[nodes].sum() for nodes in parts.values()] == [30, 5, 15]
        assert parts == parts_of(load_graph(path, None, 0.1, 0.3, 1))
        assert parts != parts_of(load_graph(path, None, 0.1, 0.3, 2))
        assert [len(nodes) for nodes in parts_of(load_graph(path)).values()] == [60, 20, 20]
        with pytest.raises(InputError, match=r"validation_fraction \+ test_fraction < 1"):
            load_graph(path, None, 0.5, 0.5)

    def test_nodes_without_a_label_are_in_no_part(self, tmp_path):
        path = folder(tmp_path, self.nodes([*"ab" * 20, "", " "]), "source,target\nn1,n2\n")
        graph = load_graph(path)
        assert graph.class_names == ("a", "b")
        assert np.flatnonzero(~graph.labeled).tolist() == [40, 41]
        assert sorted(itertools.chain(*parts_of(graph).values())) == list(range(40))
        assert "2 nodes without a label, whose classes are predicted only" in graph.notes

    def test_a_column_excludes_fractions(self, tmp_path):
        with pytest.raises(InputError, match="no validation_fraction and test_fraction with a col"):
            load_graph(folder(tmp_path), test_fraction=0.5)

    def test_bad_rows(self, tmp_path):
        nodes = NODES.replace("none", "dev").replace("test,b", "test,")
        with pytest.raises(InputError, match=r"row 4: a test node without.*row 5: the split 'dev'"):
            load_graph(folder(tmp_path, nodes))


@pytest.mark.parametrize(
    ("nodes", "edges", "part"),
    [
        (NODES, "source,target\n0,4\n", "row 2: '4', which is no node.*nodes are 0 to 3"),
        (NODES, "source,target\n", "no edges"),
        (NODES, "source,target\n0,1\n0,0.5\n", "row 3: '0.5', which is no node"),
        (NODES, "from,to\n0,1\n", "a column 'source'"),
        (NODES.replace("test,b", "none,b"), EDGES, "no test nodes"),
        (NODES.replace("0 2\n", "0 two\n"), EDGES, "row 2: 'two' in words"),
        (NODES.replace("0 2\n", "0 -2\n"), EDGES, "row 2: '-2' in words"),
        (NODES.replace("10,1\n", "10,2000000000\n"), EDGES, "the word 2000000000 in row 3"),
        (NODES.replace("words", "mass"), EDGES, "row 2: '0 2' in the column mass"),
        ("split,label,x\ntrain,a,nan\ntest,b,1\nvalidation,a,1e300\n", EDGES, "row 2: 'nan'"),
        (
            "split,label,x\ntrain,a,1\ntest,b,1\nvalidation,a,1e300\n",
            EDGES,
            "row 4: '1e300' in the column x, which is no finite float32",
        ),
        ("split,label\ntrain,a\ntest,b\nvalidation,a\n", EDGES, "nodes with features"),
        (NODES.replace(",10,", ",b,").replace(",2,", ",b,"), EDGES, "two classes or more"),
        ("label,label,x\na,b,1\n", EDGES, "columns 1 and 2 are both called 'label'"),
    ],
)
def test_tables_of_another_kind(tmp_path, nodes, edges, part):
    with pytest.raises(InputError, match=part):
        load_graph(folder(tmp_path, nodes, edges))


def test_a_named_graph_is_a_folder_of_the_data(tmp_path):
    folder(tmp_path / "cora")
    assert len(load_graph("cora", str(tmp_path)).labels) == 4
    with pytest.raises(InputError, match="Expected --data-dir"):
        load_graph("cora")


def test_the_names_of_the_tables(tmp_path):
    with pytest.raises(InputError, match="Expected dataset to be one of cora"):
        load_graph("pubmed")
    with pytest.raises(InputError, match=r"Expected a table nodes\.tsv or \.csv"):
        load_graph(str(tmp_path))
    folder(tmp_path)
    (tmp_path / "nodes.csv").rename(tmp_path / "Nodes.CSV")
    assert len(load_graph(str(tmp_path)).labels) == 4
    (tmp_path / "nodes.tsv").write_text("")
    with pytest.raises(InputError, match=r"with Nodes\.CSV, nodes\.tsv"):
        load_graph(str(tmp_path))


def test_the_fingerprint_changes_with_the_graph(tmp_path):
    weighted = "source,target,weight\n0,1,{}\n2,1,1\n"
    graphs = [
        load_graph(folder(tmp_path / "a")),
        load_graph(folder(tmp_path / "b", edges=EDGES + "0,2\n")),
        load_graph(folder(tmp_path / "c", NODES.replace("0 2\n", "0 3\n"))),
        load_graph(folder(tmp_path / "d", NODES.replace("none,2", "train,2"))),
        load_graph(folder(tmp_path / "w", edges=weighted.format(1))),
        load_graph(folder(tmp_path / "v", edges=weighted.format(2))),
    ]
    assert len({graph.fingerprint() for graph in graphs}) == 6
    assert load_graph(folder(tmp_path / "e")).fingerprint() == graphs[0].fingerprint()
