"""What the study `grokking` trains: its settings, and the options that all trainings share."""

from collections.abc import Iterable
from typing import NamedTuple

from keras_tnattn_studies.measuring import Columns
from keras_tnattn_train.options.options import DATA, TRAINING, Options, epochs_option, option
from keras_tnattn_train.rules.config import BOUNDARIES

# The columns of results.csv, with their types. The first ones identify a training.
KEYS: Columns = {
    "boundary": str,
    "network": str,
    "bond_dim": int,
    "weight_decay": float,
    "rows": int,
    "seed": int,
}
# The epochs are missing if an accuracy never reached 99 %.
MEASURED: Columns = {
    **dict.fromkeys(("weights", "train_epoch", "test_epoch"), int),
    **dict.fromkeys(("train_accuracy", "test_accuracy", "best_test_accuracy", "seconds"), float),
}
# With their learning rates.
NETWORKS = {"tn": 0.003, "lstm": 0.03, "transformer": 0.01}
RATES = ", ".join(f"{rate:g} for {name}" for name, rate in NETWORKS.items())


class Setting(NamedTuple):
    """What differs between the trainings of the study, but for their seed.

    Attributes:
        boundary: The ends of the rows, `"periodic"` or `"fixed"`.
        network: A network of the task `rules`.
        bond_dim: Its bond dimension; 0 if it has none.
        weight_decay: The decoupled weight decay of AdamW.
        rows: The number of training rows.
    """

    boundary: str
    network: str
    bond_dim: int
    weight_decay: float
    rows: int

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        bond = f", bond dimension {self.bond_dim}" if self.bond_dim else ""
        return (
            f"{self.network}{bond}, weight decay {self.weight_decay:g}, {self.rows} "
            f"{self.boundary} rows"
        )


BASE = Setting(BOUNDARIES[0], "tn", 6, 0.1, 3)
MOST_BONDS = 256
MOST_ROWS = 128  # with as many test rows there are 256 of the shortest


def base_of(network: str, boundary: str) -> Setting:
    """Returns the setting of a network that is varied."""
    bond_dim = BASE.bond_dim if network == "tn" else 0
    return BASE._replace(boundary=boundary, network=network, bond_dim=bond_dim)


def settings_of(
    networks: Iterable[str],
    boundaries: Iterable[str],
    rows: Iterable[int],
    bond_dims: Iterable[int],
    weight_decays: Iterable[float],
) -> list[Setting]:
    """Returns all settings; each differs in one factor from the base of its network and ends.

    The number of rows is varied with all networks and ends, bond dimension and weight decay with
    tensor-network attention on rings.
    """
    bases = [base_of(network, boundary) for boundary in boundaries for network in networks]
    settings = [base._replace(rows=number) for base in bases for number in rows]
    if BASE in bases:
        settings += [BASE._replace(bond_dim=bond_dim) for bond_dim in bond_dims]
        settings += [BASE._replace(weight_decay=decay) for decay in weight_decays]
    return sorted(set(settings), key=place)


def place(key: tuple) -> tuple:
    """Returns what the rows of results.csv are sorted by."""
    boundary, network, *others = key
    return BOUNDARIES.index(boundary), list(NETWORKS).index(network), *others


class GrokkingTraining(Options):
    """The options that all trainings of the study share."""

    rule: int = option(30, DATA, "Wolfram's number of the rule", ge=0, le=255)
    length: int = option(16, DATA, "cells of a row", ge=8, le=20)
    test_rows: int = option(64, DATA, "rows to test with", ge=1, le=128)
    epochs: int = epochs_option(2000, "epochs; each is one step with all training rows")
    learning_rate: float | None = option(
        None,
        TRAINING,
        f"learning rate of AdamW for all networks (default: one for each, {RATES})",
        gt=0,
    )
    epochs_between: int = option(
        10, TRAINING, "epochs between two measurements; a divisor of epochs", ge=1
    )

    def check_together(self) -> None:
        if self.epochs % self.epochs_between:
            raise ValueError(
                "Expected epochs to be a multiple of epochs_between. Received: "
                f"epochs={self.epochs}, epochs_between={self.epochs_between}"
            )

    def rate_of(self, network: str) -> float:
        """Returns the learning rate of a network."""
        return self.learning_rate or NETWORKS[network]
