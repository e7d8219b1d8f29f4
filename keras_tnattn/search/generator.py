"""Greedy and sampled continuations of prompts."""

import numbers
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tnattn.checks import check_int
from keras_tnattn.search.filters import draw, penalize
from keras_tnattn.search.loop import Search, State, write
from keras_tnattn.search.model_steps import decoding_steps
from keras_tnattn.search.steps import Steps
from keras_tnattn.typing import Tensor


class Generated(NamedTuple):
    """What was generated for `B` prompts.

    Attributes:
        ids: Integers `(B, L)`, without the prompts, with the end id or the stop sequence if one was
            reached, then 0.
        finished: Booleans `(B,)`: whether one was reached.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.search.generator import Generated
        >>> Generated(np.array([[5, 7, 0]]), np.array([True])).ids[0]
        array([5, 7, 0])
    """

    ids: np.ndarray
    finished: np.ndarray


class _Sampled(NamedTuple):
    """What the generation keeps; an empty tuple for what its options do not need.

    Attributes:
        finished: Booleans `(B,)`: whether the end id or a stop sequence was reached.
        noise: Floats `(B, max_new_tokens)`, uniform in [0, 1).
        used: Booleans `(B, V)`: the ids that the prompt or the text has.
    """

    finished: Tensor
    noise: Tensor = ()
    used: Tensor = ()


class Generator(Search):
    """Continues prompts with a language model, by the most probable ids or by sampling.

    Each step chooses the next id of every prompt: with `temperature=0` the most probable one, else
    one drawn from `softmax(logits / temperature)` of the candidates that `top_k`, then `top_p`,
    then `min_p` leave. Id 0, padding, is never chosen. A prompt is finished after `end_id`, or
    after one of the stop sequences, and then not computed further.

    Sampling takes one uniform number per prompt and step from `seed` and the number of the prompt:
    the same prompts give the same texts in batches of any size, and on every backend as far as the
    logits agree.

    A step costs one pass of the model for one token, whatever the length so far, if the attention
    keeps a state of the earlier tokens, else for the whole sequence; see
    `keras_tnattn.search.model_steps.LanguageModelSteps`.

    Args:
        model: A `keras_tnattn.models.LanguageModel`, or any `Steps`.
        max_new_tokens: Number of ids to generate at most. Defaults to 100.
        temperature: Divides the logits; 0 (default) chooses the most probable id.
        top_k: Number of most probable ids that are candidates. Defaults to all.
        top_p: Sum of probabilities of the candidates, in (0, 1]. Default: all.
        min_p: Smallest probability of a candidate, as a share of the largest, in [0, 1].
            Default: any.
        repetition_penalty: Divides the positive logits of ids that the prompt or the text has, and
            multiplies the negative ones. Defaults to 1, no penalty.
        end_id: The id that ends a text. Defaults to `None`.
        stop: Sequences of ids that end a text. Defaults to none.
        seed: Seed of the sampling. Defaults to 0.
        key_value_cache: Whether to keep a state of the earlier tokens. Defaults to `None`: if that
            changes nothing.
        metric_cache: Whether to keep the metric of the prompt, for power law attention as
            published. Defaults to `False`.

    Raises:
        ValueError: If a number is out of range, or a cache does not suit the attention.

    Example:
        >>> from keras_tnattn.models import language_model
        >>> from keras_tnattn.search import Generator
        >>> model = language_model(100, "sdpa", model_dim=16, num_heads=2, feedforward_dim=16)
        >>> generate = Generator(model, max_new_tokens=5, temperature=0.8, top_p=0.9, seed=1)
        >>> generate([[5, 7, 9], [8]]).ids.shape
        (2, 5)
    """

    def __init__(
        self,
        model: keras.Model | Steps,
        max_new_tokens: int = 100,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        end_id: int | None = None,
        stop: Sequence[Sequence[int]] = (),
        seed: int = 0,
        key_value_cache: bool | None = None,
        metric_cache: bool = False,
    ) -> None:
        steps = decoding_steps(model, key_value_cache=key_value_cache, metric_cache=metric_cache)
        super().__init__(steps, 1, check_int("max_new_tokens", max_new_tokens))
        self.max_new_tokens = self.extra_tokens
        self.temperature = _check_range("temperature", temperature, 0.0, float("inf"))
        self.top_k = None if top_k is None else check_int("top_k", top_k)
        self.top_p = None if top_p is None else _check_range("top_p", top_p, 0.0, 1.0)
        if top_p == 0:
            raise ValueError("Expected a sum of probabilities above 0. Received: top_p=0")
        self.min_p = None if min_p is None else _check_range("min_p", min_p, 0.0, 1.0)
        self.repetition_penalty = _check_range(
            "repetition_penalty", repetition_penalty, 1e-3, float("inf")
        )
        sequences = [[end_id]] if end_id is not None else []
        sequences += [list(sequence) for sequence in stop]
        for sequence in sequences:
            ids = np.asarray(sequence)
            known = ids.size and np.issubdtype(ids.dtype, np.integer)
            if not known or ids.min() < 1 or ids.max() >= steps.vocabulary_size:
                raise ValueError(
                    f"Expected ids of 1 to {steps.vocabulary_size - 1}, at least one for each stop "
                    f"sequence. Received: end_id={end_id}, stop={list(map(list, stop))}"
                )
        self.stop_sequences = sequences
        self.seed = check_int("seed", seed, at_least=0)

    def __call__(self, prompts: Sequence[Any] | np.ndarray, batch_size: int = 32) -> Generated:
        """Continues prompts.

        Args:
            prompts: `B` sequences of ids, or an array `(B, P)` that is padded with 0 at the end.
            batch_size: Number of prompts that are continued together. Defaults to 32.

        Raises:
            ValueError: If a prompt is empty, has an id that is not in the vocabulary, or is longer,
                with the tokens to be generated, than the model's `max_length`.
        """
        rows = self._prompts("prompts", prompts, self.max_new_tokens, "max_new_tokens")
        ids = np.zeros((len(rows), self.max_new_tokens), "int32")
        finished = np.zeros(len(rows), bool)
        for running, done, state in self._run(rows, batch_size, self._noise):
            given = int(state.first) + 1
            count = len(running)
            new = state.ids[:count, 0, given:][done]
            ids[running[done], : new.shape[1]] = new[:, : self.max_new_tokens]
            finished[running[done]] = state.own.finished[:count][done]
        longest = (ids != 0).any(0).nonzero()[0]
        return Generated(ids[:, : longest.max(initial=-1) + 1], finished)

    def stream(self, prompt: Sequence[int] | np.ndarray) -> Iterator[int]:
        """Yields the ids that continue one prompt, each as soon as it is chosen.

        Raises:
            ValueError: As in `__call__`.
        """
        position = None
        rows = self._prompts("prompts", [prompt], self.max_new_tokens, "max_new_tokens")
        for _, _, state in self._run(rows, 1, self._noise, steps_at_once=1):
            position = int(state.first) + 1 if position is None else position + 1
            yield int(state.ids[0, 0, position])

    def _noise(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        if self.temperature == 0:
            return {}
        draws = [
            np.random.default_rng([self.seed, int(n)]).random(self.max_new_tokens) for n in numbers
        ]
        return {"noise": np.array(draws, "float32")}

    def _initial(self, ids: Tensor, **options: Tensor) -> _Sampled:
        own = _Sampled(ops.zeros((ops.shape(ids)[0],), "bool"))
        if "noise" in options:
            own = own._replace(noise=options["noise"])
        if self.repetition_penalty != 1:
            one_hot = ops.one_hot(ids[:, 0], self.steps.vocabulary_size, dtype="bool")
            own = own._replace(used=ops.any(one_hot, axis=1))
        return own

    def _choose(self, state: State, logits: Tensor) -> State:
        own = state.own
        logits = ops.cast(logits[:, 0], "float32")
        size = self.steps.vocabulary_size
        if self.repetition_penalty != 1:
            logits = penalize(logits, own.used, self.repetition_penalty)
        lowest = ops.full_like(logits, -1e30)
        logits = ops.where(ops.arange(size) == 0, lowest, logits)
        position = state.step + 1
        if self.temperature == 0:
            tokens = ops.argmax(logits, axis=-1)
        else:
            noise = ops.take(own.noise, state.step - state.first, axis=1)
            tokens = draw(
                logits / self.temperature,
                noise,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
            )
        done = state.done
        tokens = ops.where(done, 0, ops.cast(tokens, "int32"))
        ids = write(state.ids, position, tokens[:, None])
        number = position - state.first
        now = ops.zeros_like(done)
        for stop in self.stop_sequences:
            places = ops.maximum(position - len(stop) + 1, 0) + ops.arange(len(stop))
            last = ops.take(ids[:, 0], places, axis=1)
            same = ops.all(last == ops.convert_to_tensor(stop, "int32"), axis=1)
            now = ops.logical_or(now, ops.logical_and(same, number >= len(stop)))
        now = ops.logical_and(now, ops.logical_not(done))
        at_limit = position >= state.limit
        own = own._replace(finished=ops.logical_or(own.finished, now))
        if self.repetition_penalty != 1:
            one_hot = ops.one_hot(tokens, size, dtype="bool")
            own = own._replace(used=ops.logical_or(own.used, one_hot))
        done = ops.logical_or(done, ops.logical_or(now, at_limit))
        return state._replace(step=position, done=done, ids=ids, own=own)


def _check_range(name: str, value: Any, lowest: float, highest: float) -> float:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not lowest <= value <= highest or value == float("inf"):
        raise ValueError(
            f"Expected a finite number of {lowest} to {highest}. Received: {name}={value!r}"
        )
    return float(value)
