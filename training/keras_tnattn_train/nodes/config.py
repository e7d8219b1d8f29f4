"""The options of `nodes`."""

from typing import Any

from keras_tnattn_train.data.graphs import GRAPH_SETS, LabeledGraph, load_graph
from keras_tnattn_train.data.reading import short_name
from keras_tnattn_train.options.options import (
    DATA,
    EITHER,
    MODEL,
    TRAINING,
    RunConfig,
    epochs_option,
    name_option,
    option,
)

LAYERS = {
    "gat": "graph attention",
    "gcn": "graph convolution",
    "filter": "graph filter with trained coefficients",
}


def _default_name(values: dict[str, Any]) -> str:
    return f"{short_name(values['dataset'])}-{values['layer']}-{values['seed']}"


def _default(gat: Any, other: Any) -> Any:
    return lambda values: gat if values["layer"] == "gat" else other


class NodesConfig(RunConfig):
    """The options of `nodes`: data, model, training and output."""

    command = "nodes"

    dataset: str = option(
        "cora",
        DATA,
        "; ".join(f"{name}: {text} (needs --data-dir)" for name, text in GRAPH_SETS.items())
        + "; or the path of a folder with two tables, nodes (label; if wanted id and split; words "
        "or columns of numbers) and edges (source, target; if wanted weight)",
        given=EITHER,
    )
    data_dir: str | None = option(
        None,
        DATA,
        "folder that holds the folders of the named graphs, such as cora/nodes.tsv.xz",
        metavar="DIR",
    )

    validation_fraction: float | None = option(
        None,
        DATA,
        "share of the labeled nodes for validation, if there is no column split (default: 0.2)",
        gt=0,
        lt=1,
    )
    test_fraction: float | None = option(
        None,
        DATA,
        "share of the labeled nodes for the test, if there is no column split (default: 0.2)",
        gt=0,
        lt=1,
    )

    layer: str = option(
        "gat",
        MODEL,
        "; ".join(f"{name}: {text}" for name, text in LAYERS.items()),
        choices=tuple(LAYERS),
    )
    num_layers: int = option(2, MODEL, "number of layers", ge=1, le=100)
    hidden_dim: int = option(
        _default(8, 16),
        MODEL,
        "features of a hidden layer, of each head for gat (default: 8 for gat, else 16)",
        ge=1,
        le=65_536,
    )
    num_heads: int = option(8, MODEL, "heads of a hidden layer (gat)", ge=1, le=256)
    output_heads: int = option(1, MODEL, "heads of the last layer, averaged (gat)", ge=1, le=256)
    filter_order: int = option(3, MODEL, "coefficients of the filter (filter)", ge=2, le=100)
    dropout: float = option(
        _default(0.6, 0.5),
        MODEL,
        "dropout rate of the inputs of each layer, and of the coefficients of gat (default: 0.6 "
        "for gat, else 0.5)",
        ge=0,
        lt=1,
    )
    l2: float = option(5e-4, MODEL, "coefficient of the L2 penalty on kernels", ge=0)

    epochs: int = epochs_option(
        10_000, "maximum number of epochs; each is one step on the whole graph"
    )
    patience: int = option(
        100,
        TRAINING,
        "stop after this many epochs without a lower validation loss or higher validation "
        "accuracy; the last epoch in which neither was worse than before is kept",
        ge=1,
        le=100_000,
    )
    learning_rate: float = option(
        _default(5e-3, 1e-2),
        TRAINING,
        "learning rate of Adam (default: 0.005 for gat, else 0.01)",
        gt=0,
    )
    name: str = name_option(_default_name, "DATASET-LAYER-SEED")

    def check_together(self) -> None:
        reason = f"layer={self.layer!r}, which has none"
        if self.layer != "gat":
            self.refuse(reason, "num_heads", "output_heads")
        if self.layer != "filter":
            self.refuse(reason, "filter_order")

    def read_graph(self) -> LabeledGraph:
        """Reads the graph."""
        fractions = self.validation_fraction, self.test_fraction
        return load_graph(self.dataset, self.data_dir, *fractions, self.seed)
