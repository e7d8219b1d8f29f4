"""Freezes the metric of a trained model's power law attention."""

import sys
from collections.abc import Iterable
from typing import Any

import keras

from keras_small.coding.archives import saved_archive
from keras_tnattn.models.freezing import freeze_metric
from keras_tnattn_train.runs.run import RESUME_HINT, Run
from keras_tnattn_train.system.files import WriteError, replacing

LIVE = "live.keras"


def freeze(
    model: keras.Model, batches: Iterable[Any], loss: Any, run: Run
) -> tuple[keras.Model, dict[str, Any]]:
    """Freezes the metric where it is the same for all inputs, and prints what changes.

    The model before is written to `live.keras` in the run's folder. If no layer can be frozen, the
    model stays as it is, with a note.
    """
    try:
        frozen = freeze_metric(model, batches, loss=loss)
    except ValueError as error:
        print(f"note: the metric is not frozen. {error}", file=sys.stderr)
        return model, {"layers": 0, "reason": str(error)}
    try:
        with replacing(run.folder / LIVE) as path:
            path.write_bytes(saved_archive(model).getbuffer())
    except WriteError as error:
        raise type(error)(f"{error}. {RESUME_HINT}") from error
    print(frozen)
    return frozen.model, {
        "layers": sum(layer.frozen for layer in frozen.layers),
        "spreads": {layer.path: list(layer.spreads) for layer in frozen.layers},
        "loss_before": frozen.loss_before,
        "loss_after": frozen.loss_after,
    }
