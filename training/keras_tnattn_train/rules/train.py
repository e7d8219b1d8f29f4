"""Trains, measures and exports a network on one elementary cellular automaton."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_tnattn_train.rules.automata import RuleBatches, evolve
from keras_tnattn_train.rules.config import RulesConfig
from keras_tnattn_train.rules.models import network
from keras_tnattn_train.runs.cards import describe
from keras_tnattn_train.runs.finishing import finish
from keras_tnattn_train.runs.plots import learning_curves, save
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import fit, start_session

TEST_CELLS = 65_536  # at each length
CELLS_AT_ONCE = 8_192
# Of the space-time diagrams.
WIDTH = 128
TIMES = 96


def train_rule(config: RulesConfig, run: Run) -> dict[str, Any]:
    """Trains a network on a rule, or resumes an interrupted run."""
    start_session(config)
    model = _compiled_model(config)
    run.start_or_check(config, {"trained_lengths": list(config.trained_lengths)})

    log = fit(model, RuleBatches(config), config, run)
    model = log.model
    by_length = accuracies(model, config, sorted({*config.trained_lengths, *config.tested_lengths}))
    results: dict[str, Any] = {
        "test_accuracy": by_length[config.length],
        "accuracies": {str(length): accuracy for length, accuracy in by_length.items()},
        "trained_lengths": list(config.trained_lengths),
        "trained_accuracy": min(by_length[length] for length in config.trained_lengths),
        "parameters": {"all": model.count_params()},
        **log.costs,
    }
    learning_curves(log.rows, results["test_accuracy"], run.folder / "learning_curves.png")
    truth, predicted = space_time(model, config)
    draw_space_time(truth, predicted, config.steps, run.folder / "space_time.png")

    def export(folder: Path, version: int) -> Path:
        return _export(model, folder, version, _card(config, results))

    return finish(config, run, model, results, export)


def _export(model: keras.Model, folder: Path, version: int, card: dict[str, Any]) -> Path:
    import tensorflow as tf

    from keras_tnattn.export import export_signatures

    @tf.function  # traced once for both names
    def predict(bits: tf.Tensor) -> dict[str, tf.Tensor]:
        probabilities = tf.nn.softmax(model(bits, training=False))
        bits = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
        return {"bits": bits, "probabilities": probabilities}

    signature = (predict, tf.TensorSpec([None, None], tf.int32, "bits"))
    signatures = {"serving_default": signature, "ids": signature}
    return export_signatures(signatures, [model], folder, version, card=card)


def _card(config: RulesConfig, results: dict[str, Any]) -> dict[str, Any]:
    data = {"name": f"random rows of cells by rule {config.rule}"}
    rule = {"rule": config.rule, "steps": config.steps, "boundary": config.boundary}
    return {"task": "rules", **rule, **describe(config, data, results)}


def accuracies(model: keras.Model, config: RulesConfig, lengths: Iterable[int]) -> dict[int, float]:
    """Returns the share of correct cells at each length, on new random rows."""
    by_length = {}
    for length in lengths:
        # Three numbers: the batches are seeded with two, so these rows are new.
        rng = np.random.default_rng((config.seed, length, 1))
        rows = rng.integers(0, 2, (-(-TEST_CELLS // length), length), "int32")
        logits = model.predict(rows, batch_size=max(1, CELLS_AT_ONCE // length), verbose=0)
        truth = evolve(rows, config.rule, config.steps, config.boundary)
        by_length[length] = float(np.mean(logits.argmax(-1) == truth))
    return by_length


def space_time(model: keras.Model, config: RulesConfig) -> tuple[np.ndarray, np.ndarray]:
    """Evolves a random row by the rule, and by the network fed with its own outputs.

    Returns:
        Two arrays of bits `(T, N)`, a row every `config.steps` steps, with the same first row.
    """
    row = np.random.default_rng((config.seed, WIDTH, 2)).integers(0, 2, (1, WIDTH), "int32")
    truth, predicted = [row], [row]
    for _ in range(1, TIMES):
        truth.append(evolve(truth[-1], config.rule, config.steps, config.boundary))
        predicted.append(model.predict_on_batch(predicted[-1]).argmax(-1).astype("int32"))
    return np.concatenate(truth), np.concatenate(predicted)


def draw_space_time(truth: np.ndarray, predicted: np.ndarray, steps: int, path: Path) -> None:
    """Draws two histories of a row of bits, `(T, N)`, and where they differ."""
    errors = truth != predicted
    figure = Figure(figsize=(14, 4), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    titles = ("rule", "network, fed with its outputs", f"errors: {errors.sum():,} cells")
    for axes, bits, title in zip(panels, (truth, predicted, errors), titles, strict=True):
        extent = (0, bits.shape[1], steps * len(bits), 0)
        axes.imshow(
            bits, cmap="binary", vmin=0, vmax=1, aspect="auto", interpolation="none", extent=extent
        )
        axes.set(title=title, xlabel="cell")
    panels[0].set_ylabel("step")
    save(figure, path)


def summary(results: dict[str, Any]) -> str:
    """Summarizes the accuracy at the trained lengths and beyond."""
    trained = results["trained_lengths"]
    longer = (
        f"{percent(accuracy)} % at {length}"
        for length, accuracy in results["accuracies"].items()
        if int(length) >= max(trained)
    )
    return (
        f"trained on rows of {', '.join(map(str, trained))} cells\n"
        f"accuracy on new rows: {percent(results['trained_accuracy'])} % at the worst of these "
        f"lengths, {', '.join(longer)} cells\n"
        f"parameters: {results['parameters']['all']:,}; training: {results['seconds']:.0f} s"
    )


def percent(accuracy: float) -> str:
    """Formats a share in percent; `100` means exactly 1, not a rounded value."""
    return "100" if accuracy == 1 else f"{100 * accuracy:.3f}"


def _compiled_model(config: RulesConfig) -> keras.Model:
    model = network(config)
    steps = config.epochs * config.batches_per_epoch
    schedule = keras.optimizers.schedules.CosineDecay(config.learning_rate, steps)
    model.compile(
        # Without clipping, a rare large gradient undoes some of the learning: a few wrong cells
        # remain with rule 90.
        keras.optimizers.Adam(schedule, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
