"""The options of `rules`."""

import dataclasses

from training.errors import InputError
from training.options import DATA, MODEL, TRAINING, RunConfig, at_least, one_of, option

BOUNDARIES = ("periodic", "fixed")
# Short rows cost little, and a mixture of lengths leaves only what holds at every length.
SHORT_LENGTHS = (4, 5, 6, 7, 8, 9, 10, 12, 16)


@dataclasses.dataclass(frozen=True)
class RulesConfig(RunConfig):
    """Everything that decides what `rules` trains and what it writes.

    Raises:
        InputError: If a value is out of its range.
    """

    rule: int = option(30, DATA, "Wolfram's number of the rule, 0 to 255", metavar="N")
    steps: int = option(1, DATA, "steps of the rule that the network makes at once", metavar="N")
    length: int = option(
        32,
        DATA,
        "greatest length of the rows it is trained on; shorter ones are mixed in, and it is tested "
        "at 2, 4 and 16 times the length too",
        metavar="N",
    )
    boundary: str = option(
        "periodic", DATA, "rings, or rows with zeros beside both ends", choices=BOUNDARIES
    )

    bond_dim: int | None = option(
        None,
        MODEL,
        "size of the matrices (default: 6, 10, 18, 34, ... for 1, 2, 3, 4, ... steps)",
        type=int,
        metavar="N",
    )
    num_layers: int = option(1, MODEL, "tensor-network attentions", metavar="N")
    # Larger than a layer's own default: a cell has to tell its neighbours from all others.
    initial_deviation: float = option(0.3, MODEL, "noise on the identity at the start")

    epochs: int = option(11, TRAINING, "rows of metrics.csv", metavar="N")
    batches_per_epoch: int = option(100, TRAINING, "batches of new rows an epoch", metavar="N")
    batch_size: int = option(64, TRAINING, "rows in a step", metavar="N")
    learning_rate: float = option(0.01, TRAINING, "of Adam at the start; it falls to 0 by a cosine")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.rule <= 255:
            raise InputError(f"Expected a rule of 0 to 255. Received: rule={self.rule}")
        one_of(BOUNDARIES, boundary=self.boundary)
        at_least(
            1,
            steps=self.steps,
            length=self.length,
            bond_dim=self.bond_dim,
            num_layers=self.num_layers,
            batches_per_epoch=self.batches_per_epoch,
        )
        at_least(0, initial_deviation=self.initial_deviation)
        if self.bond_dim is None and self.steps > 5:
            raise InputError(
                "Expected a bond_dim for more than 5 steps, the default doubles with each. "
                f"Received: steps={self.steps}"
            )
        if self.bond_dim is None:
            # A step more, and each side of a cell has a bit more to be known of.
            object.__setattr__(self, "bond_dim", 2 + 2 ** (self.steps + 1))

    @property
    def default_name(self) -> str:
        """The name of the run if none is given."""
        return f"rule-{self.rule}-steps-{self.steps}-{self.boundary}-{self.seed}"

    @property
    def trained_lengths(self) -> tuple[int, ...]:
        """The lengths of the training rows, one after the other, batch by batch."""
        return (*(n for n in SHORT_LENGTHS if n < self.length), self.length)

    @property
    def tested_lengths(self) -> tuple[int, ...]:
        """The lengths of the test rows: the longest trained one, and 2, 4 and 16 times that."""
        return tuple(times * self.length for times in (1, 2, 4, 16))
