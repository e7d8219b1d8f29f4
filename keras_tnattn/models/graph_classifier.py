"""Classifier of the nodes of a graph."""

from collections.abc import Callable
from typing import Any

import keras

from keras_tnattn.checks import check_int
from keras_tnattn.layers import GraphAttention, GraphConvolution
from keras_tnattn.typing import Tensor

GRAPH_LAYERS = ("gat", "gcn", "filter")


def graph_classifier(
    num_features: int,
    num_classes: int,
    layer: str = "gat",
    num_layers: int = 2,
    hidden_dim: int | None = None,
    num_heads: int = 8,
    output_heads: int = 1,
    filter_order: int = 3,
    dropout: float | None = None,
    l2: float = 5e-4,
    weighted: bool = False,
) -> keras.Model:
    """Builds a classifier of nodes from layers of graph attention or graph convolution.

    Each layer has dropout of its inputs, and an activation unless it is the last one, which returns
    the logits. The defaults are the paper's network for Cora (Veličković et al.,
    "Graph Attention Networks", section 3.3): two layers, 8 heads of 8 features and ELU, then one
    head of as many features as classes. With `layer="gcn"` the layers are those of Kipf and Welling
    (2017): symmetric normalization, 16 hidden features, ReLU, dropout 0.5. With `layer="filter"`
    each is a graph filter of order `filter_order` with trained coefficients, and the rest is as for
    `"gcn"`. The model is not compiled.

    The penalty is `l2 / 2` times the sum of squares of all kernels for `"gat"`, and of the kernel
    of the first layer for the others, as in the published code, where `l2` is 5e-4.

    A sample is a whole graph; sample weights choose the nodes to train on. Rows of features are
    usually normalized to sum 1. For features `(L, F)`, edges `(E, 2)` and labels `(L,)`:

        model.compile(
            keras.optimizers.Adam(5e-3),
            keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="mean_with_sample_weight"
            ),
            weighted_metrics=["accuracy"],
        )
        data = {"features": features[None], "edges": edges[None]}
        model.fit(data, labels[None], sample_weight=is_train[None], batch_size=1, epochs=300)

    Args:
        num_features: Int, the number `F` of features of a node.
        num_classes: Int, the number `C` of classes, at least 2.
        layer: `"gat"` (default), `"gcn"` or `"filter"`.
        num_layers: Int, the number of layers. Defaults to 2.
        hidden_dim: Int, the features of a hidden layer, of each head for `"gat"`. Default: 8 for
            `"gat"`, else 16.
        num_heads: Int, the heads of a hidden `"gat"` layer, concatenated. Defaults to 8.
        output_heads: Int, the heads of the last `"gat"` layer, averaged. Defaults to 1; the paper
            uses 8 for Pubmed.
        filter_order: Int, the number of coefficients of `"filter"`. Defaults to 3.
        dropout: Dropout rate of the inputs of each layer and, for `"gat"`, of its coefficients.
            Default: 0.6 for `"gat"`, else 0.5.
        l2: Coefficient of the penalty. Defaults to 5e-4; 0 for none.
        weighted: Whether the model has a third input, `"edge_weights"` `(B, E)`, for `"gcn"` and
            `"filter"`; the attention of `"gat"` has no use for weights. Defaults to `False`.

    Returns:
        A functional model from `{"features": (B, L, F), "edges": (B, E, 2)}` to logits
        `(B, L, C)` in float32, for any `B`, `L` and `E`. Rows of `edges` are `(sender, receiver)`,
        both directions of an undirected edge; a negative id is padding. Self-loops are added. The
        layers are named `"layer_0"`, `"layer_1"`, ...; `attention_model(model)` returns the
        coefficients of `"gat"` layers.

    Raises:
        ValueError: For an unknown layer, a size out of range, or a weighted `"gat"`.

    Example:
        >>> model = graph_classifier(num_features=5, num_classes=3)
        >>> edges = keras.ops.array([[[0, 1], [1, 0]]])
        >>> tuple(model({"features": keras.ops.ones((1, 4, 5)), "edges": edges}).shape)
        (1, 4, 3)
    """
    if layer not in GRAPH_LAYERS:
        raise ValueError(f"Expected one of {GRAPH_LAYERS}. Received: layer={layer!r}")
    num_classes = check_int("num_classes", num_classes, at_least=2)
    num_layers = check_int("num_layers", num_layers)
    attends = layer == "gat"
    if attends and weighted:
        raise ValueError(f"Expected a layer that uses weights. Received: {layer=}, {weighted=}")
    if hidden_dim is None:
        hidden_dim = 8 if attends else 16
    if dropout is None:
        dropout = 0.6 if attends else 0.5
    features = keras.Input((None, check_int("num_features", num_features)), name="features")
    edges = keras.Input((None, 2), dtype="int32", name="edges")
    inputs = {"features": features, "edges": edges}
    graph = {"edges": edges}
    if weighted:
        weights = keras.Input((None,), name="edge_weights")
        inputs["edge_weights"] = graph["edge_weights"] = weights
    x = features
    for n in range(num_layers):
        last = n == num_layers - 1
        regularizer = keras.regularizers.L2(l2 / 2) if l2 and (attends or n == 0) else None
        common: dict[str, Any] = {
            "activation": None if last else "elu" if attends else "relu",
            "kernel_regularizer": regularizer,
            "name": f"layer_{n}",
        }
        x = keras.layers.Dropout(dropout, name=f"dropout_{n}")(x)
        width = num_classes if last else hidden_dim
        if attends:
            heads, combination = (output_heads, "mean") if last else (num_heads, "concat")
            node_layer = GraphAttention(heads, width, combination, dropout=dropout, **common)
        else:
            order = filter_order if layer == "filter" else None
            node_layer = GraphConvolution(width, "symmetric", order, **common)
        x = node_layer(x, **graph)
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(x)
    return keras.Model(inputs, logits, name="graph_classifier")


def attention_model(model: keras.Model) -> Callable[[dict[str, Tensor]], list[Tensor]]:
    """Returns a function from the inputs of a `"gat"` classifier to its attention coefficients.

    Args:
        model: A model that `graph_classifier(..., layer="gat")` returned.

    Returns:
        A function of the inputs that returns a list with one tensor `(B, H, E + L)` for each layer:
        the coefficients of the edges, then of the self-loops of the nodes.

    Example:
        >>> model = graph_classifier(num_features=5, num_classes=3)
        >>> edges = keras.ops.array([[[0, 1], [1, 0]]])
        >>> first, last = attention_model(model)(
        ...     {"features": keras.ops.ones((1, 4, 5)), "edges": edges}
        ... )
        >>> tuple(first.shape), tuple(last.shape)
        ((1, 8, 6), (1, 1, 6))
    """
    layers = [layer for layer in model.layers if isinstance(layer, GraphAttention)]
    named = {tensor.name: tensor for tensor in model.inputs}
    hidden = keras.Model(named, [layer.input[0] for layer in layers])

    def attention(inputs: dict[str, Tensor]) -> list[Tensor]:
        return [
            layer(x, edges=inputs["edges"], return_attention_scores=True)[1]
            for layer, x in zip(layers, keras.tree.flatten(hidden(inputs)), strict=True)
        ]

    return attention
