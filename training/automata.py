"""Elementary cellular automata: one row of bits to the row some steps later."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import keras
import numpy as np

from keras_tnattn.layers import LocalEmbedding
from keras_tnattn.models import deep_tensor_network

BOUNDARIES = ("periodic", "fixed")
# Short rings cost little, and a mixture of lengths leaves only what holds at every length.
LENGTHS = (4, 5, 6, 7, 8, 9, 10, 12, 16)


def evolve(rows: np.ndarray, rule: int, steps: int = 1, boundary: str = "periodic") -> np.ndarray:
    """Returns the rows `steps` steps later under an elementary rule.

    Args:
        rows: Bits `(B, N)`.
        rule: Wolfram's number of the rule, 0 to 255: bit `4 l + 2 c + r` is what a cell becomes
            whose left neighbour, own state and right neighbour are `l`, `c`, `r`.
        steps: Number of steps.
        boundary: `"periodic"`, or `"fixed"`: zeros beside both ends.

    Raises:
        ValueError: For a rule out of range or an unknown boundary.
    """
    if not 0 <= rule <= 255:
        raise ValueError(f"Expected a rule of 0 to 255. Received: rule={rule}")
    if boundary not in BOUNDARIES:
        raise ValueError(f"Expected one of {BOUNDARIES}. Received: boundary={boundary!r}")
    mode = {"periodic": "wrap", "fixed": "constant"}[boundary]
    for _ in range(steps):
        padded = np.pad(rows, ((0, 0), (1, 1)), mode=mode)
        rows = (rule >> (4 * padded[:, :-2] + 2 * rows + padded[:, 2:])) & 1
    return rows


@dataclasses.dataclass(frozen=True)
class RuleTask:
    """What to learn, and how: the defaults are exact for rules 30, 90, 110 and 184.

    `lengths` are the trained lengths, one after the other, batch by batch. The noise on the
    identity is larger than a layer's default: a cell has to tell its neighbours from all others.
    """

    rule: int
    steps: int = 1
    boundary: str = "periodic"
    lengths: Sequence[int] = LENGTHS
    bond_dim: int = 6
    num_layers: int = 1
    initial_deviation: float = 0.3
    learning_rate: float = 0.02
    num_batches: int = 1100
    batch_size: int = 64
    seed: int = 0


def learn_rule(task: RuleTask) -> keras.Model:
    """Returns a network from bits `(B, N)`, any `N`, to logits `(B, N, 2)`, trained on the rule."""
    keras.utils.set_random_seed(task.seed)
    periodic = {"boundary": "closed"}
    fixed = {"boundary": "open", "trainable_boundary": True}
    model = deep_tensor_network(
        2,
        LocalEmbedding("one_hot", num_ids=2),
        num_layers=task.num_layers,
        bond_dim=task.bond_dim,
        head="sequence",
        initial_deviation=task.initial_deviation,
        **(periodic if task.boundary == "periodic" else fixed),
    )
    schedule = keras.optimizers.schedules.CosineDecay(task.learning_rate, task.num_batches)
    model.compile(
        keras.optimizers.Adam(schedule),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(_batches(task), steps_per_epoch=task.num_batches, shuffle=False, verbose=0)
    return model


def accuracies(
    model: keras.Model, task: RuleTask, lengths: Sequence[int], num_cells: int = 65_536
) -> dict[int, float]:
    """Returns the share of cells predicted right at each length, on about `num_cells` new cells."""
    rng = np.random.default_rng(task.seed + 1)
    found = {}
    for length in lengths:
        rows = rng.integers(0, 2, (-(-num_cells // length), length))
        predicted = model.predict(rows, verbose=0, batch_size=512).argmax(-1)
        found[length] = float(
            np.mean(predicted == evolve(rows, task.rule, task.steps, task.boundary))
        )
    return found


def _batches(task: RuleTask) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(task.seed)
    for length in itertools.cycle(task.lengths):
        rows = rng.integers(0, 2, (task.batch_size, length))
        yield rows, evolve(rows, task.rule, task.steps, task.boundary)
