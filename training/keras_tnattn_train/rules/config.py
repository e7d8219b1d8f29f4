"""The options of `rules`."""

from collections.abc import Callable
from typing import Any

from keras_tnattn_train.options.options import (
    DATA,
    MODEL,
    TRAINING,
    ExportConfig,
    Options,
    batch_size_option,
    epochs_option,
    name_option,
    option,
)

BOUNDARIES = ("periodic", "fixed")
# The networks, and the size of each baseline for 1 to 5 steps. With these sizes each has about as
# many weights as the tensor network, except for the large transformer.
MODEL_DIMS: dict[str, tuple[int, ...]] = {
    "tn": (),
    "lstm": (3, 6, 12, 23, 45),
    "convolution": (24, 13, 17, 27, 45),
    "transformer": (4, 8, 14, 28, 56),
    "large-transformer": (32, 32, 32, 32, 32),
}
# Short rows cost little, and with a mixture of lengths the network learns a rule for every length.
SHORT_LENGTHS = (4, 5, 6, 7, 8, 9, 10, 12, 16)


def _default_bond_dim(values: dict[str, Any]) -> int:
    # With each additional step, a cell depends on one more bit on either side.
    return 2 + 2 ** (min(values["steps"], 5) + 1)


def _default_name(values: dict[str, Any]) -> str:
    model = "" if values["model"] == "tn" else f"{values['model']}-"
    rule = f"rule-{values['rule']}-steps-{values['steps']}-{values['boundary']}"
    return f"{model}{rule}-{values['seed']}"


class RowsOptions(Options):
    """The options of `rules` that say which rows, and how many, a network sees."""

    length: int = option(
        32,
        DATA,
        "maximum length of the training rows; shorter ones are mixed in, and the network is also "
        "tested at 2, 4, 16 and 128 times this length",
        ge=1,
        le=65_536,
    )
    epochs: int = epochs_option(11, "number of epochs")
    batches_per_epoch: int = option(
        100, TRAINING, "batches of new rows per epoch", ge=1, le=1_000_000
    )
    batch_size: int = batch_size_option(64)


def learning_rate_option(compute: Callable[[dict[str, Any]], float | None]) -> Any:
    """Declares the learning rate; `compute` returns its default."""
    return option(
        compute,
        TRAINING,
        "initial learning rate of Adam, with cosine decay to 0 (default: 0.01; 0.001 for "
        "large-transformer)",
        gt=0,
    )


class RulesConfig(RowsOptions, ExportConfig):
    """The options of `rules`: data, model, training and output."""

    command = "rules"

    rule: int = option(30, DATA, "Wolfram's number of the rule", ge=0, le=255)
    steps: int = option(
        1, DATA, "steps of the automaton that the network computes at once", ge=1, le=100
    )
    boundary: str = option(
        "periodic",
        DATA,
        "periodic: the row is a ring; fixed: zeros beyond both ends",
        choices=BOUNDARIES,
    )

    model: str = option(
        "tn",
        MODEL,
        "tn: a deep tensor network of tensor-network attention; the others are baselines: lstm, a "
        "bidirectional LSTM; convolution, a layer of three cells per step; transformer, an encoder "
        "with sinusoidal positions; large-transformer, the same with 32 features and two layers",
        choices=tuple(MODEL_DIMS),
    )
    bond_dim: int = option(
        _default_bond_dim,
        MODEL,
        "bond dimension: size of the network's matrices (default: 6, 10, 18, 34, 66 for 1 to 5 "
        "steps; tn)",
        ge=1,
        le=65_536,
    )
    num_layers: int = option(
        1, MODEL, "number of tensor-network attention layers (tn)", ge=1, le=100
    )
    # Larger than the layer's default, because a cell has to distinguish its neighbors from others.
    initial_deviation: float = option(
        0.3, MODEL, "standard deviation of the noise on the initial identity matrices (tn)", ge=0
    )

    learning_rate: float = learning_rate_option(
        lambda values: 0.001 if values["model"] == "large-transformer" else 0.01
    )
    name: str = name_option(_default_name, "rule-RULE-steps-STEPS-BOUNDARY-SEED")

    def check_together(self) -> None:
        if self.model != "tn":
            self._check_baseline()
        elif self.steps > 5 and "bond_dim" not in self.model_fields_set:
            raise ValueError(
                "Expected a bond_dim for more than 5 steps: the default doubles with every step. "
                f"Received: steps={self.steps}"
            )

    def _check_baseline(self) -> None:
        reason = f"model={self.model!r}, which has none"
        self.refuse(reason, "num_layers", "initial_deviation")
        if self.bond_dim != _default_bond_dim(dict(self)):
            raise ValueError(
                f"Expected no bond_dim with {reason}. Received: bond_dim={self.bond_dim}"
            )
        if self.steps > len(MODEL_DIMS[self.model]):
            raise ValueError(
                f"Expected at most {len(MODEL_DIMS[self.model])} steps with model={self.model!r}. "
                f"Received: steps={self.steps}"
            )

    @property
    def model_dim(self) -> int:
        """The size of a baseline's features."""
        return MODEL_DIMS[self.model][self.steps - 1]

    @property
    def trained_lengths(self) -> tuple[int, ...]:
        """The lengths of the training rows; successive batches take them in turn."""
        return (*(n for n in SHORT_LENGTHS if n < self.length), self.length)

    @property
    def tested_lengths(self) -> tuple[int, ...]:
        """The lengths of the test rows: `length`, and 2, 4, 16 and 128 times as long."""
        return tuple(times * self.length for times in (1, 2, 4, 16, 128))
