"""The command `nodes`."""

from keras_tnattn_train.commands import loader, training_command
from keras_tnattn_train.data.graphs import LabeledGraph
from keras_tnattn_train.nodes.config import NodesConfig
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.run import Run


def load(config: NodesConfig) -> LabeledGraph:
    """Reads the graph of a config, and prints its sizes."""
    graph = config.read_graph()
    parts = ", ".join(f"{nodes.sum():,} {part}" for part, nodes in graph.parts.items())
    print(
        f"{config.dataset}: {len(graph.labels):,} nodes in {len(graph.class_names)} classes "
        f"({parts}), {len(graph.edges) // 2:,} edges"
    )
    for note in graph.notes:
        print(f"  {note}")
    if graph.edge_weights is not None and config.layer == "gat":
        print("  the weights of the edges are not used: graph attention computes its own")
    return graph


def nodes(config: NodesConfig, run: Run) -> None:
    """Trains a classifier of nodes, and prints its accuracy."""
    graph = load(config)
    start_backend()  # takes seconds, so invalid input is reported first
    from keras_tnattn_train.nodes.train import train_nodes

    results = train_nodes(config, run, graph)
    print(
        f"accuracy: {results['train_accuracy']:.1%} on the training nodes, "
        f"{results['validation_accuracy']:.1%} on the validation nodes, "
        f"{results['test_accuracy']:.1%} on the test nodes\n"
        f"best epoch: {results['best_epoch']} of {results['epochs']}; parameters: "
        f"{results['parameters']['all']:,}; training: {results['seconds']:.0f} s"
    )


COMMAND = training_command(
    NodesConfig,
    nodes,
    "Train a classifier of the nodes of a graph",
    "Trains a network of graph attention, graph convolutions or graph filters on the classes of "
    "some nodes, and tests it on others. Writes the run folder: config.json, data.json, "
    "metrics.csv, results.json, predictions.csv, learning_curves.png, confusion_matrix.png, "
    "attention.png for gat, model.keras and checkpoints.",
    examples="""\
examples:
  train the paper's graph attention network on the citation graph in DIR/cora:
    keras-tnattn nodes --dataset cora --data-dir DIR
  train graph convolutions on your own graph, a folder with nodes.csv and edges.csv:
    keras-tnattn nodes --dataset mine --layer gcn
""",
    several_devices=False,
    predicting=loader("keras_tnattn_train.nodes.loading", "NodesRun"),
    columns=("node", "id", "name"),
    first=("resume", "dataset", "data_dir", "layer", "epochs", "seed", "name"),
)
