"""The options of `rules`."""

from typing import Any

from training.base.options import (
    DATA,
    MODEL,
    TRAINING,
    RunConfig,
    batch_size_option,
    epochs_option,
    name_option,
    option,
)

BOUNDARIES = ("periodic", "fixed")
# Short rows cost little, and with a mixture of lengths the network learns a rule for every length.
SHORT_LENGTHS = (4, 5, 6, 7, 8, 9, 10, 12, 16)


def _default_bond_dim(values: dict[str, Any]) -> int:
    # With each additional step, a cell depends on one more bit on either side.
    return 2 + 2 ** (min(values["steps"], 5) + 1)


def _default_name(values: dict[str, Any]) -> str:
    return f"rule-{values['rule']}-steps-{values['steps']}-{values['boundary']}-{values['seed']}"


class RulesConfig(RunConfig):
    """The options of `rules`: data, model, training and output.

    Raises:
        InputError: If a value is out of its range.
    """

    rule: int = option(30, DATA, "Wolfram's number of the rule", ge=0, le=255)
    steps: int = option(
        1, DATA, "steps of the automaton that the network computes at once", ge=1, le=100
    )
    length: int = option(
        32,
        DATA,
        "maximum length of the training rows; shorter ones are mixed in, and the network is also "
        "tested at 2, 4 and 16 times this length",
        ge=1,
        le=65_536,
    )
    boundary: str = option(
        "periodic",
        DATA,
        "periodic: the row is a ring; fixed: zeros beyond both ends",
        choices=BOUNDARIES,
    )

    bond_dim: int = option(
        None,
        MODEL,
        "bond dimension: size of the network's matrices (default: 6, 10, 18, 34, 66 for 1 to 5 "
        "steps)",
        compute=_default_bond_dim,
        ge=1,
        le=65_536,
    )
    num_layers: int = option(1, MODEL, "number of tensor-network attention layers", ge=1, le=100)
    # Larger than the layer's default, because a cell has to distinguish its neighbors from others.
    initial_deviation: float = option(
        0.3, MODEL, "standard deviation of the noise on the initial identity matrices", ge=0
    )

    epochs: int = epochs_option(11, "number of epochs")
    batches_per_epoch: int = option(
        100, TRAINING, "batches of new rows per epoch", ge=1, le=1_000_000
    )
    batch_size: int = batch_size_option(64)
    learning_rate: float = option(
        0.01, TRAINING, "initial learning rate of Adam, with cosine decay to 0", gt=0
    )
    name: str = name_option(_default_name, "rule-RULE-steps-STEPS-BOUNDARY-SEED")

    def check_together(self) -> None:
        if self.steps > 5 and "bond_dim" not in self.model_fields_set:
            raise ValueError(
                "Expected a bond_dim for more than 5 steps: the default doubles with every step. "
                f"Received: steps={self.steps}"
            )

    @property
    def trained_lengths(self) -> tuple[int, ...]:
        """The lengths of the training rows; successive batches take them in turn."""
        return (*(n for n in SHORT_LENGTHS if n < self.length), self.length)

    @property
    def tested_lengths(self) -> tuple[int, ...]:
        """The lengths of the test rows: `length`, and 2, 4 and 16 times as long."""
        return tuple(times * self.length for times in (1, 2, 4, 16))
