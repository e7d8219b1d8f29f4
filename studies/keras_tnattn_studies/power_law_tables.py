"""Power law graph attention and other classifiers on tables of numbers."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from sklearn import datasets
from sklearn.base import BaseEstimator
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from keras_tnattn.layers import MetricAttention, PowerLawGraphAttention, TransformerEncoder
from keras_tnattn.typing import Shape, Tensor
from keras_tnattn_train.data.texts.labeled import split_rows

TEST_FRACTION = 0.25
# Those of `images --attention plga`, where this is an option.
NUM_LAYERS, MODEL_DIM, NUM_HEADS = 1, 32, 2
RESIDUAL_UNITS, RESIDUAL_DIM = 2, 32
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-2
STEPS, BATCH_SIZE = 400, 32

LOADERS: dict[str, Callable[..., Any]] = {
    "breast_cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
}


@dataclasses.dataclass(frozen=True)
class LabeledTable:
    """Rows of numbers with a class each, in a training and a test part.

    Args:
        rows: The training rows, floats `(R, F)`; each feature has mean 0 and variance 1.
        labels: Their classes, integers `(R,)`.
        test_rows: The test rows, `(S, F)`, scaled by the means and variances of the training rows.
        test_labels: Their classes, `(S,)`.
    """

    rows: np.ndarray
    labels: np.ndarray
    test_rows: np.ndarray
    test_labels: np.ndarray


def load_table(name: str, seed: int) -> LabeledTable:
    """Reads a table and splits it: a quarter is for the test."""
    rows, labels = LOADERS[name](return_X_y=True)
    train, test = split_rows(labels, TEST_FRACTION, seed)
    scaled = StandardScaler().fit(rows[train]).transform(rows).astype("float32")
    return LabeledTable(scaled[train], labels[train], scaled[test], labels[test])


class FeatureTokens(keras.layers.Layer):
    """Makes a token of each feature `x_f` of a row: `x_f w_f + b_f`, with learned vectors.

    Args:
        dim: Size `d` of the tokens.

    Call arguments:
        inputs: Float tensor `(B, F)`.

    Returns:
        Tensor `(B, F, d)`.
    """

    def __init__(self, dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dim = dim

    def build(self, input_shape: Shape) -> None:
        shape = (input_shape[-1], self.dim)
        deviation = self.dim**-0.5
        for name in ("kernel", "bias"):
            initializer = keras.initializers.RandomNormal(stddev=deviation)
            setattr(self, name, self.add_weight(shape=shape, initializer=initializer, name=name))
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        return inputs[..., None] * self.kernel + self.bias

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return (*input_shape, self.dim)


def power_law_attention(epsilon: float = 1e-9) -> keras.layers.Layer:
    """Returns power law graph attention of the study's sizes."""
    return PowerLawGraphAttention(
        NUM_HEADS, residual_units=RESIDUAL_UNITS, residual_dim=RESIDUAL_DIM, epsilon=epsilon
    )


ATTENTIONS: dict[str, Callable[[], keras.layers.Layer]] = {
    "plga": power_law_attention,
    "plga-epsilon": lambda: power_law_attention(epsilon=0.01),
    "sdpa": lambda: MetricAttention(NUM_HEADS),
    "none": lambda: keras.layers.Identity(),
}
BASELINES: dict[str, Callable[[int], BaseEstimator]] = {
    "logistic-regression": lambda seed: LogisticRegression(max_iter=1_000),
    "svm": lambda seed: SVC(),
    "gradient-boosting": lambda seed: GradientBoostingClassifier(random_state=seed),
}


def network(attention: str, num_features: int, num_classes: int) -> keras.Model:
    """Returns a transformer encoder of the features of a row.

    Args:
        attention: A name in `ATTENTIONS`. With `"none"` no token learns of another one, so that
            the logits are sums of functions of single features.
        num_features: Number `F` of features.
        num_classes: Number `C` of classes.
    """
    inputs = keras.Input((num_features,))
    x = FeatureTokens(MODEL_DIM, name="tokens")(inputs)
    for n in range(NUM_LAYERS):
        x = TransformerEncoder(ATTENTIONS[attention](), 2 * MODEL_DIM, name=f"encoder_{n}")(x)
    x = keras.layers.GlobalAveragePooling1D(name="pooling")(x)
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="logits")(x))


def measure_table(dataset: str, classifier: str, seed: int) -> dict[str, Any]:
    """Trains a classifier on one split of a table, and measures it.

    Returns:
        `weights`, `train_accuracy`, `test_accuracy` and `seconds`, the processor time of the
        training.
    """
    data = load_table(dataset, seed)
    if classifier in BASELINES:
        fitted = BASELINES[classifier](seed)
        started = time.process_time()
        fitted.fit(data.rows, data.labels)
        seconds, weights = time.process_time() - started, _size(fitted)
        predicted = fitted.predict
    else:
        model, seconds = _trained_network(classifier, data, seed)
        weights = model.count_params()

        def predicted(rows: np.ndarray) -> np.ndarray:
            return keras.ops.convert_to_numpy(model(rows)).argmax(axis=-1)

    return {
        "weights": int(weights),
        "train_accuracy": float(np.mean(predicted(data.rows) == data.labels)),
        "test_accuracy": float(np.mean(predicted(data.test_rows) == data.test_labels)),
        "seconds": seconds,
    }


@functools.cache
def _compiled_network(attention: str, num_features: int, num_classes: int) -> keras.Model:
    """Returns a network to train again and again: compiling takes longer than a training."""
    model = network(attention, num_features, num_classes)
    model.compile(
        keras.optimizers.AdamW(
            keras.optimizers.schedules.CosineDecay(LEARNING_RATE, STEPS), weight_decay=WEIGHT_DECAY
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        # On JAX nothing else compiles the step; elsewhere XLA takes longer than it saves here.
        jit_compile=keras.backend.backend() == "jax",
    )
    model.optimizer.build(model.trainable_variables)
    return model


def _trained_network(attention: str, data: LabeledTable, seed: int) -> tuple[keras.Model, float]:
    """Returns a network trained from new weights, and the processor time of its training."""
    sizes = data.rows.shape[1], 1 + int(data.labels.max())
    model = _compiled_network(attention, *sizes)
    keras.utils.set_random_seed(seed)
    model.set_weights(network(attention, *sizes).get_weights())
    for variable in model.optimizer.variables:
        variable.assign(keras.ops.zeros_like(variable))
    rng = np.random.default_rng(seed)
    passes = -(-STEPS * BATCH_SIZE // len(data.rows))
    order = np.concatenate([rng.permutation(len(data.rows)) for _ in range(passes)])
    started = time.process_time()
    for batch in order[: STEPS * BATCH_SIZE].reshape(STEPS, BATCH_SIZE):
        model.train_on_batch(data.rows[batch], data.labels[batch])
    return model, time.process_time() - started


def _size(classifier: Any) -> int:
    """Returns how many numbers a fitted classifier has, or how many nodes its trees have."""
    if isinstance(classifier, GradientBoostingClassifier):
        return sum(tree.tree_.node_count for tree in classifier.estimators_.flat)
    if isinstance(classifier, SVC):
        return (
            classifier.support_vectors_.size
            + classifier.dual_coef_.size
            + classifier.intercept_.size
        )
    return classifier.coef_.size + classifier.intercept_.size
