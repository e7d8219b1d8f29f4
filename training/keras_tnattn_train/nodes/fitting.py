"""Trains on a whole graph, one step per epoch, with early stopping and exact resumption.

A step is one whole graph. The loop of `runs/training.py` would take it as a batch with sample
weights, but an epoch, of which there are about 900, then takes five times as long: on a graph as
large as Cora (2,708 nodes of 1,433 features; GCN, TensorFlow, CPU) Keras' `fit` spends more time on
its loops and on copies of the features than on the steps. Here the graph becomes tensors once.
"""

import dataclasses
import math
import time

import keras
import numpy as np

from keras_tnattn_train.data.graphs import LabeledGraph
from keras_tnattn_train.nodes.config import NodesConfig
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.runs.checkpoints import load_state, load_weights, save_state, save_weights
from keras_tnattn_train.runs.run import RESUME_HINT, TRAIN_AGAIN_HINT, Run
from keras_tnattn_train.runs.training import metrics_of
from keras_tnattn_train.system.files import WriteError

CHECKPOINT_EPOCHS = 100


@dataclasses.dataclass
class EarlyStopping:
    """The rule of the graph attention paper's code.

    Training stops after `patience` consecutive epochs in which the validation loss was above its
    minimum so far and the validation accuracy below its maximum so far. The best model is that of
    the last epoch in which neither was worse than in any epoch before.
    """

    patience: int
    best_epoch: int = 0
    lowest_loss: float = math.inf
    highest_accuracy: float = -math.inf
    waited: int = 0

    def update(self, row: dict[str, float]) -> bool:
        """Records the metrics of an epoch; returns whether its model is the best so far."""
        lower = row["val_loss"] <= self.lowest_loss
        higher = row["val_accuracy"] >= self.highest_accuracy
        self.lowest_loss = min(self.lowest_loss, row["val_loss"])
        self.highest_accuracy = max(self.highest_accuracy, row["val_accuracy"])
        self.waited = 0 if lower or higher else self.waited + 1
        if lower and higher:
            self.best_epoch = int(row["epoch"])
        return lower and higher

    @property
    def done(self) -> bool:
        """Whether the patience is exhausted."""
        return self.waited >= self.patience


def inputs_of(graph: LabeledGraph, model: keras.Model) -> dict[str, np.ndarray]:
    """Returns the inputs of a classifier of nodes for a graph."""
    inputs = {"features": graph.features[None], "edges": graph.edges[None]}
    if any(tensor.name == "edge_weights" for tensor in model.inputs):
        weights = graph.edge_weights
        weights = np.ones(len(graph.edges), "float32") if weights is None else weights
        inputs["edge_weights"] = weights[None]
    return inputs


class GraphTrainer:
    """Trains a compiled classifier of nodes on one graph."""

    def __init__(self, model: keras.Model, graph: LabeledGraph) -> None:
        tensor = keras.ops.convert_to_tensor  # convert once, not at every step
        self.model = model
        self.inputs = {name: tensor(value) for name, value in inputs_of(graph, model).items()}
        self.labels = tensor(graph.labels[None])
        self.weights = {
            part: tensor(nodes.astype("float32")[None]) for part, nodes in graph.parts.items()
        }

    def step(self) -> dict[str, float]:
        """Trains one step; returns `loss`, `accuracy`, `val_loss` and `val_accuracy`.

        The validation comes after the step. The losses are cross-entropies without the penalty on
        the kernels.
        """
        self.model.reset_metrics()
        trained = self.model.train_on_batch(
            self.inputs, self.labels, self.weights["train"], return_dict=True
        )
        tested = self.measure("validation")
        return {
            "loss": float(trained["cross_entropy"]),
            "accuracy": float(trained["accuracy"]),
            "val_loss": tested["loss"],
            "val_accuracy": tested["accuracy"],
        }

    def measure(self, part: str) -> dict[str, float]:
        """Returns the cross-entropy, as `loss`, and the accuracy on a part of the nodes."""
        self.model.reset_metrics()
        logs = self.model.test_on_batch(
            self.inputs, self.labels, self.weights[part], return_dict=True
        )
        return {"loss": float(logs["cross_entropy"]), "accuracy": float(logs["accuracy"])}


def fit(
    trainer: GraphTrainer, config: NodesConfig, run: Run | None = None
) -> tuple[list[dict[str, float]], EarlyStopping]:
    """Trains to the end, from the last checkpoint if there is one, and restores the best model.

    Returns the metrics of each epoch, and the state of the early stopping. Without a run nothing is
    written, so that an interrupted training cannot be resumed.
    """
    model = trainer.model
    stopping = EarlyStopping(config.patience)
    rows, best = _restore(trainer, run) if run else ([], [])
    for row in rows:
        stopping.update(row)
    started = time.perf_counter()
    while len(rows) < config.epochs and not stopping.done:
        began = time.perf_counter()
        row = {"epoch": len(rows) + 1, **trainer.step()}
        if not (math.isfinite(row["loss"]) and math.isfinite(row["val_loss"])):
            raise InputError(
                f"Training diverged: the loss became {row['loss']} in epoch {row['epoch']}. Start "
                f"another run with a lower --learning-rate than {config.learning_rate:g}"
            )
        rows.append({**row, "seconds": time.perf_counter() - began})
        if stopping.update(row):
            best = model.get_weights()
        last = stopping.done or len(rows) == config.epochs
        if run and (last or len(rows) % CHECKPOINT_EPOCHS == 0):
            _save(trainer, run, rows, best, stopping.best_epoch)
            print(
                f"epoch {len(rows)}: loss {row['loss']:.4g}, val_loss {row['val_loss']:.4g}, "
                f"val_accuracy {row['val_accuracy']:.4g} ({time.perf_counter() - started:.0f} s)",
                flush=True,
            )
    model.set_weights(best)
    return rows, stopping


def _restore(trainer: GraphTrainer, run: Run) -> tuple[list[dict[str, float]], list[np.ndarray]]:
    folder = run.folder / "checkpoints"
    if not (folder / "last.npz").exists():
        return [], []
    load_weights(trainer.model, folder / "best.npz", TRAIN_AGAIN_HINT)
    best = trainer.model.get_weights()
    epochs = load_state(trainer.model, folder / "last.npz")
    return metrics_of(run, epochs), best


def _save(
    trainer: GraphTrainer,
    run: Run,
    rows: list[dict[str, float]],
    best: list[np.ndarray],
    best_epoch: int,
) -> None:
    """Writes metrics, the best model, and then the state to resume from.

    If the process is killed before the state is written, the run resumes from an earlier state and
    finds the best model again.
    """
    model = trainer.model
    folder = run.folder / "checkpoints"
    try:
        folder.mkdir(exist_ok=True)
        run.write_metrics(rows)
        current = model.get_weights()
        model.set_weights(best)
        save_weights(model, best_epoch, folder / "best.npz")
        model.set_weights(current)
        save_state(model, len(rows), folder / "last.npz")
    except (OSError, WriteError) as error:
        raise InputError(f"{error}. {RESUME_HINT}") from error
