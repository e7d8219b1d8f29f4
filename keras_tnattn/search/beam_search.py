"""Greedy and beam search with a translator, in batches of sentences."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from keras.tree import map_structure

from keras_tnattn.checks import check_int
from keras_tnattn.models import Translator
from keras_tnattn.search.key_value_cache import decode_token, empty_cache, memory_cache, write
from keras_tnattn.typing import Tensor

_CHUNK = 16  # steps between two checks for finished sentences
_ROUNDING = 8  # source lengths are rounded up to multiples of this, so that few shapes are compiled

# The state of a search, for B sentences of S tokens, K hypotheses each, and L tokens so far:
#   step        the position of the last token, ()
#   sentences   the data of each sentence: limit, done, memory_mask (B, S), and either memory
#               (B, S, d) or, if decoders keep keys, memory_cache with keys and values
#   live        the hypotheses to extend: sums (B, K), and prefix, a nested structure of tensors
#               (B, K, L, ...): ids and, if decoders keep keys, cache
#   best        the best answers so far: ids (B, K, L), scores and ended (B, K)
State = dict[str, Any]


class Hypotheses(NamedTuple):
    """The `K` best hypotheses for each of `B` sentences, best first.

    Attributes:
        ids: Integers `(B, K, L)`: the start id, tokens, the end id if it was reached, then 0.
        scores: Floats `(B, K)`, lower is better; infinite if there are fewer than `K` hypotheses.
        finished: Booleans `(B, K)`: whether the end id was reached.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.search import Hypotheses
        >>> ids = np.array([[[2, 7, 3]]])
        >>> Hypotheses(ids, scores=np.array([[0.5]]), finished=np.array([[True]])).ids[0, 0]
        array([2, 7, 3])
    """

    ids: np.ndarray
    scores: np.ndarray
    finished: np.ndarray


class BeamSearch:
    """Translates by beam search with length normalization; a beam of 1 is greedy search.

    The score of a hypothesis of `n` ids, including start and end, is `sum(-ln p) / N(n)` with
    `N(n) = ((5 + n) / 6)^length_penalty`; lower is better. Each step extends every live hypothesis
    by its `K` most probable tokens. Hypotheses that end are kept, and the `K` best of the others
    stay alive. After a limit, the number of source tokens plus `extra_tokens`, the live hypotheses
    compete with those that have ended. The search of a sentence stops earlier if no live hypothesis
    can reach a better score; this does not change the result.

    The encoder runs once. With power law graph attention every step computes the whole prefix
    again, because the published metric changes with each token. (A metric of the keys of the
    source does not, but is computed again, too.) Decoders with
    `keras.layers.MultiHeadAttention` (without `use_gate` and `sliding_window`) use a key-value
    cache and compute only the last token.

    The costs, for targets of `L` ids, a target vocabulary of `V` and `n` decoders, are those of the
    encoder for `(B, S)`, `2 B K L d V` FLOPs for the logits, and `L` passes of the decoders. Each
    pass computes `(B K, L)` tokens, with the prefix padded to the next multiple of 16, so that
    FLOPs grow as `L^2`; with a cache it computes `B K` tokens that attend to `L` and `S` keys. The
    memory is `O(B K (L + V))` for ids and logits, plus `O(B K S d)` and that of one pass of the
    decoders, or `O(n B (K L + S) d)` for the cache.

    Args:
        model: A `keras_tnattn.models.Translator`.
        beam_size: Number `K` of hypotheses kept. Defaults to 1.
        start_id: The id that starts a target. Defaults to 2.
        end_id: The id that ends it. Defaults to 3. With `None` no sentence ends before its limit.
        extra_tokens: Number of target tokens allowed beyond the number of source tokens. Defaults
            to 50.
        length_penalty: Exponent of the normalization, at least 0. Defaults to 0.6.

    Raises:
        ValueError: If the model is not a translator, if `beam_size`, an id or another number is out
            of range, or if an attention has `padding_in_metric=True`.

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
        model: keras.Model,
        beam_size: int = 1,
        start_id: int = 2,
        end_id: int | None = 3,
        extra_tokens: int = 50,
        length_penalty: float = 0.6,
    ) -> None:
        model = Translator.from_model(model)
        vocabulary_size = model.target_vocabulary_size
        if not isinstance(beam_size, int | np.integer) or not 1 <= beam_size <= vocabulary_size:
            raise ValueError(
                f"Expected a beam of 1 to {vocabulary_size}, the size of the target vocabulary. "
                f"Received: beam_size={beam_size}"
            )
        check_int("extra_tokens", extra_tokens)
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
        attentions = [encoder.attention for encoder in model.encoders]
        attentions += [a for d in model.decoders for a in (d.self_attention, d.cross_attention)]
        for layer in attentions:
            if getattr(layer, "padding_in_metric", False):
                raise ValueError(
                    "Expected attentions without padding in their metric: prefixes are padded "
                    f"here. Received: {layer.name} with padding_in_metric=True. Set its weights in "
                    "a model built without it, which computes the same for a sentence alone"
                )
        self.model = model
        self.beam_size = beam_size
        self.start_id = start_id
        self.end_id = -1 if end_id is None else end_id  # -1 is not the id of a token
        self.extra_tokens = extra_tokens
        self.length_penalty = length_penalty
        self._keeps_keys = all(decoder.keeps_keys for decoder in model.decoders)
        self._start = _Compiled(model, self.start)
        self._advance = _Compiled(model, lambda state: self.advance(state, _CHUNK))

    def __call__(self, source: np.ndarray, batch_size: int = 32) -> Hypotheses:
        """Translates sentences in compiled steps; finished sentences are not computed further.

        Args:
            source: Integers `(B, S)`, start and end ids included, padded with 0.
            batch_size: Number of sentences that are searched together. Defaults to 32.

        Raises:
            ValueError: If `source` has another shape or ids that are not in the source vocabulary,
                or `batch_size` is not positive.
        """
        source = np.asarray(source)
        if source.ndim != 2:
            raise ValueError(f"Expected ids (B, S). Received: source.shape={source.shape}")
        check_int("batch_size", batch_size)
        vocabulary_size = self.model.source_vocabulary_size
        unknown = source[(source < 0) | (source >= vocabulary_size)]
        if unknown.size:
            raise ValueError(
                f"Expected ids of 0 to {vocabulary_size - 1}, of the source vocabulary. "
                f"Received: source with {unknown[0]}"
            )
        source = source.astype("int32")
        # Cut only after the last token: padding between tokens stays.
        lengths = ((source != 0) * np.arange(1, source.shape[1] + 1)).max(1, initial=0)
        width = 1 + self.extra_tokens + max(source.shape[1], 1)
        results = Hypotheses(
            np.zeros((len(source), self.beam_size, width), "int32"),
            np.zeros((len(source), self.beam_size), "float32"),
            np.zeros((len(source), self.beam_size), bool),
        )
        order = np.argsort(lengths, kind="stable")
        for first in range(0, len(order), batch_size):
            rows = order[first : first + batch_size]
            width = -(-max(lengths[rows].max(), 1) // _ROUNDING) * _ROUNDING
            batch = np.zeros((len(rows), width), "int32")
            kept = source[rows, :width]
            batch[:, : kept.shape[1]] = kept
            self._search_batch(batch, rows, results)
        longest = (results.ids != 0).any((0, 1)).nonzero()[0]
        return results._replace(ids=results.ids[..., : longest.max(initial=0) + 1])

    def _search_batch(self, source: np.ndarray, rows: np.ndarray, results: Hypotheses) -> None:
        """Fills `results` at `rows`."""
        size = len(rows)
        state = self._start.predict_on_batch(_rounded_up(source))
        while True:
            state = self._advance.predict_on_batch(_longer(state))
            done, best = state["sentences"]["done"][:size], state["best"]
            ids = best["ids"][:size][done]
            results.ids[rows[done], :, : ids.shape[-1]] = ids[..., : results.ids.shape[-1]]
            results.scores[rows[done]] = best["scores"][:size][done]
            results.finished[rows[done]] = best["ended"][:size][done]
            if done.all():
                return
            remaining = np.flatnonzero(~done)
            rows, size = rows[remaining], len(remaining)
            state = _select(state, remaining)

    def search(self, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Translates a tensor of ids, `(B, S)`, in one graph, for exported models.

        Does not check that the ids are in the source vocabulary.

        Returns:
            The tensors `ids`, `scores` and `finished` of `Hypotheses`.
        """
        steps = ops.shape(source)[1] + self.extra_tokens
        best = self.advance(_longer(self.start(source), steps), steps)["best"]
        return best["ids"], best["scores"], best["ended"]

    def start(self, source: Tensor) -> State:
        """Encodes ids `(B, S)`; returns the state before the first step."""
        source = ops.cast(source, "int32")
        mask = ops.not_equal(source, 0)
        memory = self.model.encode(source, training=False)
        shape = (ops.shape(source)[0], self.beam_size)
        first = ops.arange(self.beam_size) == 0
        infinite = ops.full(shape, float("inf"), dtype="float32")
        sentences = {
            "limit": ops.sum(ops.cast(mask, "int32"), axis=1) + self.extra_tokens,
            "done": ops.zeros(shape[:1], "bool"),
            "memory_mask": mask,
        }
        prefix: dict[str, Any] = {"ids": ops.full((*shape, 1), self.start_id, dtype="int32")}
        if self._keeps_keys:
            sentences["memory_cache"] = memory_cache(self.model.decoders, memory)
            prefix["cache"] = empty_cache(self.model.decoders, (*shape, 1))
        else:
            sentences["memory"] = memory
        return {
            "step": ops.zeros((), "int32"),
            "sentences": sentences,
            "live": {
                # One live hypothesis to begin with: K equal ones would stay equal.
                "sums": ops.where(first, ops.zeros_like(infinite), infinite),
                "prefix": prefix,
            },
            "best": {
                "ids": ops.zeros((*shape, 1), "int32"),
                "scores": infinite,
                "ended": ops.zeros(shape, "bool"),
            },
        }

    def advance(self, state: State, num_steps: Tensor) -> State:
        """Advances by `num_steps` steps, or until all sentences are done."""
        end = state["step"] + num_steps
        return ops.while_loop(
            lambda state: ops.logical_and(
                state["step"] < end, ops.logical_not(ops.all(state["sentences"]["done"]))
            ),
            lambda state: (self._step(state),),
            (state,),
        )[0]

    def _step(self, state: State) -> State:
        sentences, live, best = state["sentences"], state["live"], state["best"]
        logits, prefix = self._next_logits(state)
        num_beams = self.beam_size
        probable, tokens = ops.top_k(ops.log_softmax(ops.cast(logits, "float32")), num_beams)
        sums = live["sums"][..., None] - probable  # (B, K, K): hypothesis, token
        length = ops.cast(state["step"] + 2, "float32")
        norm = self._norm(length)
        ends = tokens == self.end_id
        infinite = ops.full_like(sums, float("inf"))
        ended_scores = ops.min(ops.where(ends, sums, infinite), axis=-1) / norm
        sums, chosen = _lowest(
            ops.reshape(ops.where(ends, infinite, sums), (-1, num_beams * num_beams)), num_beams
        )
        parents = chosen // num_beams
        tokens = ops.take_along_axis(ops.reshape(tokens, (-1, num_beams**2)), chosen, axis=1)
        position = state["step"] + 1
        ended_ids = write(prefix["ids"], position, ops.full_like(tokens, self.end_id))
        prefix = map_structure(lambda x: _gather(x, parents), prefix)
        prefix["ids"] = write(prefix["ids"], position, tokens)

        # Candidates for the answer: the best so far, those that end now, and at the limit all.
        last = position == sentences["limit"]
        unfinished = ops.where(last[:, None], sums / norm, ops.full_like(sums, float("inf")))
        scores = ops.concatenate([best["scores"], ended_scores, unfinished], axis=1)
        ids = ops.concatenate([best["ids"], ended_ids, prefix["ids"]], axis=1)
        all_ended = ops.ones_like(ended_scores, "bool")
        ended = ops.concatenate([best["ended"], all_ended, ops.logical_not(all_ended)], axis=1)
        scores, winners = _lowest(scores, num_beams)
        # A sum only grows: this is the best score that a live hypothesis can still reach.
        limit = ops.cast(sentences["limit"] + 1, "float32")
        reachable = ops.min(sums, axis=1) / self._norm(limit)
        done = sentences["done"]
        now_done = ops.logical_or(done, ops.logical_or(last, scores[:, -1] <= reachable))
        new_best = {
            "ids": _gather(ids, winners),
            "scores": scores,
            "ended": ops.take_along_axis(ended, winners, axis=1),
        }

        def unless_done(old: State, new: State) -> State:
            return map_structure(lambda x, y: ops.where(_like(done, x), x, y), old, new)

        return {
            "step": position,
            "sentences": {**sentences, "done": now_done},
            "live": unless_done(live, {"sums": sums, "prefix": prefix}),
            "best": unless_done(best, new_best),
        }

    def _norm(self, length: Tensor) -> Tensor:
        return ((5.0 + length) / 6.0) ** self.length_penalty

    def _next_logits(self, state: State) -> tuple[Tensor, State]:
        """Logits `(B, K, V)` after the last token, and the prefix with its keys and values."""
        last = self._last_with_cache if self._keeps_keys else self._last_of_prefix
        x, prefix = last(state)
        return self.model.logits(x), prefix

    def _last_of_prefix(self, state: State) -> tuple[Tensor, State]:
        """Returns the decoders' output `(B, K, d)` at the last token, from the whole prefix."""
        sentences, prefix = state["sentences"], state["live"]["prefix"]
        batch, num_beams, width = ops.shape(prefix["ids"])
        ids = ops.reshape(prefix["ids"], (batch * num_beams, width))
        memory, mask = (
            ops.repeat(sentences[name], num_beams, axis=0) for name in ("memory", "memory_mask")
        )
        x = self.model.run_decoders(ids, memory, mask, training=False)
        x = ops.take(x, state["step"], axis=1)
        return ops.reshape(x, (batch, num_beams, x.shape[-1])), prefix

    def _last_with_cache(self, state: State) -> tuple[Tensor, State]:
        """The same from the key-value cache, which gets the last token's keys and values."""
        sentences, prefix, step = state["sentences"], state["live"]["prefix"], state["step"]
        ids = prefix["ids"]
        batch, num_beams, width = ops.shape(ids)
        tokens = ops.reshape(ops.take(ids, step, axis=2), (batch * num_beams, 1))
        x = self.model.embed_target(tokens, start_index=step, training=False)
        x, cache = decode_token(
            self.model.decoders,
            ops.reshape(x, (batch, num_beams, x.shape[-1])),
            step,
            prefix["cache"],
            sentences["memory_cache"],
            ops.logical_and(ops.arange(width) <= step, ids != 0),
            sentences["memory_mask"],
        )
        return x, {"ids": ids, "cache": cache}


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

    def call(self, inputs: Any) -> Any:
        return self.function(inputs)


def _select(state: State, rows: np.ndarray) -> State:
    """Keeps some of the sentences; their axis is the first one of all tensors except the step."""
    step = state["step"]
    rest = {name: part for name, part in state.items() if name != "step"}
    return {"step": step, **map_structure(lambda x: _rounded_up(x[rows]), rest)}


def _rounded_up(x: np.ndarray) -> np.ndarray:
    """Repeats the last sentence up to a power of two, if every shape is compiled separately."""
    if keras.backend.backend() != "jax":
        return x
    missing = (1 << (len(x) - 1).bit_length()) - len(x)
    return np.concatenate([x, np.repeat(x[-1:], missing, axis=0)])


def _longer(state: State, num_steps: Tensor = _CHUNK) -> State:
    """Pads the prefixes (with their cache) and the best ids to hold more tokens."""

    def pad(x: Tensor) -> Tensor:
        return ops.pad(x, [(0, num_steps if axis == 2 else 0) for axis in range(len(x.shape))])

    live, best = state["live"], state["best"]
    return {
        **state,
        "live": {**live, "prefix": map_structure(pad, live["prefix"])},
        "best": {**best, "ids": pad(best["ids"])},
    }


def _lowest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the lowest entries of each row `(B, N)` and their positions; the first if equal."""
    values, indices = ops.top_k(-x, count)
    return -values, indices


def _like(condition: Tensor, x: Tensor) -> Tensor:
    """Reshapes `(B,)` to the number of axes of `x`."""
    return ops.reshape(condition, (-1, *[1] * (len(x.shape) - 1)))


def _gather(x: Tensor, indices: Tensor) -> Tensor:
    """Returns `x[b, indices[b, k]]` for `x` `(B, N, ...)` and indices `(B, K)`."""
    batch, num_rows = ops.shape(x)[:2]
    flat = ops.reshape(x, (batch * num_rows, *ops.shape(x)[2:]))
    rows = ops.arange(batch, dtype="int32")[:, None] * num_rows + ops.cast(indices, "int32")
    return ops.take(flat, rows, axis=0)
