"""The steps of a training on a graph, its checkpoints, and the weights of the edges."""

import keras
import numpy as np
import pytest
from conformance import assert_same_arrays
from planted_graph import write

from keras_tnattn_train.nodes import fitting
from keras_tnattn_train.nodes.config import NodesConfig
from keras_tnattn_train.nodes.fitting import fit, inputs_of
from keras_tnattn_train.nodes.train import _trainer
from keras_tnattn_train.runs.checkpoints import load_state, load_weights
from keras_tnattn_train.runs.run import Run

NODES, EDGES = 20, 80


def random_edges(rng):
    """Rows (one node, another, weight) in no order; all weights differ."""
    pairs = [(i, j) for i in range(NODES) for j in range(NODES) if i < j]
    chosen = [pairs[k] for k in rng.permutation(len(pairs))[:EDGES]]
    weights = rng.permutation(EDGES) + 0.5
    ends = [pair[:: rng.choice([-1, 1])] for pair in chosen]
    return [(*pair, float(weight)) for pair, weight in zip(ends, weights, strict=True)]


@pytest.fixture
def weighted(tmp_path):
    """The folder of a graph with random features, labels and weights, and its edges."""
    rng, folder = np.random.default_rng(0), tmp_path / "weighted"
    folder.mkdir()
    rows = [f"{'xyz'[i % 3]},{rng.random():.4f},{rng.random():.4f}" for i in range(NODES)]
    (folder / "nodes.csv").write_text("\n".join(["label,a,b", *rows]) + "\n")
    edges = random_edges(rng)
    lines = [f"{source},{target},{weight}" for source, target, weight in edges]
    (folder / "edges.csv").write_text("\n".join(["source,target,weight", *lines]) + "\n")
    return str(folder), edges


def config(dataset, **options):
    return NodesConfig(dataset=dataset, layer="gcn", dropout=0.0, **options)


def test_each_edge_has_its_weight_in_both_directions(weighted):
    dataset, edges = weighted
    graph = config(dataset).read_graph()
    inputs = inputs_of(graph, _trainer(config(dataset), graph).model)
    assert inputs["edges"].shape == (1, 2 * EDGES, 2)
    ends = map(tuple, inputs["edges"][0].tolist())
    found = dict(zip(ends, inputs["edge_weights"][0].tolist(), strict=True))
    want = {(source, target): weight for source, target, weight in edges}
    assert found == want | {(target, source): w for (source, target), w in want.items()}


def test_the_losses_are_those_of_the_weighted_graph(weighted):
    dataset, edges = weighted
    options = config(dataset, num_layers=1)
    graph = options.read_graph()
    trainer = _trainer(options, graph)
    # Kipf and Welling, section 2: self-loops are added, then both sides divided by root degrees.
    adjacency = np.eye(NODES)
    for source, target, weight in edges:
        adjacency[source, target] = adjacency[target, source] = weight
    roots = np.sqrt(adjacency.sum(axis=1))
    kernel, bias = (keras.ops.convert_to_numpy(w) for w in trainer.model.trainable_variables)
    logits = (adjacency / np.outer(roots, roots)) @ graph.features @ kernel + bias
    likelihoods = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    losses = -likelihoods[np.arange(NODES), graph.labels]
    right = logits.argmax(axis=1) == graph.labels
    for part, nodes in graph.parts.items():
        measured = trainer.measure(part)
        assert measured["loss"] == pytest.approx(losses[nodes].mean(), rel=1e-4)
        assert measured["accuracy"] == pytest.approx(right[nodes].mean())
    assert trainer.step()["loss"] == pytest.approx(losses[graph.parts["train"]].mean(), rel=1e-4)


def test_a_graph_without_weights_has_edges_of_weight_one(weighted, tmp_path):
    """As a model with weights reads it."""
    dataset, _ = weighted
    model = _trainer(config(dataset), config(dataset).read_graph()).model
    plain = config(write(tmp_path / "planted")).read_graph()
    weights = inputs_of(plain, model)["edge_weights"]
    np.testing.assert_array_equal(weights, np.ones((1, len(plain.edges))))


def test_a_checkpoint_has_the_best_and_the_current_weights(weighted, tmp_path):
    dataset, _ = weighted
    options = config(dataset)
    trainer = _trainer(options, options.read_graph())
    run = Run(tmp_path / "run")
    run.start_or_check(options, {})
    trainer.step()
    best = trainer.model.get_weights()
    rows = [{"epoch": epoch, **trainer.step()} for epoch in (1, 2, 3)]
    current = trainer.model.get_weights()
    assert any((one != other).any() for one, other in zip(best, current, strict=True))
    fitting._save(trainer, run, rows, best, best_epoch=1)

    def assert_weights(want):
        assert_same_arrays(trainer.model.get_weights(), want)

    assert_weights(current)  # with which the training goes on
    checkpoints = run.folder / "checkpoints"
    assert load_weights(trainer.model, checkpoints / "best.npz", "") == 1
    assert_weights(best)
    assert load_state(trainer.model, checkpoints / "last.npz") == 3
    assert_weights(current)
    trainer.model.set_weights(best)
    restored_rows, restored_best = fitting._restore(trainer, run)
    assert_weights(current)
    assert [row["loss"] for row in restored_rows] == [row["loss"] for row in rows]
    assert_same_arrays(restored_best, best)


def best_in_epoch_2(trainer):
    """Makes the validation of a trainer one whose loss is lowest in the second epoch."""
    count = trainer.model.optimizer.iterations
    trainer.measure = lambda part: {"loss": abs(int(count) - 2.0), "accuracy": 0.5}
    return trainer


def test_a_run_goes_on_from_an_epoch_that_is_not_the_best(weighted, tmp_path, monkeypatch):
    dataset, _ = weighted
    monkeypatch.setattr(fitting, "CHECKPOINT_EPOCHS", 4)
    options = config(dataset, epochs=8)
    graph = options.read_graph()
    uninterrupted = best_in_epoch_2(_trainer(options, graph))
    want_rows, stopping = fit(uninterrupted, options)
    assert stopping.best_epoch == 2
    want = uninterrupted.model.get_weights()

    run = Run(tmp_path / "run")
    run.start_or_check(options, {})
    interrupted = best_in_epoch_2(_trainer(options, graph))
    step = interrupted.step
    steps = iter([step] * 6 + [stop])
    interrupted.step = lambda: next(steps)()
    with pytest.raises(KeyboardInterrupt):
        fit(interrupted, options, run)
    resumed = best_in_epoch_2(_trainer(options, graph))
    rows, stopped = fit(resumed, options, run)
    assert [row["loss"] for row in rows] == [row["loss"] for row in want_rows]
    assert stopped == stopping
    assert_same_arrays(resumed.model.get_weights(), want)


def stop():
    raise KeyboardInterrupt
