"""Times a training step of each mechanism at its paper's size beside what Keras' users would take.

    python benchmarks/paper_sizes.py [--backend jax] [--quick]

Power law graph attention in the paper's translator #2 beside dot-product attention in the same
translator; tensor-network attention on the rules of cellular automata beside a convolution and an
LSTM; graph attention on a random graph of Cora's size beside its formula with a dense adjacency;
`TTDense` of rank 2 beside `Dense`. On TensorFlow without XLA, with Adam. On JAX it also prints how
many operations a forward run of a peer takes for each of ours, as XLA counts them.
"""

import argparse
import os

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--backend", default="tensorflow", choices=("tensorflow", "jax", "torch"))
parser.add_argument("--quick", action="store_true", help="small sizes: a try")
arguments = parser.parse_args()
# Before Keras is imported.
os.environ["KERAS_BACKEND"] = arguments.backend

from side_by_side import describe_machine, medians, print_row  # noqa: E402

# isort: split
import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import ops  # noqa: E402

from keras_tnattn import TTDense  # noqa: E402
from keras_tnattn.models import PRESETS, graph_classifier, translator  # noqa: E402
from keras_tnattn_train.rules.automata import evolve  # noqa: E402
from keras_tnattn_train.rules.config import RulesConfig  # noqa: E402
from keras_tnattn_train.rules.models import network  # noqa: E402

RNG = np.random.default_rng(0)
CLASSES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class DenseGraphAttention(keras.layers.Layer):
    """The formula of graph attention with an `(L, L)` adjacency, heads concatenated."""

    def __init__(self, num_heads, key_dim, activation=None):
        super().__init__()
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.activation = keras.activations.get(activation)
        self.dropout = keras.layers.Dropout(0.6)

    def build(self, inputs_shape, adjacency_shape):
        self.map = keras.layers.EinsumDense(
            "bli,ihj->bhlj", (self.num_heads, None, self.key_dim), bias_axes="hj"
        )
        self.map.build(inputs_shape)
        self.receiver = self.add_weight(shape=(self.num_heads, self.key_dim))
        self.sender = self.add_weight(shape=(self.num_heads, self.key_dim))

    def call(self, inputs, adjacency, training=None):
        values = self.map(self.dropout(inputs, training=training))
        received = ops.einsum("bhlj,hj->bhl", values, self.receiver)
        sent = ops.einsum("bhlj,hj->bhl", values, self.sender)
        scores = ops.leaky_relu(received[..., None] + sent[..., None, :], 0.2)
        weights = ops.softmax(ops.where(adjacency[:, None], scores, -1e9))
        weights = self.dropout(weights, training=training)
        outputs = ops.transpose(ops.matmul(weights, values), (0, 2, 1, 3))
        shape = (*ops.shape(outputs)[:2], self.num_heads * self.key_dim)
        return self.activation(ops.reshape(outputs, shape))


def translators(pairs, length, words):
    """Returns both translators, compiled, and a batch."""
    source, target, labels = RNG.integers(4, words, (3, pairs, length), "int32")
    batch = {"source": source, "target": target}
    models = {
        "SDPA": translator(words, words, **PRESETS["sdpa"]),
        "PLGA": translator(words, words, **PRESETS["plga-2"]),
    }
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    return models, {name: (batch, labels) for name in models}, loss


def automata(rows, cells):
    """Returns the networks of the study of rules, and a batch of rule 30."""
    before = RNG.integers(0, 2, (rows, cells))
    kinds = {"convolution": "convolution", "LSTM": "lstm", "TNAttention": "tn"}
    models = {name: network(RulesConfig(model=kind)) for name, kind in kinds.items()}
    return models, {name: (before, evolve(before, 30)) for name in models}, CLASSES


def graphs(nodes, num_features, num_edges):
    """Returns both networks for nodes, and one graph as each of them reads it."""
    features = keras.Input((nodes, num_features))
    adjacency = keras.Input((nodes, nodes), dtype="bool")
    hidden = DenseGraphAttention(8, 8, "elu")(features, adjacency)
    logits = DenseGraphAttention(1, 7)(hidden, adjacency)
    models = {
        "dense formula": keras.Model([features, adjacency], logits),
        "GraphAttention": graph_classifier(num_features, 7),
    }
    x = (RNG.random((1, nodes, num_features)) < 0.013).astype("float32")
    pairs = RNG.choice(nodes * nodes, num_edges // 2, replace=False)
    one_way = np.stack(np.divmod(pairs, nodes), axis=1)
    edges = np.unique(np.concatenate([one_way, one_way[:, ::-1]]), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    connected = np.eye(nodes, dtype=bool)[None]
    connected[0, edges[:, 1], edges[:, 0]] = True
    labels = RNG.integers(0, 7, (1, nodes))
    batches = {
        "dense formula": ([x, connected], labels),
        "GraphAttention": ({"features": x, "edges": edges[None].astype("int32")}, labels),
    }
    return models, batches, CLASSES


def dense_layers(rows, size):
    """Returns models of one layer, and a batch."""
    models = {
        name: keras.Sequential([keras.Input((size,)), layer])
        for name, layer in (("Dense", keras.layers.Dense(size)), ("TTDense", TTDense(size)))
    }
    x, y = RNG.normal(size=(2, rows, size)).astype("float32")
    return models, {name: (x, y) for name in models}, "mse"


def operations(model, inputs):
    """Returns the operations of a forward run, as XLA counts them."""
    import jax

    variables = (model.trainable_variables, model.non_trainable_variables)
    values = [[variable.value for variable in each] for each in variables]
    run = jax.jit(lambda *args: model.stateless_call(*args)[0])
    return run.lower(*values, inputs).compile().cost_analysis()["flops"]


def show(label, models, batches, loss, repeats):
    """Prints the times of training steps; the last model is ours, all others are its peers."""
    compiles = keras.backend.backend() == "jax"
    steps = {}
    for name, model in models.items():
        model.compile("adam", loss, jit_compile=compiles)
        # As a number, so that the step has ended.
        steps[name] = lambda model=model, batch=batches[name]: float(model.train_on_batch(*batch))
    seconds = medians(steps, repeats)
    *peers, ours = models
    for peer in peers:
        print_row(label, {name: seconds[name] for name in (peer, ours)}, peer)
        if compiles and peer != "LSTM":  # XLA counts the body of a loop once
            counts = {name: operations(models[name], batches[name][0]) for name in (peer, ours)}
            print(f"  operations of {peer} over ours: {counts[peer] / counts[ours]:.2f}")


def main():
    describe_machine()
    repeats = 3 if arguments.quick else 11
    if arguments.quick:
        show("translator, 2 x 4", *translators(2, 4, 100), repeats)
        show("rule 30, 2 x 8", *automata(2, 8), repeats)
        show("30 nodes", *graphs(30, 20, 60), repeats)
        show("8 rows of 64", *dense_layers(8, 64), repeats)
        return
    show("translator, 64 x 32", *translators(64, 32, 8_000), 5)
    show("rule 30, 64 x 32", *automata(64, 32), 31)
    show("Cora's size", *graphs(2_708, 1_433, 10_556), repeats)
    for rows, size in ((12_800, 64), (12_800, 256), (12_800, 1024), (200, 4096)):
        show(f"{rows:,} rows of {size:,}", *dense_layers(rows, size), repeats)


if __name__ == "__main__":
    main()
