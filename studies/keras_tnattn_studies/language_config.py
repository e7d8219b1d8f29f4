"""The models of the study `language`, and the options of their trainings."""

import math
from typing import Any

from keras_tnattn_train.language.config import LanguageConfig
from keras_tnattn_train.options.options import DATA, TRAINING, Options, option

# What all models have in common.
COMMON: dict[str, Any] = {
    "tokens": "bytes",
    "length": 128,
    "num_layers": 4,
    "model_dim": 128,
    "num_heads": 4,
}
_PLGA = {"attention": "plga", "residual_units": 2, "residual_dim": 64, "feedforward_dim": 341}
LSTM = {"num_layers": 2, "units": 240}
# Each model, by its other options of `language`; the hidden sizes give all of them 1.04 million
# weights. That of `lstm` is none of the command.
MODELS: dict[str, dict[str, Any]] = {
    "sdpa": {"attention": "sdpa", "feedforward_dim": 460},
    "plga": _PLGA,
    "plga-epsilon": {**_PLGA, "metric_epsilon": 0.01},
    "plga-frozen": _PLGA,
    "plga-causal": {**_PLGA, "causal_metric": True},
    "tsa": {"attention": "tsa", "feedforward_dim": 630},
    "rgtn": {"attention": "rgtn", "feedforward_dim": 632},
    "lstm": {"attention": "none"},
}


# Counted n-grams of these orders: the floor of a model of bytes.
NGRAMS = tuple(f"{order}-gram" for order in range(7))


class LanguageTraining(Options):
    """The options that all trainings of the study share."""

    corpus: tuple[str, ...] = option(
        ("docstrings",), DATA, "text files, as for language", metavar="FILE", strict=False
    )
    held_out: float = option(0.005, DATA, "share of each of validation and test part", gt=0, lt=0.4)
    epochs: int = option(6, TRAINING, "training epochs, each followed by a validation", ge=2)
    frozen_after: int = option(
        2, TRAINING, "epochs of plga-frozen after which the metric is frozen", ge=1
    )
    batches_per_epoch: int = option(200, TRAINING, "batches of an epoch", ge=1, le=10_000_000)
    batch_size: int = option(16, TRAINING, "rows of a batch", ge=1, le=1_000_000)
    learning_rates: tuple[float, ...] = option(
        (0.001,),
        TRAINING,
        "largest learning rates; of several, each model gets the one with the lowest loss on the "
        "validation part after --tried-epochs with seed 0",
        strict=False,  # JSON has lists
    )
    tried_epochs: int = option(3, TRAINING, "epochs with each of several learning rates", ge=2)

    def check_together(self) -> None:
        if self.frozen_after >= self.epochs:
            raise ValueError(
                "Expected frozen_after below epochs. Received: "
                f"frozen_after={self.frozen_after}, epochs={self.epochs}"
            )
        if not all(0 < rate < math.inf for rate in self.learning_rates or (0,)):
            raise ValueError(
                f"Expected positive learning rates. Received: learning_rates={self.learning_rates}"
            )

    def config_of(self, model: str, seed: int) -> LanguageConfig:
        """Returns the config of one training."""
        options = {**COMMON, **dict(self), **MODELS[model]}
        for name in ("frozen_after", "learning_rates", "tried_epochs"):
            options.pop(name)
        rate = self.learning_rates[0]
        return LanguageConfig(**options, learning_rate=rate, seed=seed, name=f"{model}-{seed}")

    def short(self, learning_rate: float) -> "LanguageTraining":
        """Returns the options of a training that only tries a learning rate."""
        epochs = self.tried_epochs
        frozen_after = max(1, self.frozen_after * epochs // self.epochs)
        return self.model_copy(
            update={
                "epochs": epochs,
                "frozen_after": frozen_after,
                "learning_rates": (learning_rate,),
            }
        )
