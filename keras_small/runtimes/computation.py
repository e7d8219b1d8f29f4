"""Computations of files: functions of tensors and of the variables of a model."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_small.runtimes.expected import Expected
from keras_small.runtimes.tracing import Traced, trace
from keras_small.storage.stand_ins import StoredMatrix
from keras_small.survey.inventory import places


@dataclasses.dataclass(frozen=True)
class Computation:
    """The computation of a file.

    Attributes:
        model: The model whose variables and layers the function uses.
        function: A function of one structure of tensors, to tensors.
        specs: The `keras.InputSpec`s of its argument.
        examples: Arguments with which a file is checked.
        data: Arguments of which ranges of numbers are chosen.
        layer_names: The names in reports of the layers of the model, by their `id`.
    """

    model: keras.Model
    function: Callable[[Any], Any]
    specs: Any
    examples: Sequence[Any]
    data: Sequence[Any] = ()
    layer_names: Mapping[int, str] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        names = {id(place.layer): place.path for place in places(self.model)}
        object.__setattr__(self, "layer_names", names)

    def expected_outputs(self) -> Expected:
        """Returns the outputs for the examples."""
        return Expected(self.function, self.examples)

    def trace(
        self,
        why_not_held: Callable[[StoredMatrix], str],
        stored_bytes: Callable[[np.ndarray], int] = lambda array: array.nbytes,
        widened: Mapping[str, str] | None = None,
        batch: int | None = None,
    ) -> Traced:
        """Traces the function as `tracing.trace` does; with `batch`, for that number of rows."""
        specs = self.specs
        if batch is not None:
            specs = keras.tree.map_structure(
                lambda x: keras.InputSpec(x.dtype, (batch, *x.shape[1:]), name=x.name), specs
            )
        return trace(
            self.function, self.model, specs, stored_bytes, widened, why_not_held, self.layer_names
        )
