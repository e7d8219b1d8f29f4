"""Keeps the linear support vector machine (SVM) itself where training gains nothing over it."""

import dataclasses
from collections.abc import Callable, Sequence

import keras
import numpy as np
from scipy.optimize import minimize_scalar

from keras_tnattn.estimator.batches import outputs_of
from keras_tnattn.estimator.initial_weights import become_svm
from keras_tnattn.estimator.settings import Settings
from keras_tnattn_runtime.stored import stored_array

CHUNK = 4096  # texts that are copied at once
# By how many standard errors training has to be better: about 95 % of chance is below.
STANDARD_ERRORS = 2
_LARGEST_SCALE = 100.0  # by which the scores of the SVM are multiplied


@dataclasses.dataclass(frozen=True)
class Kept:
    """Which weights a classifier keeps, and why.

    Attributes:
        weights: `"trained"`, or `"svm"` for those of the linear SVM.
        trained_validation_accuracy: The accuracy of the trained weights on the validation part.
        svm_validation_accuracy: That of the SVM, fitted to the same rows.
    """

    weights: str
    trained_validation_accuracy: float
    svm_validation_accuracy: float

    def __str__(self) -> str:
        trained, svm = self.trained_validation_accuracy, self.svm_validation_accuracy
        accuracies = f"{trained:.1%} of the validation part after training, {svm:.1%} by the SVM"
        if self.weights == "svm":
            return (
                "kept: the linear SVM as the weights of the model, fitted again with the "
                f"validation part, because training is not clearly ahead of it ({accuracies})"
            )
        return (
            f"kept: the trained weights, which are clearly ahead of the linear SVM ({accuracies})"
        )


def keep_better(
    settings: Settings,
    build: Callable[[], keras.Model],
    trained: keras.Model,
    train: tuple[np.ndarray, np.ndarray],
    validation: tuple[np.ndarray, np.ndarray],
    vocabulary: Sequence[str],
) -> tuple[keras.Model, Kept | None]:
    """Returns the trained classifier or, unless it is better on the validation part, the SVM.

    The SVM has the weights of `become_svm` in a model of the same kind. Training has to be right
    more often, and by more than two standard errors of the difference, which is the square root of
    the number of texts that only one of the two gets right. An SVM that is kept is fitted once
    more, with the validation part; the scale of its scores is that whose probabilities fit the
    validation part best. Without an SVM, because the texts have one class, there is no `Kept`.

    Args:
        settings: The settings.
        build: Returns a new, compiled model.
        trained: The trained model.
        train: Ids `(R, L)` and labels `(R,)` that it was trained on.
        validation: The same of the validation part.
        vocabulary: The words of all ids.
    """
    ids, labels = validation
    svm = build()
    if not become_svm(settings, svm, *train, vocabulary):
        return trained, None
    probabilities = outputs_of(svm, ids)
    right = probabilities.argmax(axis=-1) == labels
    trained_right = outputs_of(trained, ids).argmax(axis=-1) == labels
    gained = np.count_nonzero(trained_right & ~right)
    lost = np.count_nonzero(right & ~trained_right)
    is_better = gained - lost > STANDARD_ERRORS * np.sqrt(gained + lost)
    kept = Kept(
        "trained" if is_better else "svm",
        float(trained_right.mean()),
        float(right.mean()),
    )
    if is_better:
        return trained, kept
    all_labels = np.concatenate([train[1], labels])
    become_svm(settings, svm, _joined(train[0], ids), all_labels, vocabulary)
    last = svm.get_layer("probabilities")
    scale = best_scale(np.log(np.maximum(probabilities, 1e-30)), labels)
    last.set_weights([scale * weight for weight in last.get_weights()])
    svm.optimizer.build(svm.trainable_variables)  # else Keras loads the saved model with an error
    return svm, kept


def best_scale(scores: np.ndarray, labels: np.ndarray) -> float:
    """Returns the factor of scores `(R, C)` with which their softmax predicts labels `(R,)` best.

    As in Platt scaling, the targets are those of a text more of each kind, so that scores which are
    always right do not become certain.
    """
    rows, classes = scores.shape
    targets = np.full(scores.shape, 1 / ((rows + 2) * (classes - 1)))
    targets[np.arange(rows), labels] = (rows + 1) / (rows + 2)

    def loss(logarithm: float) -> float:
        scaled = np.exp(logarithm) * scores
        scaled = scaled - scaled.max(axis=1, keepdims=True)
        return float(np.sum(targets * (np.log(np.exp(scaled).sum(1, keepdims=True)) - scaled)))

    limit = np.log(_LARGEST_SCALE)
    return float(np.exp(minimize_scalar(loss, bounds=(-limit, limit), method="bounded").x))


def _joined(*parts: np.ndarray) -> np.ndarray:
    """Returns the rows of several arrays of ids, in a temporary file."""
    blocks = (part[start : start + CHUNK] for part in parts for start in range(0, len(part), CHUNK))
    return stored_array(blocks, (sum(map(len, parts)), parts[0].shape[1]))
