"""The graph of the options of `nodes`."""

from keras_tnattn_train.data.graphs import LabeledGraph, load_graph
from keras_tnattn_train.nodes.config import NodesConfig


def read_graph(config: NodesConfig) -> LabeledGraph:
    """Reads the graph of a config."""
    return load_graph(
        config.dataset,
        config.data_dir,
        config.validation_fraction,
        config.test_fraction,
        config.seed,
    )
