"""Power law graph attention between the neighbors in a graph."""

import functools
import time
from collections.abc import Callable
from typing import Any

import keras
from keras import ops
from sklearn.linear_model import LogisticRegression

from keras_tnattn.layers import MetricAttention, PowerLawGraphAttention
from keras_tnattn.ops.graph import Edges
from keras_tnattn.ops.precision import leaky_relu
from keras_tnattn.typing import Shape, Tensor
from keras_tnattn_train.data.graphs import LabeledGraph, load_graph
from keras_tnattn_train.nodes.config import NodesConfig
from keras_tnattn_train.nodes.train import measure_once

# Those of the graph attention network of `nodes`, and the metric of `power_law_tables`.
NUM_LAYERS, NUM_HEADS, HEAD_DIM, DROPOUT, L2 = 2, 8, 8, 0.6, 5e-4
RESIDUAL_UNITS, RESIDUAL_DIM = 2, 32


class EdgeAttention(keras.layers.Layer):
    """Self-attention with a metric, of the nodes of a graph to their neighbors and themselves.

    What the attention computes with the graph as its mask, `A + I`, for `O(E H k)` in place of
    `O(L^2 H k)`: energies exist on edges only. As with a mask, the metric sums over all nodes.

    Args:
        attention: A `PowerLawGraphAttention`, or a `MetricAttention` without a metric.

    Call arguments:
        inputs: Float tensor `(B, L, d)`.
        edges: Int tensor `(B, E, 2)`, rows `(sender, receiver)`.
        training: Whether dropout is active.

    Returns:
        Tensor `(B, L, d)`.
    """

    def __init__(self, attention: PowerLawGraphAttention | MetricAttention, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.attention = attention

    def build(self, inputs_shape: Shape, edges_shape: Shape) -> None:
        self.attention.build(inputs_shape)
        self.built = True

    def call(self, inputs: Tensor, edges: Tensor, training: bool | None = None) -> Tensor:
        layer = self.attention
        batch, length, _ = ops.shape(inputs)
        q = layer.project_query(inputs, training=training)
        k = layer.project_key(inputs, training=training)
        v = layer.project_value(inputs)
        if isinstance(layer, PowerLawGraphAttention):
            metric = layer.deductive(layer.sum_of_products(q), training)["G_LM"]
            q = ops.einsum("blhi,bhij->blhj", q, metric)
        graph = Edges(edges, batch, length, self_loops=True)
        q, k, v = (ops.reshape(x, (-1, layer.num_heads, layer.head_dim)) for x in (q, k, v))
        products = ops.take(q, graph.receivers, axis=0) * ops.take(k, graph.senders, axis=0)
        energy = ops.sum(products, axis=-1) / layer.head_dim**0.5  # (B (E + L), H)
        scores = graph.softmax(leaky_relu(energy, layer.negative_slope))
        scores = layer.score_dropout_layer(scores, training=training)
        heads = graph.sum(scores[..., None] * ops.take(v, graph.senders, axis=0))
        return layer.output_dense(
            ops.reshape(heads, (batch, length, layer.num_heads * layer.head_dim))
        )

    def compute_output_shape(
        self, inputs_shape: Shape, edges_shape: Shape
    ) -> tuple[int | None, ...]:
        return tuple(inputs_shape)


def power_law_attention(epsilon: float = 1e-9) -> PowerLawGraphAttention:
    """Returns power law graph attention of the study's sizes."""
    return PowerLawGraphAttention(
        NUM_HEADS,
        residual_units=RESIDUAL_UNITS,
        residual_dim=RESIDUAL_DIM,
        dropout=DROPOUT,
        epsilon=epsilon,
    )


ATTENTIONS: dict[str, Callable[[], PowerLawGraphAttention | MetricAttention] | None] = {
    "plga": power_law_attention,
    "plga-epsilon": lambda: power_law_attention(epsilon=0.01),
    "sdpa": lambda: MetricAttention(NUM_HEADS, dropout=DROPOUT),
    "none": None,
}


def network(attention: str, graph: LabeledGraph) -> keras.Model:
    """Returns a classifier of nodes: dense map, attentions with shortcuts, dense map."""
    features = keras.Input((None, graph.features.shape[1]), name="features")
    edges = keras.Input((None, 2), dtype="int32", name="edges")

    def dense(units: int, x: Tensor, name: str) -> Tensor:
        penalty = keras.regularizers.L2(L2 / 2)
        x = keras.layers.Dropout(DROPOUT, name=f"{name}_dropout")(x)
        return keras.layers.Dense(units, kernel_regularizer=penalty, name=name)(x)

    x = keras.layers.Activation("elu")(dense(NUM_HEADS * HEAD_DIM, features, "words"))
    make = ATTENTIONS[attention]
    if make is not None:
        for n in range(NUM_LAYERS):
            x = x + EdgeAttention(make(), name=f"attention_{n}")(x, edges)
    logits = dense(len(graph.class_names), x, "logits")
    return keras.Model({"features": features, "edges": edges}, logits)


def measure_graph(dataset: str, data_dir: str, classifier: str, seed: int) -> dict[str, Any]:
    """Trains a classifier of the nodes of a graph as `nodes` does, and measures it.

    Returns:
        `weights`, `train_accuracy`, `test_accuracy` and `seconds`, the processor time of the
        training.
    """
    graph = load_graph(dataset, data_dir, seed=seed)
    started = time.process_time()
    if classifier != "logistic-regression":
        # The training of the graph attention network: its learning rate, patience and epochs.
        options: dict[str, Any] = {"dataset": dataset, "data_dir": data_dir, "layer": "gat"}
        build = functools.partial(network, classifier, graph)
        results = measure_once(NodesConfig(**options, seed=seed), graph, build)
        weights = results["parameters"]["all"]
        seconds = time.process_time() - started
        return {**results, "weights": weights, "seconds": seconds}
    words = (graph.features > 0).astype("float32")
    part = graph.parts["train"]
    fitted = LogisticRegression(max_iter=1_000).fit(words[part], graph.labels[part])
    seconds = time.process_time() - started
    return {
        "weights": fitted.coef_.size + fitted.intercept_.size,
        **{
            f"{name}_accuracy": float(fitted.score(words[part], graph.labels[part]))
            for name, part in graph.parts.items()
        },
        "seconds": seconds,
    }
