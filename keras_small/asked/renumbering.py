"""New numbers for the ids that an embedding looks up."""

import dataclasses
import functools
from typing import Any

import keras
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Renumbering:
    """Maps ids of the original to those of the small model; true if any id has another number.

    Attributes:
        path: The path of the embedding whose ids were renumbered; empty if ids stay.
        old_ids: Integer array `(V,)` with the old id of each new id; `None` if ids stay.

    Example:
        >>> import numpy as np
        >>> from keras_small.asked.renumbering import Renumbering
        >>> renumbering = Renumbering("words", np.array([0, 2, 1]))
        >>> renumbering(np.array([[1, 2]])).tolist()
        [[2, 1]]
        >>> bool(Renumbering())
        False
    """

    path: str = ""
    old_ids: np.ndarray | None = None

    def __bool__(self) -> bool:
        return self.old_ids is not None

    @functools.cached_property
    def new_ids(self) -> np.ndarray | None:
        """The new id of each old id; `None` if ids stay."""
        return None if self.old_ids is None else np.argsort(self.old_ids)

    def __call__(self, inputs: Any) -> Any:
        """Converts inputs of the original model to inputs of the small one.

        Args:
            inputs: An array, or a structure of arrays. If ids were renumbered, every integer array
                of it is.

        Returns:
            The inputs, with new ids as int32.
        """
        new_ids = self.new_ids
        if new_ids is None:
            return inputs

        def renumber(array: Any) -> np.ndarray:
            array = np.asarray(array)
            # A new id may be too large for a dtype that the old ids fit.
            return new_ids[array].astype("int32") if array.dtype.kind in "iu" else array

        return keras.tree.map_structure(renumber, inputs)
