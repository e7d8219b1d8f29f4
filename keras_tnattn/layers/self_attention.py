"""Base class of the multi-head self-attention layers."""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import keras

from keras_tnattn.checks import check_int
from keras_tnattn.layers.base_attention import AttentionAdapter, SequenceAttention, adapter_of
from keras_tnattn.layers.base_layer import BaseLayer
from keras_tnattn.typing import Initializer, Shape, Tensor


class SelfAttention(BaseLayer):
    """Base class of the multi-head self-attentions.

    The input is `(B, L, ...)`; the output has the same shape, unless the subclass overrides this;
    the scores are `(B, H, L, L)`. A subclass defines `call(inputs, mask=None,
    return_attention_scores=False, training=None)`. If it sets `supports_causal_mask = True`, its
    call also takes `use_causal_mask=False`.

    Args:
        num_heads: Number of heads `H`.
        key_dim: Size `J` of each head, or `None` for the size of the input.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.
    """

    call_shapes: ClassVar = {"inputs": "B L I", "mask": "B? L"}
    supports_causal_mask = False

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = check_int("num_heads", num_heads)
        self.key_dim = None if key_dim is None else check_int("key_dim", key_dim)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def compute_output_shape(self, input_shape: Shape) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def compute_output_spec(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        # The arguments are those of `call`, which subclasses have more of.
        arguments = inspect.signature(self.call).bind(inputs, *args, **kwargs).arguments
        outputs = keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)
        if not arguments.get("return_attention_scores", False):
            return outputs
        scores = self._scores_shape(inputs.shape, arguments)
        return outputs, keras.KerasTensor(scores, self.compute_dtype)

    def _scores_shape(
        self, input_shape: Shape, arguments: Mapping[str, Any]
    ) -> tuple[int | None, ...]:
        """Returns the shape of the scores of a call with some arguments."""
        batch, length = input_shape[:2]
        return (batch, self.num_heads, length, length)


@adapter_of.register
def _(layer: SelfAttention) -> AttentionAdapter:
    return SequenceAttention(layer, "scores", takes_causal_mask=layer.supports_causal_mask)
