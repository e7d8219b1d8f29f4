"""Trains the networks of the study `grokking`: all seeds of a setting at once, on JAX."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tnattn_studies.grokking_config import GrokkingTraining, Setting
from keras_tnattn_train.rules.automata import evolve
from keras_tnattn_train.rules.config import RulesConfig
from keras_tnattn_train.rules.models import network
from keras_tnattn_train.runs.training import reset_session

# The trainable variables, the other ones and those of the optimizer, with an axis of seeds.
State = tuple[list[Any], list[Any], list[Any]]


class Trained(NamedTuple):
    """What was measured while the networks of a setting were trained.

    Attributes:
        weights: The number of weights of a network.
        seconds: The processor's seconds for a seed, compilation included.
        train: Accuracies on the training rows, `(seeds, measurements)`.
        test: Accuracies on the test rows, of the same shape.
    """

    weights: int
    seconds: float
    train: np.ndarray
    test: np.ndarray


def fixed_rows(options: GrokkingTraining, rows: int, seed: int) -> np.ndarray:
    """Returns random rows of bits, all different, `(rows + options.test_rows, options.length)`.

    The training rows come first. Fewer training rows are the first ones of more, and the test rows
    are the same.
    """
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(2**options.length)
    numbers = np.concatenate([numbers[options.test_rows :][:rows], numbers[: options.test_rows]])
    return ((numbers[:, None] >> np.arange(options.length)) & 1).astype("int32")


def shows_whole_rule(options: GrokkingTraining, setting: Setting, seed: int) -> bool:
    """Returns whether each of the eight neighborhoods occurs in the training rows of a seed."""
    rows = fixed_rows(options, setting.rows, seed)[: setting.rows]
    # A rule of a single neighborhood marks the cells that have it.
    marked = (evolve(rows, 1 << number, boundary=setting.boundary) for number in range(8))
    return all(cells.any() for cells in marked)


def train_seeds(options: GrokkingTraining, setting: Setting, seeds: Sequence[int]) -> Trained:
    """Trains a network of a setting with each seed, all at once, and measures their accuracies.

    Each seed has rows, initial weights and an optimizer of its own.
    """
    import jax

    start = time.process_time()
    bits = np.stack([fixed_rows(options, setting.rows, seed) for seed in seeds])
    flat = bits.reshape(-1, options.length)
    truth = evolve(flat, options.rule, boundary=setting.boundary).reshape(bits.shape)

    states = []
    for seed in seeds:
        reset_session(seed)
        model, optimizer = _network_and_optimizer(options, setting)
        parts = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
        states.append(tuple([keras.ops.convert_to_numpy(v) for v in part] for part in parts))
    state = jax.tree.map(lambda *values: np.stack(values), *states)
    advance, correct = _functions(model, optimizer, options.epochs_between)

    n = setting.rows
    shares = []
    for _ in range(options.epochs // options.epochs_between):
        state = advance(state, bits[:, :n], truth[:, :n])
        by_row = np.asarray(correct(state, bits, truth))
        shares.append((by_row[:, :n].mean(1), by_row[:, n:].mean(1)))
    train, test = np.moveaxis(np.array(shares), 0, -1)
    seconds = (time.process_time() - start) / len(seeds)
    return Trained(model.count_params(), seconds, train, test)


def _network_and_optimizer(
    options: GrokkingTraining, setting: Setting
) -> tuple[keras.Model, keras.optimizers.Optimizer]:
    bond: dict[str, Any] = {"bond_dim": setting.bond_dim} if setting.bond_dim else {}
    config = RulesConfig(
        rule=options.rule, boundary=setting.boundary, model=setting.network, **bond
    )
    model = network(config)
    # Clipped as in the task `rules`, where a rare large gradient would undo some of the learning.
    optimizer = keras.optimizers.AdamW(
        options.rate_of(setting.network), weight_decay=setting.weight_decay, clipnorm=1.0
    )
    optimizer.build(model.trainable_variables)
    return model, optimizer


def _functions(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, epochs: int
) -> tuple[Callable[..., State], Callable[..., Any]]:
    """Returns functions that train all seeds for some epochs, and that measure each row."""
    import jax

    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss(trainable: list[Any], other: list[Any], rows: Any, truth: Any) -> tuple[Any, Any]:
        logits, other = model.stateless_call(trainable, other, rows, training=True)
        return cross_entropy(truth, logits), other

    def step(state: State, rows: Any, truth: Any) -> State:
        trainable, other, moments = state
        gradients, other = jax.grad(loss, has_aux=True)(trainable, other, rows, truth)
        trainable, moments = optimizer.stateless_apply(moments, gradients, trainable)
        return trainable, other, moments

    def advance(state: State, rows: Any, truth: Any) -> State:
        every_seed = jax.vmap(step)
        return jax.lax.fori_loop(0, epochs, lambda _, s: every_seed(s, rows, truth), state)

    def correct(state: State, rows: Any, truth: Any) -> Any:
        logits, _ = model.stateless_call(state[0], state[1], rows, training=False)
        return keras.ops.mean(logits.argmax(-1) == truth, axis=-1)

    return jax.jit(advance), jax.jit(jax.vmap(correct))
