"""Trains and measures a classifier of the nodes of one graph."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from scipy.special import softmax

from keras_tnattn.models import graph_classifier
from keras_tnattn_train.data.graphs import LabeledGraph
from keras_tnattn_train.nodes import plots
from keras_tnattn_train.nodes.config import NodesConfig
from keras_tnattn_train.nodes.fitting import GraphTrainer, fit
from keras_tnattn_train.options.errors import input_errors
from keras_tnattn_train.runs.finishing import finish
from keras_tnattn_train.runs.plots import confusion_matrix, learning_curves
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import start_session
from keras_tnattn_train.system.files import write_table


def train_nodes(config: NodesConfig, run: Run, graph: LabeledGraph) -> dict[str, Any]:
    """Trains a classifier of nodes, or resumes an interrupted run."""
    trainer = _trainer(config, graph)
    run.start_or_check(config, data_description(graph))
    results = _train(trainer, config, run)
    rows = run.read_metrics()
    learning_curves(rows, results["test_accuracy"], run.folder / "learning_curves.png")
    logits = keras.ops.convert_to_numpy(trainer.model.predict_on_batch(trainer.inputs))[0]
    predictions = logits.argmax(axis=-1)
    tested = graph.parts["test"]
    write_predictions(graph, logits, run.folder / "predictions.csv")
    confusion_matrix(
        graph.labels[tested],
        predictions[tested],
        graph.class_names,
        run.folder / "confusion_matrix.png",
    )
    if config.layer == "gat":
        plots.attention(trainer.model, trainer.inputs, graph, run.folder / "attention.png")
    return finish(config, run, trainer.model, results)


def measure_once(
    config: NodesConfig, graph: LabeledGraph, build: Callable[[], keras.Model] | None = None
) -> dict[str, Any]:
    """Trains a classifier without a run folder, and returns the measurements."""
    return _train(_trainer(config, graph, build), config, None)


def data_description(graph: LabeledGraph) -> dict[str, Any]:
    """Returns what a run records about its data."""
    return {
        "fingerprint": graph.fingerprint(),
        "class_names": list(graph.class_names),
        "notes": list(graph.notes),
    }


def write_predictions(graph: LabeledGraph, logits: np.ndarray, path: Path) -> None:
    """Writes a row for each node: name, part, label, predicted class and its probability."""
    probabilities = softmax(logits, axis=-1)
    part = np.full(len(logits), "none", object)
    for name, nodes in graph.parts.items():
        part[nodes] = name
    labeled = np.ones(len(logits), bool) if graph.labeled is None else graph.labeled
    names = graph.names or range(len(logits))
    write_table(
        path,
        [
            {
                "node": name,
                "split": part[i],
                "label": graph.class_names[graph.labels[i]] if labeled[i] else "",
                "predicted": graph.class_names[probabilities[i].argmax()],
                "probability": round(float(probabilities[i].max()), 6),
            }
            for i, name in enumerate(names)
        ],
    )


def _train(trainer: GraphTrainer, config: NodesConfig, run: Run | None) -> dict[str, Any]:
    rows, stopping = fit(trainer, config, run)
    measured = {part: trainer.measure(part)["accuracy"] for part in trainer.weights}
    return {
        **{f"{part}_accuracy": accuracy for part, accuracy in measured.items()},
        "parameters": {"all": trainer.model.count_params()},
        "epochs": len(rows),
        "best_epoch": stopping.best_epoch,
        "seconds_per_step": float(np.median([row["seconds"] for row in rows])),
        "seconds": sum(row["seconds"] for row in rows),
    }


def _trainer(
    config: NodesConfig, graph: LabeledGraph, build: Callable[[], keras.Model] | None = None
) -> GraphTrainer:
    start_session(config)
    model = build() if build else _classifier(config, graph)
    model.compile(
        keras.optimizers.Adam(config.learning_rate),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        weighted_metrics=[
            "accuracy",
            keras.metrics.SparseCategoricalCrossentropy(name="cross_entropy", from_logits=True),
        ],
    )
    return GraphTrainer(model, graph)


def _classifier(config: NodesConfig, graph: LabeledGraph) -> keras.Model:
    with input_errors():  # Keras and our layers validate sizes
        return graph_classifier(
            graph.features.shape[1],
            len(graph.class_names),
            layer=config.layer,
            num_layers=config.num_layers,
            hidden_dim=config.hidden_dim,
            num_heads=config.num_heads,
            output_heads=config.output_heads,
            filter_order=config.filter_order,
            dropout=config.dropout,
            l2=config.l2,
            weighted=graph.edge_weights is not None and config.layer != "gat",
        )
