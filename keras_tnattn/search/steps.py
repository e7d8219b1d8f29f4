"""What a search needs of a model: a function from ids and a state to the logits of the next id."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import keras
import numpy as np

from keras_tnattn.typing import Tensor


class Start(NamedTuple):
    """The first step for `B` sequences.

    Attributes:
        ids: Integers `(B, P)`: the ids that the search continues.
        limit: Integers `(B,)`: the position after which nothing is generated, as far as the inputs
            determine it; the search adds its number of extra tokens.
        context: A nested structure of tensors `(B, ...)` that stay the same in all steps.
        state: A nested structure of tensors `(B, ...)` that `step` takes and returns.
        logits: Floats `(B, V)`, of the id after the last one.

    Example:
        >>> Start(ids=None, limit=None, context={}, state=[], logits=None).context
        {}
    """

    ids: Tensor
    limit: Tensor
    context: Any
    state: Any
    logits: Tensor


class Steps(Protocol):
    """The steps of a model.

    Attributes:
        model: The Keras model whose weights the steps read.
        vocabulary_size: Number `V` of the ids that are generated.
        input_vocabulary_size: Number of the ids of the inputs.

    Example:
        A model whose next id depends on the last one only:

        >>> import keras
        >>> from keras import ops
        >>> from keras_tnattn.search import Generator, Start
        >>> class LastId:
        ...     vocabulary_size = input_vocabulary_size = 9
        ...     model = keras.Sequential([keras.Input((None,)), keras.layers.Embedding(9, 9)])
        ...
        ...     def pack(self, rows):
        ...         width = max(map(len, rows))
        ...         return np.array([[0] * (width - len(row)) + list(row) for row in rows])
        ...
        ...     def start(self, inputs):
        ...         last = ops.zeros_like(inputs[:, 0]) + ops.shape(inputs)[1] - 1
        ...         return Start(inputs, last, {}, {}, self.model(inputs)[:, -1])
        ...
        ...     def step(self, ids, position, context, state):
        ...         return self.model(ops.take(ids, position, axis=1)[:, None])[:, 0], state
        ...
        ...     def with_room(self, state, num_tokens):
        ...         return state
        >>> Generator(LastId(), max_new_tokens=3)([[5, 7], [2]]).ids.shape
        (2, 3)
    """

    model: keras.Model
    vocabulary_size: int
    input_vocabulary_size: int

    def pack(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Returns ids of different lengths as a batch `(B, S)`, padded with 0."""

    def start(self, inputs: Tensor) -> Start:
        """Computes the first step for a batch that `pack` returned."""

    def step(self, ids: Tensor, position: Tensor, context: Any, state: Any) -> tuple[Tensor, Any]:
        """Computes the logits after the id at a position.

        Args:
            ids: Integers `(N, L)`, `N = B K` for `K` hypotheses for each of `B` inputs; 0 behind
                the position.
            position: Scalar integer.
            context: That of the start, `(B, ...)`.
            state: That of the start or of the last step, `(N, ...)`, with room for `L` ids.

        Returns:
            Logits `(N, V)`, and the new state.
        """

    def with_room(self, state: Any, num_tokens: Tensor) -> Any:
        """Returns a state, of any number of leading axes, with room for more ids."""
