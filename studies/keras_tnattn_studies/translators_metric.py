"""Fixes the metric of trained translators, and times their greedy search."""

import dataclasses
import json
import math
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tnattn.layers import MetricAttention
from keras_tnattn.models.freezing import freeze_metric
from keras_tnattn_train.data.pairs.batches import BucketedBatches
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.training import as_dataset
from keras_tnattn_train.system.files import read_object, replacing
from keras_tnattn_train.translate.evaluate import EvaluateOptions, evaluate_run
from keras_tnattn_train.translate.loading import TrainedTranslator, load_translator
from keras_tnattn_train.translate.train import FROZEN_PAIRS

BATCH_SIZE = 64
SENTENCES, TOGETHER, PASSES = 100, 32, 3  # how greedy search is timed


def measure_fixed_metric(folder: Path, seed: int) -> dict[str, Any]:
    """Fixes the metric of a finished run in all layers, whatever its spread, and measures that.

    The metric is the mean over some pairs of the training part. The translators are written beside
    the run, to `NAME-fixed` and, with the identity for the metric, to `NAME-identity`.
    """
    trained = load_translator(folder)
    pairs = BucketedBatches(trained.corpus.parts["train"], BATCH_SIZE, seed)
    number = min(-(-FROZEN_PAIRS // BATCH_SIZE), len(pairs))
    drawn = [pairs[i] for i in range(number)]
    fixed = freeze_metric(trained.model, drawn, bound=math.inf, fold=False)
    row: dict[str, Any] = {
        "weights": fixed.model.count_params(),
        "spreads": " ".join(f"{layer.path}={layer.largest:.4f}" for layer in fixed.layers),
    }
    row |= _scores_of_copy(fixed.model, trained, folder, fixed_folder(folder))
    _set_identity(fixed.model)
    identity = _scores_of_copy(
        fixed.model, trained, folder, folder.with_name(f"{folder.name}-identity")
    )
    return row | {f"identity_{name}": identity[name] for name in ("val_loss", "bleu")}


def _set_identity(model: keras.Model) -> None:
    attentions = [encoder.attention for encoder in model.encoders]
    attentions += [a for d in model.decoders for a in (d.self_attention, d.cross_attention)]
    for attention in attentions:
        if isinstance(attention, MetricAttention):
            identity = np.eye(attention.head_dim)
            attention.set_metric(np.tile(identity, (attention.num_heads, 1, 1)))


def fixed_folder(run: Path) -> Path:
    """Returns the folder of the translator with the fixed metric of a run."""
    return run.with_name(f"{run.name}-fixed")


def _scores_of_copy(
    model: keras.Model, trained: TrainedTranslator, original: Path, folder: Path
) -> dict[str, float]:
    """Writes a model to a folder of its own, and measures it on the validation part."""
    run = Run(folder)
    with run.starting() as partial:
        shutil.copy(original / "config.json", partial)
        data = read_object(original / "data.json", "Train again")
        data["prepared"] = str(trained.corpus.folder.resolve())
        (partial / "data.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
        with replacing(partial / "model.keras") as path:
            model.save(path)
    evaluated = evaluate_run(
        EvaluateOptions(
            run=str(run.folder), part="validation", tokenize="none", batch_size=BATCH_SIZE
        ),
        load=lambda *_: dataclasses.replace(trained, model=model),
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(loss=loss)
    validation = BucketedBatches(trained.corpus.parts["validation"], BATCH_SIZE)
    return {
        "val_loss": model.evaluate(as_dataset(validation), verbose=0),
        "bleu": evaluated["bleu"],
        "exact_match": evaluated["exact_match"],
    }


def times_of_sentences(
    folders: Mapping[Any, tuple[Path, Callable[..., TrainedTranslator]]],
) -> dict[Any, dict[str, float]]:
    """Returns the processor's milliseconds for greedy search of a sentence of the validation part.

    The models take turns, so that all are measured under the same load. Cutting into pieces and
    joining them is not counted.

    Returns:
        The columns of a row of times.csv for each run, medians over some passes: for sentences
        searched alone, and for the same ones in batches.
    """
    searches = {}
    for name, (folder, load) in folders.items():
        trained = load(folder, None)
        source = trained.corpus.parts["validation"].source
        rows = [np.array(source[i]) for i in range(min(SENTENCES, len(source)))]
        width = max(map(len, rows))
        together = np.array([np.pad(row, (0, width - len(row))) for row in rows])
        searches[name] = trained.with_beam(1).search, [row[None] for row in rows], together
    columns = ("milliseconds", "milliseconds_in_batches")
    times: dict[Any, dict[str, list[float]]] = {
        name: {column: [] for column in columns} for name in searches
    }
    for number in range(PASSES + 1):
        for name, (search, alone, together) in searches.items():
            for column, inputs in zip(columns, (alone, [together]), strict=True):
                began = time.process_time()
                for ids in inputs:
                    search(ids, TOGETHER)
                seconds = time.process_time() - began
                if number:  # the first pass compiles
                    times[name][column].append(1000 * seconds / len(together))
    return {
        name: {column: statistics.median(each) for column, each in of_model.items()}
        for name, of_model in times.items()
    }
