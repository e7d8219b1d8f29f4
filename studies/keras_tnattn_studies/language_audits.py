"""Audits of a language model whose metric is computed from the text.

Gokden audits a published model so (https://arxiv.org/abs/2608.10288): in whole windows the metric
of each text is computed from all of it, also from what is still to be predicted; in prefixes it is
computed from what generation knows. Where the losses differ, the model reads ahead.
"""

import dataclasses
import math
from collections.abc import Sequence

import keras
import numpy as np
from scipy.special import log_softmax

from keras_tnattn.models.freezing import MetricSpread


@dataclasses.dataclass(frozen=True)
class Losses:
    """Bits for each token of the same rows.

    Attributes:
        windows: With the whole row at once.
        prefixes: With the tokens before each prediction alone.
    """

    windows: float
    prefixes: float


def losses(model: keras.Model, inputs: np.ndarray, labels: np.ndarray) -> Losses:
    """Measures the loss of whole windows and of growing prefixes.

    Args:
        model: The language model: logits `(N, T, V)` of ids `(N, T)`.
        inputs: Ids `(N, T)`; each of the T prefixes is a run of its own.
        labels: The ids that follow; 0 is not predicted.
    """
    real = labels != 0
    windows = _log_probabilities(model, inputs, labels)
    lengths = range(1, inputs.shape[1] + 1)
    prefixes = [
        _log_probabilities(model, inputs[:, :length], labels[:, :length])[:, -1]
        for length in lengths
    ]
    return Losses(_bits(windows[real]), _bits(np.stack(prefixes, axis=1)[real]))


def _log_probabilities(model: keras.Model, inputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    logits = keras.ops.convert_to_numpy(model(inputs, training=False)).astype("float64")
    found = log_softmax(logits, axis=-1)
    return np.take_along_axis(found, labels[..., None], axis=-1)[..., 0]


def _bits(log_probabilities: np.ndarray) -> float:
    return float(-log_probabilities.mean() / math.log(2))


def order_parameter(spreads: Sequence[MetricSpread]) -> float:
    """Returns the root mean square of the relative spreads of all heads.

    It is 0 if the metric is the same for all inputs. Gokden (https://arxiv.org/abs/2603.23539)
    finds better scores where the deductive outputs of a model hardly differ between inputs; this
    definition, of the metric alone, is ours.
    """
    heads = np.concatenate([layer.spreads for layer in spreads])
    return float(np.sqrt(np.mean(np.square(heads))))
