"""What the signatures of a SavedModel take and give, read without TensorFlow."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tnattn_runtime.saved_model import read_description

Metadata = dict[str, Any]
"""Signatures by name, as TensorFlow Serving's REST form shows them."""

# TensorFlow's names of the dtypes that JSON can hold, those of the Open Inference Protocol, and the
# arrays that requests become. NumPy has no bfloat16: TensorFlow rounds to it.
_DTYPES = {
    "DT_BOOL": ("BOOL", np.dtype(bool)),
    "DT_HALF": ("FP16", np.dtype("float16")),
    "DT_BFLOAT16": ("BF16", np.dtype("float32")),
    "DT_FLOAT": ("FP32", np.dtype("float32")),
    "DT_DOUBLE": ("FP64", np.dtype("float64")),
    "DT_STRING": ("BYTES", np.dtype(object)),
    **{
        f"DT_{sign}INT{bits}": (f"{sign}INT{bits}", np.dtype(f"{sign.lower()}int{bits}"))
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
}
DATATYPES = tuple(datatype for datatype, _ in _DTYPES.values())
"""The names of the Open Inference Protocol. JSON has no other numbers."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """The dtype and the shape of a tensor.

    Args:
        dtype: TensorFlow's name, for instance `"DT_FLOAT"`.
        shape: The sizes, `None` where one is open; `None` if the rank is open, too.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def name(self) -> str:
        """The name of the dtype in messages, for instance `"complex64"`."""
        return self.dtype.removeprefix("DT_").lower()

    @property
    def datatype(self) -> str | None:
        """The name in the Open Inference Protocol, or `None` if JSON cannot hold the tensor."""
        return _DTYPES[self.dtype][0] if self.dtype in _DTYPES else None

    @property
    def array_dtype(self) -> np.dtype:
        """The dtype of an array of such values."""
        return _DTYPES[self.dtype][1]

    def fits(self, shape: Sequence[int]) -> bool:
        """Returns whether an array may have this shape."""
        return self.shape is None or (
            len(self.shape) == len(shape)
            and all(own in (None, size) for own, size in zip(self.shape, shape, strict=True))
        )


def specs(tensors: Mapping[str, Any]) -> dict[str, Spec]:
    """Returns the specs of the inputs or the outputs of a signature by name."""
    return {name: _spec(tensor) for name, tensor in sorted(tensors.items())}


def _spec(tensor: Mapping[str, Any]) -> Spec:
    shape = tensor["tensor_shape"]
    if shape.get("unknown_rank"):
        return Spec(tensor["dtype"], None)
    sizes = [int(dim["size"]) for dim in shape["dim"]]
    return Spec(tensor["dtype"], tuple(None if size < 0 else size for size in sizes))


def described_signatures(path: Path) -> Metadata | None:
    """Returns what a version's own file says about its signatures; `None` without such a file.

    Raises:
        ValueError: If the file is damaged, or the SavedModel is not the one that it describes.
    """
    content = read_description(path)
    if content is None:
        return None
    try:
        signatures = content["signatures"]
        for signature in signatures.values():
            specs(signature["inputs"])
            specs(signature["outputs"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"Could not load {path}: its description is damaged. Export the model again"
        ) from error
    return signatures
