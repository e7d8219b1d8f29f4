"""The steps of translators and language models, with which `keras_tnattn.search` generates ids."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tnattn.layers.base_attention import new_state, with_room
from keras_tnattn.models.language_model import LanguageModel
from keras_tnattn.models.translator import Translator
from keras_tnattn.search.steps import Start, Steps
from keras_tnattn.typing import Chunk, Tensor

# Lengths are rounded up to multiples of these, so that few shapes are compiled.
_SOURCE_ROUNDING, _PROMPT_ROUNDING = 8, 16


def decoding_steps(model: Any, start_id: int = 2, **options: Any) -> Steps:
    """Returns the steps of a model.

    Args:
        model: A `Translator`, a `LanguageModel`, or an object with the methods of
            `keras_tnattn.search.Steps`, which is returned unchanged.
        start_id: The id that starts a target of a translator. Defaults to 2.
        **options: Further arguments of `LanguageModelSteps`.

    Raises:
        ValueError: If the model is none of these.

    Example:
        >>> from keras_tnattn.models import language_model
        >>> from keras_tnattn.search.model_steps import decoding_steps
        >>> model = language_model(100, "sdpa", model_dim=16, num_heads=2, feedforward_dim=16)
        >>> decoding_steps(model).vocabulary_size
        100
    """
    if isinstance(model, LanguageModel):
        return LanguageModelSteps(model, **options)
    if hasattr(model, "with_room") and not isinstance(model, keras.layers.Layer):
        return model
    return TranslatorSteps(model, start_id)


def _with_room(state: Any, num_tokens: Tensor) -> Any:
    """Gives all states in a nested structure room for more tokens."""
    if isinstance(state, dict) and state.keys() == {"tokens", "context"}:
        return with_room(state, num_tokens)
    if isinstance(state, dict):
        return {name: _with_room(part, num_tokens) for name, part in state.items()}
    return [_with_room(part, num_tokens) for part in state]


def _pad(rows: Sequence[np.ndarray], multiple: int, left: bool) -> np.ndarray:
    width = -(-max([len(row) for row in rows] + [1]) // multiple) * multiple
    batch = np.zeros((len(rows), width), "int32")
    for i, row in enumerate(rows):
        batch[i, slice(width - len(row), width) if left else slice(len(row))] = row
    return batch


class TranslatorSteps:
    """The steps of a `Translator`, from source ids to logits of the target.

    If all decoders keep a state (`TransformerDecoder.keeps_state`), each step computes the last
    token only; else the whole prefix.

    Args:
        model: The translator.
        start_id: The id that starts a target. Defaults to 2.

    Raises:
        ValueError: If the model is not a `Translator`, or an attention has
            `padding_in_metric=True`: prefixes are padded.

    Example:
        >>> from keras_tnattn.models import translator
        >>> from keras_tnattn.search.model_steps import TranslatorSteps
        >>> model = translator(100, 120, attention="sdpa", model_dim=16, num_heads=2)
        >>> TranslatorSteps(model).keeps_state
        True
    """

    def __init__(self, model: Translator, start_id: int = 2) -> None:
        if not isinstance(model, Translator):
            raise ValueError(
                f"Expected a model of keras_tnattn.models.translator. Received: model={model!r}"
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
        self.start_id = start_id
        self.vocabulary_size = model.target_vocabulary_size
        self.input_vocabulary_size = model.source_vocabulary_size
        self.keeps_state = all(decoder.keeps_state for decoder in model.decoders)

    def pack(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        return _pad(rows, _SOURCE_ROUNDING, left=False)

    def start(self, inputs: Tensor) -> Start:
        context, state = self.encode(inputs)
        ids = ops.full((ops.shape(inputs)[0], 1), self.start_id, dtype="int32")
        logits, state = self.step(ids, ops.zeros((), "int32"), context, state)
        limit = ops.sum(ops.cast(context["mask"], "int32"), axis=1)
        return Start(ids, limit, context, state, logits)

    def encode(self, inputs: Tensor) -> tuple[dict[str, Any], list[Any]]:
        """Runs the encoder: returns the context of the steps, and the state before the first."""
        mask = ops.not_equal(inputs, 0)
        memory = self.model.encode(inputs, training=False)
        if not self.keeps_state:
            return {"mask": mask, "memory": memory}, []
        decoders = self.model.decoders
        memories = [decoder.memory_state(memory, mask) for decoder in decoders]
        state = [decoder.empty_state(ops.shape(inputs)[0], 1) for decoder in decoders]
        return {"mask": mask, "memory": memories}, state

    def step(self, ids: Tensor, position: Tensor, context: Any, state: Any) -> tuple[Tensor, Any]:
        if self.keeps_state:
            x, state = self._last_token(ids, position, context, state)
        else:
            x = self._whole_prefix(ids, position, context)
        return self.model.logits(x), state

    def with_room(self, state: Any, num_tokens: Tensor) -> Any:
        return _with_room(state, num_tokens)

    def _last_token(
        self, ids: Tensor, position: Tensor, context: Any, state: Any
    ) -> tuple[Tensor, Any]:
        tokens = ops.take(ids, position, axis=1)[:, None]
        x = self.model.embed_target(tokens, start_index=position, training=False)
        prefix = ops.logical_and(ops.arange(ops.shape(ids)[1]) <= position, ids != 0)
        chunk = Chunk(position, ops.zeros_like(tokens) + position, tokens != 0, prefix, False)
        new_state = []
        parts = zip(self.model.decoders, state, context["memory"], strict=True)
        for decoder, cache, memory in parts:
            x, cache = decoder.extend(x, cache, chunk, memory, context["mask"])
            new_state.append(cache)
        return x[:, 0], new_state

    def _whole_prefix(self, ids: Tensor, position: Tensor, context: Any) -> Tensor:
        size, batch = ops.shape(ids)[0], ops.shape(context["mask"])[0]

        def for_each_hypothesis(x: Tensor) -> Tensor:
            rest = ops.shape(x)[1:]
            x = ops.broadcast_to(x[:, None], (batch, size // batch, *rest))
            return ops.reshape(x, (size, *rest))

        memory, mask = (for_each_hypothesis(context[name]) for name in ("memory", "mask"))
        x = self.model.run_decoders(ids, memory, mask, training=False)
        return ops.take(x, position, axis=1)


class LanguageModelSteps:
    """The steps of a `LanguageModel`, from prompts to logits of what follows.

    Prompts of different lengths are padded on their left; padding changes nothing. A prompt is
    computed at once. After it, each step computes

    - the last token only, with a state of the earlier ones: keys and values for dot-product
      attention and for power law attention with a causal or a fixed metric, one vector for `rgtn`,
      one matrix for `tn`, a window for `tsa`. The result is that of the whole sequence;
    - or, with an attention without such a state, or `key_value_cache=False`, the whole sequence.

    The published metric of power law attention changes with every token, for all earlier tokens,
    too. By default the whole sequence is computed anew. With `metric_cache=True` the metric of the
    prompt is kept and used from then on; with `key_value_cache=True` keys and values are kept,
    which implies this metric. These are the published caches; they give the same as one another,
    and something else than the metric computed anew.

    Args:
        model: The language model.
        key_value_cache: Whether to keep a state of the earlier tokens. Defaults to `None`: if that
            changes nothing.
        metric_cache: Whether to keep the metric of the prompt. Defaults to `False`.

    Raises:
        ValueError: If `key_value_cache` is `True` and an attention has no such state, or
            `metric_cache` and an attention has no metric that changes with each token.

    Example:
        >>> from keras_tnattn.models import language_model
        >>> from keras_tnattn.search.model_steps import LanguageModelSteps
        >>> model = language_model(100, "rgtn", model_dim=16, feedforward_dim=16)
        >>> LanguageModelSteps(model).keeps_state
        True
    """

    def __init__(
        self, model: LanguageModel, key_value_cache: bool | None = None, metric_cache: bool = False
    ) -> None:
        can_extend = all(decoder.can_extend for decoder in model.decoders)
        is_exact = all(decoder.keeps_state for decoder in model.decoders)
        if key_value_cache and not can_extend:
            raise ValueError(
                "Expected an attention that keeps a state of earlier tokens. Received: "
                f"key_value_cache=True with {model.decoders[0].self_attention!r}"
            )
        if metric_cache and (is_exact or not can_extend):
            raise ValueError(
                "Expected power law attention with the published metric, which changes with each "
                f"token. Received: metric_cache=True with {model.decoders[0].self_attention!r}"
            )
        self.model = model
        self.vocabulary_size = self.input_vocabulary_size = model.vocabulary_size
        self.keeps_state = is_exact if key_value_cache is None else key_value_cache
        self.keeps_metric = metric_cache and not self.keeps_state
        self._can_extend = can_extend

    def pack(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        return _pad(rows, _PROMPT_ROUNDING, left=True)

    def start(self, inputs: Tensor) -> Start:
        batch, length = ops.shape(inputs)
        num_padding = ops.sum(ops.cast(inputs == 0, "int32"), axis=1, keepdims=True)
        offset = new_state(context={"num_padding": num_padding})
        last = ops.cast(length - 1, "int32")
        x, states = self._all_tokens(inputs, num_padding, last)
        if self.keeps_metric:
            states = [{"self": {"tokens": {}, "context": s["self"]["context"]}} for s in states]
        elif not self.keeps_state:
            states = []
        limit = ops.zeros((batch,), "int32") + last
        return Start(inputs, limit, {}, [offset, *states], self.model.compute_logits(x))

    def step(self, ids: Tensor, position: Tensor, context: Any, state: Any) -> tuple[Tensor, Any]:
        offset, *states = state
        num_padding = offset["context"]["num_padding"]
        if self.keeps_state:
            tokens = ops.take(ids, position, axis=1)[:, None]
            chunk = Chunk(
                position,
                position - num_padding,
                tokens != 0,
                ops.logical_and(ops.arange(ops.shape(ids)[1]) <= position, ids != 0),
                is_prompt=False,
            )
            x, states = self._extend(tokens, states, chunk)
            x = x[:, 0]
        else:
            metrics = [s["self"]["context"] for s in states] if self.keeps_metric else None
            x, _ = self._all_tokens(ids, num_padding, position, metrics)
        return self.model.compute_logits(x), [offset, *states]

    def with_room(self, state: Any, num_tokens: Tensor) -> Any:
        return _with_room(state, num_tokens)

    def _all_tokens(
        self, ids: Tensor, num_padding: Tensor, position: Tensor, metrics: Any = None
    ) -> tuple[Tensor, list[Any]]:
        """The decoders' output at a position, and their states, from all ids `(N, L)`."""
        size, length = ops.shape(ids)
        positions = ops.arange(length)[None] - num_padding
        if not self._can_extend:
            x = self.model.run_decoders(ids, positions)
            return ops.take(x, position, axis=1), []
        mask = ids != 0
        chunk = Chunk(0, positions, mask, mask, is_prompt=metrics is None)
        states = [decoder.empty_state(size, length) for decoder in self.model.decoders]
        if metrics is not None:
            for state, context in zip(states, metrics, strict=True):
                state["self"] = {**state["self"], "context": context}
        x, states = self._extend(ids, states, chunk)
        return ops.take(x, position, axis=1), states

    def _extend(self, ids: Tensor, states: list[Any], chunk: Chunk) -> tuple[Tensor, list[Any]]:
        x, new_states = self.model.embed(ids, chunk.positions), []
        for decoder, state in zip(self.model.decoders, states, strict=True):
            x, state = decoder.extend(x, state, chunk)
            new_states.append(state)
        return x, new_states
