"""Greedy and beam search, in batches of sequences."""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops
from keras.tree import map_structure

from keras_tnattn.models.language_model import LanguageModel
from keras_tnattn.search.loop import Search, State, gather, unless_done, with_room, write
from keras_tnattn.search.model_steps import decoding_steps
from keras_tnattn.search.steps import Steps
from keras_tnattn.typing import Tensor


class Hypotheses(NamedTuple):
    """The `K` best hypotheses for each of `B` sentences, best first.

    Attributes:
        ids: Integers `(B, K, L)`: the start id, tokens, the end id if it was reached, then 0.
        scores: Floats `(B, K)`, lower is better; infinite if there are fewer than `K` hypotheses.
        finished: Booleans `(B, K)`: whether the end id was reached.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.search.beam_search import Hypotheses
        >>> ids = np.array([[[2, 7, 3]]])
        >>> Hypotheses(ids, scores=np.array([[0.5]]), finished=np.array([[True]])).ids[0, 0]
        array([2, 7, 3])
    """

    ids: np.ndarray
    scores: np.ndarray
    finished: np.ndarray


class _Best(NamedTuple):
    """The best hypotheses so far: ids `(B, K, L)`, and scores and whether they ended, `(B, K)`."""

    ids: Tensor
    scores: Tensor
    ended: Tensor


class _Beams(NamedTuple):
    """What the search keeps: sums of `-ln p` of the live hypotheses, `(B, K)`, and the best."""

    sums: Tensor
    best: _Best


class BeamSearch(Search):
    """Beam search with length normalization; a beam of 1 is greedy search.

    Translates with a translator, and continues prompts with a language model.

    The score of a hypothesis of `n` ids, including start and end, is `sum(-ln p) / N(n)` with
    `N(n) = ((5 + n) / 6)^length_penalty`; lower is better. With a language model `n` is 1 plus the
    number of generated ids. Each step extends every live hypothesis
    by its `K` most probable tokens. Hypotheses that end are kept, and the `K` best of the others
    stay alive. After a limit, the number of source tokens plus `extra_tokens`, the live hypotheses
    compete with those that have ended. The search of a sentence stops earlier if no live hypothesis
    can reach a better score; this does not change the result.

    The encoder runs once. Decoders that keep a state of the earlier tokens
    (`TransformerDecoder.keeps_state`) compute only the last token in each step: those with
    `keras.layers.MultiHeadAttention` (without `use_gate` and `sliding_window`) from keys and
    values, those with `PowerLawGraphAttention` if its metric is causal, fixed, or, in the attention
    to the source, `metric_from="key"`. The published metric changes with each token, and every step
    computes the whole prefix again.

    The costs, for targets of `L` ids, a target vocabulary of `V` and `n` decoders, are those of the
    encoder for `(B, S)`, `2 B K L d V` FLOPs for the logits, and `L` passes of the decoders. Each
    pass computes `(B K, L)` tokens, with the prefix padded to the next multiple of 16, so that
    FLOPs grow as `L^2`; with a cache it computes `B K` tokens that attend to `L` and `S` keys. The
    memory is `O(B K (L + V))` for ids and logits, plus `O(B K S d)` and that of one pass of the
    decoders, or `O(n B (K L + S) d)` for the cache.

    Args:
        model: A `keras_tnattn.models.Translator` or `LanguageModel`, or its `Steps`.
        beam_size: Number `K` of hypotheses kept. Defaults to 1.
        start_id: The id that starts a target of a translator. Defaults to 2.
        end_id: The id that ends a sequence. Defaults to 3. With `None` none ends before its limit.
        extra_tokens: Number of target tokens allowed beyond the number of source tokens, or of
            tokens that continue a prompt. Defaults to 50.
        length_penalty: Exponent of the normalization, at least 0. Defaults to 0.6.

    Raises:
        ValueError: If the model is neither a translator nor a language model, if `beam_size`, an id
            or another number is out of range, or if an attention of a translator has
            `padding_in_metric=True`.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.models import translator
        >>> from keras_tnattn.search import BeamSearch
        >>> model = translator(100, 120, attention="sdpa", model_dim=16, num_heads=2)
        >>> search = BeamSearch(model, beam_size=2, extra_tokens=5)
        >>> hypotheses = search(np.array([[2, 7, 9, 3], [2, 8, 3, 0]]))
        >>> tuple(hypotheses.scores.shape)
        (2, 2)
    """

    def __init__(
        self,
        model: keras.Model | Steps,
        beam_size: int = 1,
        start_id: int = 2,
        end_id: int | None = 3,
        extra_tokens: int = 50,
        length_penalty: float = 0.6,
    ) -> None:
        steps = decoding_steps(model, start_id=start_id)
        vocabulary_size = steps.vocabulary_size
        if not isinstance(beam_size, int | np.integer) or not 1 <= beam_size <= vocabulary_size:
            raise ValueError(
                f"Expected a beam of 1 to {vocabulary_size}, the size of the target vocabulary. "
                f"Received: beam_size={beam_size}"
            )
        if not 0 <= length_penalty < float("inf"):
            raise ValueError(
                f"Expected a finite number of at least 0. Received: length_penalty={length_penalty}"
            )
        ids = {"start_id": start_id} | ({} if end_id is None else {"end_id": end_id})
        for name, value in ids.items():
            if not isinstance(value, int | np.integer) or not 0 < value < vocabulary_size:
                raise ValueError(
                    f"Expected an id of 1 to {vocabulary_size - 1}, of the target vocabulary. "
                    f"Received: {name}={value}"
                )
        super().__init__(steps, beam_size, extra_tokens)
        self.beam_size = beam_size
        self.end_id = -1 if end_id is None else end_id  # -1 is not the id of a token
        self.length_penalty = length_penalty

    def __call__(self, source: np.ndarray, batch_size: int = 32) -> Hypotheses:
        """Searches in compiled steps; sequences that are done are not computed further.

        Args:
            source: Integers `(B, S)`, padded with 0 at the end: sentences, start and end ids
                included, or prompts.
            batch_size: Number of sequences that are searched together. Defaults to 32.

        Raises:
            ValueError: If `source` is not of this shape, an id is not in the vocabulary, or a
                language model gets an empty prompt or more tokens than it reads.
        """
        source = np.asarray(source)
        if source.ndim != 2:
            raise ValueError(f"Expected ids (B, S). Received: source.shape={source.shape}")
        width = 1 + self.extra_tokens + max(source.shape[1], 1)
        results = Hypotheses(
            np.zeros((len(source), self.beam_size, width), "int32"),
            np.zeros((len(source), self.beam_size), "float32"),
            np.zeros((len(source), self.beam_size), bool),
        )
        if isinstance(self.model, LanguageModel):
            rows = self._prompts("source", source, self.extra_tokens, "extra_tokens")
        else:
            rows = self._rows("source", source)
        for numbers, done, state in self._run(rows, batch_size):
            best = state.own.best
            count = len(numbers)
            # Prompts are padded on their left.
            ids = best.ids[:count][done][..., self._num_skipped(state) :]
            results.ids[numbers[done], :, : ids.shape[-1]] = ids[..., :width]
            results.scores[numbers[done]] = best.scores[:count][done]
            results.finished[numbers[done]] = best.ended[:count][done]
        longest = (results.ids != 0).any((0, 1)).nonzero()[0]
        return results._replace(ids=results.ids[..., : longest.max(initial=0) + 1])

    def _num_skipped(self, state: State) -> int:
        """The number of given ids that are not part of the answer: all but the first of one."""
        first = int(state.first)
        return first + 1 if first else 0

    def search(self, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Searches for a tensor of ids, `(B, S)`, in one graph, for exported models.

        Does not check that the ids are in the vocabulary.

        Returns:
            The tensors `ids`, `scores` and `finished` of `Hypotheses`.
        """
        state = self.start(source)
        # Of no sequence, no step.
        steps = ops.maximum(ops.max(state.limit, initial=0) - state.step, 0)
        best = self.advance(self._longer(state, steps), steps).own.best
        return best.ids, best.scores, best.ended

    def _initial(self, ids: Tensor, **options: Tensor) -> _Beams:
        shape = ops.shape(ids)[:2]
        first = ops.arange(self.beam_size) == 0
        infinite = ops.full(shape, float("inf"), dtype="float32")
        # One live hypothesis to begin with: K equal ones would stay equal.
        sums = ops.where(first, ops.zeros_like(infinite), infinite)
        best = _Best(ops.zeros_like(ids), scores=infinite, ended=ops.zeros(shape, "bool"))
        return _Beams(sums, best)

    def _longer(self, state: State, num_steps: Tensor = 16) -> State:
        state = super()._longer(state, num_steps)
        best = state.own.best
        best = best._replace(ids=with_room(best.ids, num_steps))
        return state._replace(own=state.own._replace(best=best))

    def _choose(self, state: State, logits: Tensor) -> State:
        best = state.own.best
        num_beams = self.beam_size
        probable, tokens = ops.top_k(ops.log_softmax(ops.cast(logits, "float32")), num_beams)
        sums = state.own.sums[..., None] - probable  # (B, K, K): hypothesis, token
        length = ops.cast(state.step - state.first + 2, "float32")
        norm = self._norm(length)
        ends = tokens == self.end_id
        infinite = ops.full_like(sums, float("inf"))
        ended_scores = ops.min(ops.where(ends, sums, infinite), axis=-1) / norm
        sums, choice = _lowest(
            ops.reshape(ops.where(ends, infinite, sums), (-1, num_beams * num_beams)), num_beams
        )
        parents = choice // num_beams
        tokens = ops.take_along_axis(ops.reshape(tokens, (-1, num_beams**2)), choice, axis=1)
        position = state.step + 1
        ended_ids = write(state.ids, position, ops.full_like(tokens, self.end_id))
        live_ids = state.ids
        model_state = state.model_state
        if num_beams > 1:
            live_ids = gather(live_ids, parents)
            model_state = map_structure(lambda x: gather(x, parents), model_state)
        live_ids = write(live_ids, position, tokens)

        # Candidates for the answer: the best so far, those that end now, and at the limit all.
        last = position == state.limit
        unfinished = ops.where(last[:, None], sums / norm, ops.full_like(sums, float("inf")))
        scores = ops.concatenate([best.scores, ended_scores, unfinished], axis=1)
        ids = ops.concatenate([best.ids, ended_ids, live_ids], axis=1)
        all_ended = ops.ones_like(ended_scores, "bool")
        ended = ops.concatenate([best.ended, all_ended, ops.logical_not(all_ended)], axis=1)
        scores, winners = _lowest(scores, num_beams)
        # A sum only grows: this is the best score that a live hypothesis can still reach.
        limit = ops.cast(state.limit - state.first + 1, "float32")
        reachable = ops.min(sums, axis=1) / self._norm(limit)
        ends_now = ops.logical_or(last, scores[:, -1] <= reachable)
        new_best = _Best(
            gather(ids, winners),
            scores=scores,
            ended=ops.take_along_axis(ended, winners, axis=1),
        )
        return state._replace(
            step=position,
            done=ops.logical_or(state.done, ends_now),
            ids=live_ids,
            model_state=model_state,
            own=_Beams(sums, unless_done(state.done, best, new_best)),
        )

    def _norm(self, length: Tensor) -> Tensor:
        return ((5.0 + length) / 6.0) ** self.length_penalty


def _lowest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the lowest entries of each row `(B, N)` and their positions; the first if equal."""
    values, indices = ops.top_k(-x, count)
    return -values, indices
