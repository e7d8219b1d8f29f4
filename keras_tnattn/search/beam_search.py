"""Greedy and beam search with a translator, a batch of sentences at a time."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tnattn.ops.masking import apply_mask
from keras_tnattn.search.key_value_cache import decode_once, first_keys, keeps_keys, put
from keras_tnattn.typing import Tensor

_CHUNK = 16  # steps between two looks for finished sentences
_ROUNDING = 8  # source lengths are rounded up to multiples of it: few shapes to compile


class Hypotheses(NamedTuple):
    """The `K` best hypotheses for each of `B` sentences, best first.

    Attributes:
        ids: Integers `(B, K, L)`: the start id, tokens, the end id if it was reached, then 0.
        scores: Floats `(B, K)`, lower is better; infinite where there are fewer than `K`.
        finished: Booleans `(B, K)`: whether the end id was reached.
    """

    ids: np.ndarray
    scores: np.ndarray
    finished: np.ndarray


class BeamSearch:
    """Translates by beam search with length normalisation; a beam of 1 is greedy search.

    The score of a hypothesis of `n` ids, start and end included, is `sum(-ln p) / N(n)`, `N(n) =
    ((5 + n) / 6)^length_penalty`. Each step extends every live hypothesis by its `K` most probable
    tokens. What ends is kept; the `K` best of the others live on. After `limit` tokens, the number
    of source tokens plus `extra_tokens`, those still alive compete with the ended ones. A sentence
    is done before that when no live hypothesis can come to a better score any more: the result is
    the same.

    The encoder runs once. Every step of a power law graph attention computes the whole prefix
    anew, since its metric changes with each token; a decoder of `keras.layers.MultiHeadAttention`s
    (without `use_gate` and `sliding_window`) keeps its keys and values instead and computes the
    last token alone.

    Costs, for targets of `L` ids, a target vocabulary of `V` and `n` decoders: the encoder's for
    `(B, S)`, `2 B K L d V` FLOPs for the logits, and `L` passes of the decoders, the prefix padded
    to the next multiple of 16: each those of `(B K, L)` tokens, so that FLOPs grow as `L^2`, or,
    with keys and values kept, those of `B K` tokens that attend to `L` and `S` keys. Memory: `O(B K
    (L + V))` for ids and logits; `O(B K S d)` and what one pass of the decoder needs, or `O(n B (K
    L + S) d)` for keys and values.

    Args:
        model: A model of `keras_tnattn.models.translator`.
        beam_size: Hypotheses `K` kept. Defaults to 1.
        start_id: The id that starts a target. Defaults to 2.
        end_id: The id that ends it. Defaults to 3. `None`: no sentence ends before its limit.
        extra_tokens: Defaults to 50.
        length_penalty: At least 0. Defaults to 0.6.

    Raises:
        ValueError: If the model is no such translator, `beam_size` is not in 1 to the size of the
            target vocabulary, an id is not in it, another number is out of range, or an attention
            lets padding into its metric.
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
        _check_translator(model)
        vocabulary_size = model.output_shape[-1]
        if not 1 <= beam_size <= vocabulary_size:
            raise ValueError(
                f"Expected a beam of 1 to {vocabulary_size}, the size of the target vocabulary. "
                f"Received: beam_size={beam_size}"
            )
        if extra_tokens < 1:
            raise ValueError(f"Expected at least 1. Received: extra_tokens={extra_tokens}")
        if not 0 <= length_penalty < float("inf"):
            raise ValueError(
                f"Expected a finite number of at least 0. Received: length_penalty={length_penalty}"
            )
        ids = {"start_id": start_id} | ({} if end_id is None else {"end_id": end_id})
        for name, value in ids.items():
            if not 0 < value < vocabulary_size:
                raise ValueError(
                    f"Expected an id of 1 to {vocabulary_size - 1}, of the target vocabulary. "
                    f"Received: {name}={value}"
                )
        self.model = model
        self.beam_size = beam_size
        self.start_id = start_id
        self.end_id = -1 if end_id is None else end_id  # which is no token's
        self.extra_tokens = extra_tokens
        self.length_penalty = length_penalty
        self.encoders = list(_numbered_layers(model, "encoder"))
        self.decoders = list(_numbered_layers(model, "decoder"))
        attentions = [a for d in self.decoders for a in (d.self_attention, d.cross_attention)]
        for layer in [*attentions, *(encoder.attention for encoder in self.encoders)]:
            if getattr(layer, "padding_in_metric", False):
                raise ValueError(
                    "Expected attentions without padding in their metric: a prefix is padded here. "
                    f"Received: {layer.name} with padding_in_metric=True. Put its weights into a "
                    "model built without, which computes the same for a sentence alone"
                )
        self._keeps_keys = all(map(keeps_keys, attentions))
        self._start = _Compiled(self.start)
        self._advance = _Compiled(lambda state: self.advance(state, _CHUNK))

    def __call__(self, source: np.ndarray, batch_size: int = 32) -> Hypotheses:
        """Translates sentences, compiled; those that are done stop costing.

        Args:
            source: Integers `(B, S)`, start and end ids included, padded with 0.
            batch_size: How many sentences are searched together. Defaults to 32.

        Raises:
            ValueError: If `source` has another shape or ids that are not in the source vocabulary,
                or `batch_size` is not positive.
        """
        source = np.asarray(source)
        if source.ndim != 2:
            raise ValueError(f"Expected ids (B, S). Received: source.shape={source.shape}")
        if batch_size < 1:
            raise ValueError(f"Expected at least 1. Received: batch_size={batch_size}")
        vocabulary_size = self.model.get_layer("source_embedding").input_dim
        unknown = source[(source < 0) | (source >= vocabulary_size)]
        if unknown.size:
            raise ValueError(
                f"Expected ids of 0 to {vocabulary_size - 1}, of the source vocabulary. "
                f"Received: source with {unknown[0]}"
            )
        source = source.astype("int32")
        # Up to the last token: padding before a token keeps its place.
        lengths = ((source != 0) * np.arange(1, source.shape[1] + 1)).max(1, initial=0)
        width = 1 + self.extra_tokens + max(source.shape[1], 1)
        found = Hypotheses(
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
            self._search_batch(batch, rows, found)
        longest = (found.ids != 0).any((0, 1)).nonzero()[0]
        return found._replace(ids=found.ids[..., : longest.max(initial=0) + 1])

    def _search_batch(self, source: np.ndarray, rows: np.ndarray, found: Hypotheses) -> None:
        """Fills `found` at `rows`."""
        size = len(rows)
        state = self._start.predict_on_batch(_rounded_up(source))
        while True:
            state = self._advance.predict_on_batch(_longer(state))
            done = state["done"][:size]
            ids = state["best_ids"][:size][done]
            found.ids[rows[done], :, : ids.shape[-1]] = ids[..., : found.ids.shape[-1]]
            found.scores[rows[done]] = state["best_scores"][:size][done]
            found.finished[rows[done]] = state["best_ended"][:size][done]
            if done.all():
                return
            live = np.flatnonzero(~done)
            rows, size = rows[live], len(live)
            # Every array of the state but the step begins with the axis of the sentences.
            state = {
                name: x if name == "step" else _rounded_up(x[live]) for name, x in state.items()
            }

    def search(self, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Translates a tensor of ids, `(B, S)`, in one graph: for exported models.

        That the ids are in the source vocabulary is not checked here.

        Returns:
            Tensors `ids`, `scores` and `finished` as `Hypotheses` has them.
        """
        steps = ops.shape(source)[1] + self.extra_tokens
        state = self.advance(_longer(self.start(source), steps), steps)
        return state["best_ids"], state["best_scores"], state["best_ended"]

    def start(self, source: Tensor) -> dict[str, Tensor]:
        """Encodes ids `(B, S)`; returns the state before the first step."""
        source = ops.cast(source, "int32")
        batch = ops.shape(source)[0]
        mask = source != 0
        memory = embed(self.model, "source", source)
        for encoder in self.encoders:
            memory = encoder(memory, mask=mask, training=False)
        # A tensor of its own: Keras attaches a mask to the layer's, and warns where one drops it.
        memory = apply_mask(memory, mask)
        shape = (batch, self.beam_size)
        first = ops.arange(self.beam_size) == 0
        infinite = ops.full(shape, float("inf"), dtype="float32")
        state = {
            "step": ops.zeros((), "int32"),
            "limit": ops.sum(ops.cast(mask, "int32"), axis=1) + self.extra_tokens,
            "done": ops.zeros((batch,), "bool"),
            # One live hypothesis to begin with: K equal ones would stay equal.
            "live_sums": ops.where(first, ops.zeros_like(infinite), infinite),
            "live_ids": ops.full((*shape, 1), self.start_id, dtype="int32"),
            "best_ids": ops.zeros((*shape, 1), "int32"),
            "best_scores": infinite,
            "best_ended": ops.zeros(shape, "bool"),
            "memory_mask": mask,
        }
        if not self._keeps_keys:
            return {**state, "memory": memory}
        return {**state, **first_keys(self.decoders, memory, self.beam_size)}

    def advance(self, state: dict[str, Tensor], num_steps: Tensor) -> dict[str, Tensor]:
        """Goes on for `num_steps` steps, or until all sentences are done."""
        end = state["step"] + num_steps
        return ops.while_loop(
            lambda state: ops.logical_and(
                state["step"] < end, ops.logical_not(ops.all(state["done"]))
            ),
            lambda state: (self._step(state),),
            (state,),
        )[0]

    def _step(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        logits, kept = self._next_logits(state)
        num_beams = self.beam_size
        probable, tokens = ops.top_k(ops.log_softmax(ops.cast(logits, "float32")), num_beams)
        sums = state["live_sums"][..., None] - probable  # (B, K, K): hypothesis, token
        length = ops.cast(state["step"] + 2, "float32")
        norm = self._norm(length)
        ends = tokens == self.end_id
        infinite = ops.full_like(sums, float("inf"))
        ended = ops.min(ops.where(ends, sums, infinite), axis=-1) / norm
        sums, chosen = _lowest(
            ops.reshape(ops.where(ends, infinite, sums), (-1, num_beams * num_beams)), num_beams
        )
        parents = chosen // num_beams
        tokens = ops.take_along_axis(ops.reshape(tokens, (-1, num_beams**2)), chosen, axis=1)
        position = state["step"] + 1
        ended_ids = put(state["live_ids"], position, self.end_id)
        live_ids = put(_gather(state["live_ids"], parents), position, tokens[..., None])

        # What competes for the answer: the best so far, what ended now, and at the limit the rest.
        last = position == state["limit"]
        unfinished = ops.where(last[:, None], sums / norm, ops.full_like(sums, float("inf")))
        scores = ops.concatenate([state["best_scores"], ended, unfinished], axis=1)
        ids = ops.concatenate([state["best_ids"], ended_ids, live_ids], axis=1)
        flags = ops.concatenate(
            [state["best_ended"], ops.ones_like(ended, "bool"), ops.zeros_like(ended, "bool")],
            axis=1,
        )
        scores, winners = _lowest(scores, num_beams)
        # A sum only grows: this is the best score that a live hypothesis can still come to.
        limit = ops.cast(state["limit"] + 1, "float32")
        reachable = ops.min(sums, axis=1) / self._norm(limit)
        new = {
            "live_sums": sums,
            "live_ids": live_ids,
            "best_scores": scores,
            "best_ids": _gather(ids, winners),
            "best_ended": ops.take_along_axis(flags, winners, axis=1),
            "done": ops.logical_or(last, scores[:, -1] <= reachable),
            **{name: _gather(array, parents) for name, array in kept.items()},
        }
        done = state["done"]
        frozen = {name: ops.where(_like(done, x), state[name], x) for name, x in new.items()}
        return {**state, **frozen, "step": position}

    def _norm(self, length: Tensor) -> Tensor:
        return ((5.0 + length) / 6.0) ** self.length_penalty

    def _next_logits(self, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits `(B, K, V)` after the last token, and the kept keys and values."""
        last = self._last_with_keys if self._keeps_keys else self._last_of_prefix
        x, kept = last(state)
        return self.model.get_layer("logits")(x), kept

    def _last_of_prefix(self, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Output `(B, K, d)` of the decoders at the last token, the whole prefix computed anew."""
        batch, num_beams, width = ops.shape(state["live_ids"])
        ids = ops.reshape(state["live_ids"], (batch * num_beams, width))
        memory, mask = (ops.repeat(state[n], num_beams, axis=0) for n in ("memory", "memory_mask"))
        x = embed(self.model, "target", ids)
        for decoder in self.decoders:
            x = decoder(x, memory, inputs_mask=ids != 0, memory_mask=mask, training=False)
        x = ops.take(x, state["step"], axis=1)
        return ops.reshape(x, (batch, num_beams, x.shape[-1])), {}

    def _last_with_keys(self, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The same from the kept keys and values, and these with the last token's."""
        step, ids = state["step"], state["live_ids"]
        batch, num_beams = ops.shape(ids)[:2]
        tokens = ops.reshape(ops.take(ids, step, axis=2), (batch * num_beams, 1))
        x = embed(self.model, "target", tokens, start_index=step)
        x = ops.reshape(x, (batch, num_beams, x.shape[-1]))
        return decode_once(self.decoders, x, state)


def embed(model: keras.Model, side: str, ids: Tensor, start_index: Tensor = 0) -> Tensor:
    """Embeds ids as a translator does before its first encoder or decoder layer.

    Args:
        model: A model of `keras_tnattn.models.translator`.
        side: `"source"` or `"target"`.
        ids: Integers `(B, L)`.
        start_index: Position of the first of them. Defaults to 0.

    Returns:
        Tensor `(B, L, d)`.
    """
    embedded = model.get_layer(f"{side}_embedding")(ids)
    # A copy: masks are handed on by hand here, and Keras' own would stick to the tensor.
    return ops.copy(model.get_layer(f"{side}_positions")(embedded, start_index=start_index))


class _Compiled(keras.Model):
    """A function of tensors as a model, whose `predict_on_batch` every backend compiles."""

    def __init__(self, function: Any) -> None:
        super().__init__(name="search", autocast=False)
        self.function = function
        # XLA is a tenth faster at best on a CPU, and compiles each size that is left of a batch
        # for itself; without it TensorFlow traces once for all. JAX has nothing else.
        self.jit_compile = keras.backend.backend() == "jax"

    def call(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


def _check_translator(model: Any) -> None:
    names = {layer.name for layer in getattr(model, "layers", ())}
    missing = [
        name
        for name in (
            *("source_embedding", "source_positions", "encoder_0"),
            *("target_embedding", "target_positions", "decoder_0", "logits"),
        )
        if name not in names
    ]
    if missing:
        raise ValueError(
            "Expected a model of keras_tnattn.models.translator. "
            f"Received: model={model!r} without {', '.join(missing)}"
        )


def _numbered_layers(model: keras.Model, name: str) -> Iterator[keras.layers.Layer]:
    names = {layer.name for layer in model.layers}
    i = 0
    while f"{name}_{i}" in names:
        yield model.get_layer(f"{name}_{i}")
        i += 1


def _rounded_up(x: np.ndarray) -> np.ndarray:
    """Repeats the last sentence up to a power of two, where every shape is compiled by itself."""
    if keras.backend.backend() != "jax":
        return x
    missing = (1 << (len(x) - 1).bit_length()) - len(x)
    return np.concatenate([x, np.repeat(x[-1:], missing, axis=0)])


def _longer(state: dict[str, Tensor], num_steps: Tensor = _CHUNK) -> dict[str, Tensor]:
    """Makes room for more steps."""
    axes = {"live_ids": 2, "best_ids": 2}
    axes |= {name: 2 for name in state if name.startswith(("keys_", "values_"))}

    def pad(x: Tensor, axis: int) -> Tensor:
        return ops.pad(x, [(0, num_steps if i == axis else 0) for i in range(len(x.shape))])

    return {name: pad(x, axes[name]) if name in axes else x for name, x in state.items()}


def _lowest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The lowest entries of each row `(B, N)` and where they are; the first of equal ones."""
    values, indices = ops.top_k(-x, count)
    return -values, indices


def _like(condition: Tensor, x: Tensor) -> Tensor:
    """`(B,)` with as many axes as `x`."""
    return ops.reshape(condition, (-1, *[1] * (len(x.shape) - 1)))


def _gather(x: Tensor, indices: Tensor) -> Tensor:
    """`x[b, indices[b, k]]` for `x` `(B, N, ...)` and indices `(B, K)`."""
    batch, num_rows = ops.shape(x)[:2]
    flat = ops.reshape(x, (batch * num_rows, *ops.shape(x)[2:]))
    rows = ops.arange(batch, dtype="int32")[:, None] * num_rows + ops.cast(indices, "int32")
    return ops.take(flat, rows, axis=0)
