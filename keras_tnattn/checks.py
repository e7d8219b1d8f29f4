"""Checks of arguments and of the backend, with one wording for all."""

import importlib.util
import numbers
import reprlib
from collections.abc import Mapping
from typing import Any

import keras

from keras_tnattn_runtime.extras import installation

_NUMBERS = ("bool", "int", "uint", "float", "bfloat")


def check_int(name: str, value: Any, at_least: int = 1) -> int:
    """Returns `value` as a Python int, or raises an error that names the argument.

    NumPy integers are accepted; floats and booleans are not, not even `2.0` and `True`.

    Args:
        name: Name of the argument, for the error message.
        value: The argument.
        at_least: Smallest allowed value. Defaults to 1.

    Raises:
        ValueError: If `value` is not an integer, or is less than `at_least`.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.checks import check_int
        >>> check_int("units", np.int64(8))
        8
        >>> check_int("units", 0)
        Traceback (most recent call last):
            ...
        ValueError: Expected an int of at least 1. Received: units=0
    """
    is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_int or value < at_least:
        received = reprlib.repr(value)  # which cuts arrays short
        raise ValueError(f"Expected an int of at least {at_least}. Received: {name}={received}")
    return int(value)


def check_rate(name: str, value: Any) -> float:
    """Returns a dropout rate as a Python float, or raises an error that names the argument.

    Args:
        name: Name of the argument, for the error message.
        value: The argument.

    Raises:
        ValueError: If `value` is not in [0, 1).

    Example:
        >>> from keras_tnattn.checks import check_rate
        >>> check_rate("dropout", 0.1)
        0.1
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1:
        raise ValueError(f"Expected a rate in [0, 1). Received: {name}={value!r}")
    return float(value)


def shape_of(value: Any) -> tuple[Any, ...] | None:
    """Returns the shape of a tensor, or `None` for anything without a known number of axes.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.checks import shape_of
        >>> shape_of(np.ones((2, 3))), shape_of(2)
        ((2, 3), None)
    """
    try:
        return tuple(value.shape)
    except (AttributeError, TypeError, ValueError):  # TensorFlow's unknown rank is a ValueError
        return None


def check_numbers(tensors: Mapping[str, Any]) -> None:
    """Raises a `TypeError` unless each tensor holds real numbers or booleans, and is no list.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.checks import check_numbers
        >>> check_numbers({"inputs": np.array(["a text"])})
        Traceback (most recent call last):
            ...
        TypeError: Expected numbers. Received: inputs of dtype <U6
    """
    for name, tensor in tensors.items():
        if isinstance(tensor, list | tuple) and _holds_no_tensors(tensor):
            raise TypeError(
                f"Expected an array or a tensor. Received: {name}={reprlib.repr(tensor)}, a "
                f"{type(tensor).__name__}: pass numpy.array({name})"
            )
        dtype = getattr(tensor, "dtype", None)
        text = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
        if dtype is not None and not text.startswith(_NUMBERS):
            raise TypeError(f"Expected numbers. Received: {name} of dtype {dtype}")


def _holds_no_tensors(values: Any) -> bool:
    """Whether a list holds numbers, at any depth, or nothing."""
    while isinstance(values, list | tuple) and len(values):
        values = values[0]
    return isinstance(values, numbers.Number | list | tuple)


def check_shapes(
    tensors: Mapping[str, Any], forms: Mapping[str, str], sizes: Mapping[str, Any], usage: str = ""
) -> None:
    """Raises a `ValueError` unless the shapes of tensors have their forms and agree.

    Args:
        tensors: Tensors by name; `None` and values without a shape are not checked.
        forms: For each name the sizes of its axes, for instance `"B L I"`, or several such forms,
            `"L L | B L L"`. A letter is the same size everywhere. `B?` may also be 1, `2` is 2, and
            `...` at the beginning or the end stands for any number of axes.
        sizes: The known sizes.
        usage: How the tensors are passed, for errors about all but the first. Defaults to `""`.

    Example:
        >>> import numpy as np
        >>> from keras_tnattn.checks import check_shapes
        >>> tensors = {"inputs": np.ones((3, 7, 8)), "mask": np.ones((3, 8))}
        >>> check_shapes(tensors, {"inputs": "B L I", "mask": "B? L"}, {})
        Traceback (most recent call last):
            ...
        ValueError: Expected mask (B, L), B=3, L=7. Received: mask.shape=(3, 8)
    """
    sizes, first = dict(sizes), next(iter(forms), "")
    for name, form in forms.items():
        shape = shape_of(tensors.get(name))
        if shape is None:
            continue
        fitted = fitted_sizes(form, shape, sizes)
        if fitted is None:
            letters = [axis for axis in form.replace("?", "").split() if axis in sizes]
            known = [f"{letter}={sizes[letter]}" for letter in dict.fromkeys(letters)]
            raise ValueError(
                f"Expected {name} {', '.join([_readable(form), *known])}. "
                f"Received: {name}.shape={shape}{usage if name != first else ''}"
            )
        sizes |= fitted


def fitted_sizes(
    forms: str, shape: tuple[Any, ...], sizes: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Returns the sizes that a shape gives to the letters of the first form that it has.

    Args:
        forms: As in `check_shapes`.
        shape: A shape; sizes other than ints are not known, and fit.
        sizes: The known sizes.

    Example:
        >>> from keras_tnattn.checks import fitted_sizes
        >>> fitted_sizes("L L | B L L", (2, 5, 5), {"L": 5})
        {'L': 5, 'B': 2}
        >>> fitted_sizes("L L | B L L", (2, 5, 4), {"L": 5}) is None
        True
    """
    for form in forms.split(" | "):
        axes, values = form.split(), shape
        if "..." in axes:
            first = axes.index("...")
            last = len(shape) - (len(axes) - 1 - first)
            values = (*shape[:first], shape[first:last], *shape[last:])
        if len(axes) != len(values) or len(shape) < len(axes) - ("..." in axes):
            continue
        fitted = dict(sizes)
        if all(_fits(axis, size, fitted) for axis, size in zip(axes, values, strict=True)):
            return fitted
    return None


def _fits(axis: str, size: Any, sizes: dict[str, Any]) -> bool:
    """Whether a size is that of an axis; notes it in `sizes` if there is none yet."""
    letter = axis.removesuffix("?")
    if isinstance(size, tuple):  # of several axes
        return None in size or sizes.setdefault(letter, size) == size
    if not isinstance(size, int) or (letter != axis and size == 1):
        return True
    return sizes.setdefault(letter, int(letter) if letter.isdecimal() else size) == size


def _readable(forms: str) -> str:
    forms = forms.replace("?", "")
    return " or ".join(f"({', '.join(form.split())})" for form in forms.split(" | "))


def check_backend_among(exported: str, *backends: str) -> None:
    """Raises a `RuntimeError` on other backends than these, with the way out."""
    if keras.backend.backend() not in backends:
        is_there = importlib.util.find_spec(backends[0]) is not None
        way_out = "" if is_there else f". {installation(backends[0])}"
        raise RuntimeError(
            f"Exporting {exported} works on {' and '.join(backends)} only: start again with "
            f"KERAS_BACKEND={backends[0]}, which reads the same files and runs. Received: "
            f"backend={keras.backend.backend()!r}{way_out}"
        )
