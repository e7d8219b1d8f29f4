"""The loop that all searches share: compiled, in chunks of steps, in batches of sequences."""

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from keras.tree import map_structure

from keras_tnattn.checks import check_int
from keras_tnattn.search.steps import Steps
from keras_tnattn.typing import Tensor

_CHUNK = 16  # steps between two checks for sequences that are done


class State(NamedTuple):
    """The state of a search, for `B` sequences, `K` hypotheses each, and `L` ids so far.

    Attributes:
        step: Scalar integer, the position of the last id.
        first: Scalar integer, the position of the last id that was given.
        limit: Integers `(B,)`: the position after which nothing is generated.
        done: Booleans `(B,)`: the sequences that are not computed further.
        context: The context of the steps, a nested structure of tensors `(B, ...)`.
        ids: Integers `(B, K, L)`, of the hypotheses to extend.
        model_state: The state of the steps, a nested structure of tensors `(B, K, ...)`.
        own: What the search itself keeps, a nested structure of tensors `(B, ...)`.
    """

    step: Tensor
    first: Tensor
    limit: Tensor
    done: Tensor
    context: Any
    ids: Tensor
    model_state: Any
    own: Any


class Search(abc.ABC):
    """Extends sequences step by step.

    A subclass defines `_choose`, and `_initial`, the part of the state that is its own.

    Args:
        steps: The steps of a model.
        num_beams: Number `K` of hypotheses for each sequence.
        extra_tokens: Number of tokens allowed beyond the limit of the inputs.
    """

    def __init__(self, steps: Steps, num_beams: int, extra_tokens: int) -> None:
        self.steps = steps
        self.model = steps.model
        self.num_beams = num_beams
        self.extra_tokens = check_int("extra_tokens", extra_tokens)
        self._start = _Compiled(steps.model, lambda inputs: self.start(**inputs))
        self._advance = _Compiled(steps.model, lambda state: self.advance(state, _CHUNK))
        self._advance_once = _Compiled(steps.model, lambda state: self.advance(state, 1))

    @abc.abstractmethod
    def _initial(self, ids: Tensor, **options: Tensor) -> Any:
        """Returns what the search keeps of its own, before the first choice after `(B, K, L)`."""

    @abc.abstractmethod
    def _choose(self, state: State, logits: Tensor) -> State:
        """Chooses the next ids by their logits `(B, K, V)`; there is room for them."""

    def start(self, inputs: Tensor, **options: Tensor) -> State:
        """Computes the first step for ids `(B, S)`, and chooses the ids after them."""
        start = self.steps.start(ops.cast(inputs, "int32"))
        batch, length = ops.shape(start.ids)

        def repeat(x: Tensor) -> Tensor:
            x = ops.expand_dims(x, 1)
            return x if self.num_beams == 1 else ops.repeat(x, self.num_beams, axis=1)

        last = ops.cast(length - 1, "int32")
        ids = repeat(start.ids)
        state = State(
            step=last,
            first=last,
            limit=ops.cast(start.limit, "int32") + self.extra_tokens,
            done=ops.zeros((batch,), "bool"),
            context=start.context,
            ids=ids,
            model_state=map_structure(repeat, start.state),
            own=self._initial(ids, **options),
        )
        state = self._longer(state, 1)
        logits = ops.broadcast_to(
            start.logits[:, None], (batch, self.num_beams, start.logits.shape[-1])
        )
        return self._choose(state, logits)

    def advance(self, state: State, num_steps: Tensor) -> State:
        """Advances by `num_steps` steps, or until all sequences are done; there is room."""
        end = state.step + num_steps
        return ops.while_loop(
            lambda state: ops.logical_and(state.step < end, ops.logical_not(ops.all(state.done))),
            lambda state: (self._step(state),),
            (state,),
        )[0]

    def _step(self, state: State) -> State:
        batch, num_beams, _ = ops.shape(state.ids)

        def flat(x: Tensor) -> Tensor:
            return ops.reshape(x, (batch * num_beams, *ops.shape(x)[2:]))

        def unflat(x: Tensor) -> Tensor:
            return ops.reshape(x, (batch, num_beams, *ops.shape(x)[1:]))

        logits, model_state = self.steps.step(
            flat(state.ids), state.step, state.context, map_structure(flat, state.model_state)
        )
        state = state._replace(model_state=map_structure(unflat, model_state))
        return self._choose(state, unflat(logits))

    def _longer(self, state: State, num_steps: Tensor = _CHUNK) -> State:
        """Gives ids and states room for more ids."""
        return state._replace(
            ids=with_room(state.ids, num_steps),
            model_state=self.steps.with_room(state.model_state, num_steps),
        )

    def _prompts(self, name: str, prompts: Any, new: int, option: str) -> list[np.ndarray]:
        """Returns the ids of prompts which leave the model room for `new` ones."""
        rows = self._rows(name, prompts)
        for number, row in enumerate(rows):
            if not len(row):
                raise ValueError(f"Expected prompts of at least one id. Received: none in {number}")
        longest = max(map(len, rows), default=0)
        limit = getattr(self.model, "max_length", None)
        if limit is not None and new >= limit:
            raise ValueError(
                f"Expected fewer new tokens than the model reads, {limit}. Received: {option}={new}"
            )
        if limit is not None and longest + new > limit:
            raise ValueError(
                f"Expected prompts of at most {limit - new} ids, as the model reads {limit} and "
                f"{option}={new}. Received: one of {longest}"
            )
        return rows

    def _rows(self, name: str, inputs: Any) -> list[np.ndarray]:
        """Checks ids, a padded array `(B, S)` or a list of sequences, and removes the padding."""
        size = self.steps.input_vocabulary_size
        rows = [np.asarray(row) for row in inputs]
        for row in rows:
            unknown = row[(row < 0) | (row >= size)]
            if unknown.size:
                raise ValueError(
                    f"Expected ids of 0 to {size - 1}, of the vocabulary of the inputs. "
                    f"Received: {name} with {unknown[0]}"
                )
        # Only what is behind the last token is padding: that between tokens stays.
        lengths = [((row != 0) * np.arange(1, len(row) + 1)).max(initial=0) for row in rows]
        return [row[:n].astype("int32") for row, n in zip(rows, lengths, strict=True)]

    def _run(
        self,
        rows: Sequence[np.ndarray],
        batch_size: int,
        options: Callable[[np.ndarray], dict[str, np.ndarray]] = lambda rows: {},
        steps_at_once: int = _CHUNK,
    ) -> Iterator[tuple[np.ndarray, np.ndarray, State]]:
        """Runs the search over all rows, those of similar length together.

        Yields after each chunk the numbers of the rows, which of them are done, and the state, with
        as many or more sequences. Rows that are done are not computed further.
        """
        check_int("batch_size", batch_size)
        order = np.argsort([len(row) for row in rows], kind="stable")
        advance = self._advance if steps_at_once == _CHUNK else self._advance_once
        for first in range(0, len(order), batch_size):
            numbers = order[first : first + batch_size]
            inputs = {"inputs": self.steps.pack([rows[i] for i in numbers]), **options(numbers)}
            state = self._start.predict_on_batch(map_structure(_rounded_up, inputs))
            while True:
                done = state.done[: len(numbers)]
                yield numbers, done, state
                if done.all():
                    break
                if done.any():
                    remaining = np.flatnonzero(~done)
                    numbers, state = numbers[remaining], _select(state, remaining)
                # Always as many places more, so that few shapes are compiled.
                if state.ids.shape[-1] - 1 - int(state.step) < steps_at_once:
                    state = self._longer(state)
                state = advance.predict_on_batch(state)


class _Compiled(keras.Model):
    """A function of tensors as a model, whose `predict_on_batch` every backend compiles.

    The model whose weights the function reads is a sublayer: on JAX the weights of other models
    would be compiled as constants.
    """

    def __init__(self, model: keras.Model, function: Callable[[Any], Any]) -> None:
        super().__init__(name="search", autocast=False)
        self.model = model
        self.function = function
        # XLA is a tenth faster at best on a CPU, and compiles each size that is left of a batch
        # for itself; without it TensorFlow traces once for all. JAX has nothing else.
        self.jit_compile = keras.backend.backend() == "jax"
        self.built = True  # else Keras calls it once step by step, and JAX compiles each step

    def call(self, inputs: Any) -> Any:
        return self.function(inputs)


def _select(state: State, rows: np.ndarray) -> State:
    """Keeps some of the sequences; their axis is the first one of all tensors but two."""
    parts = state._asdict()
    del parts["step"], parts["first"]
    return state._replace(**map_structure(lambda x: _rounded_up(x[rows]), parts))


def _rounded_up(x: np.ndarray) -> np.ndarray:
    """Repeats the last sequence up to a power of two, if every shape is compiled separately."""
    if keras.backend.backend() != "jax":
        return x
    missing = (1 << (len(x) - 1).bit_length()) - len(x)
    return np.concatenate([x, np.repeat(x[-1:], missing, axis=0)])


def with_room(ids: Tensor, num_tokens: Tensor) -> Tensor:
    """Returns ids `(..., L)` with room for more."""
    return ops.pad(ids, [(0, 0)] * (len(ids.shape) - 1) + [(0, num_tokens)])


def write(ids: Tensor, position: Tensor, values: Tensor) -> Tensor:
    """Returns ids `(B, K, L)` with `values` `(B, K)` at one position."""
    return ops.slice_update(ids, [0, 0, position], ops.cast(values, ids.dtype)[..., None])


def gather(x: Tensor, indices: Tensor) -> Tensor:
    """Returns `x[b, indices[b, k]]` for `x` `(B, N, ...)` and indices `(B, K)`."""
    batch, num_rows = ops.shape(x)[:2]
    flat = ops.reshape(x, (batch * num_rows, *ops.shape(x)[2:]))
    rows = ops.arange(batch, dtype="int32")[:, None] * num_rows + ops.cast(indices, "int32")
    return ops.take(flat, rows, axis=0)


def unless_done(done: Tensor, old: Any, new: Any) -> Any:
    """Returns `old` for sequences that are done, else `new`."""

    def choose(x: Tensor, y: Tensor) -> Tensor:
        return ops.where(ops.reshape(done, (-1, *[1] * (len(x.shape) - 1))), x, y)

    return map_structure(choose, old, new)
