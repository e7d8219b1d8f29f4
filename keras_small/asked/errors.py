"""Errors of data that a model cannot take, and of memory, whatever the backend calls them."""

import contextlib
from collections.abc import Iterator

from keras_tnattn.errors import cause_of


class DataError(ValueError):
    """Data that a model cannot take."""


@contextlib.contextmanager
def data_errors() -> Iterator[None]:
    """Reports errors of a model that is called on the data."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # each backend has its own
        if is_out_of_memory(error):
            raise
        raise ValueError(f"The data do not fit the model: {cause_of(error)}") from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether TensorFlow, JAX or PyTorch ran out of memory."""
    names = ("ResourceExhaustedError", "OutOfMemoryError")
    signs = ("RESOURCE_EXHAUSTED", "can't allocate memory")
    return type(error).__name__ in names or any(sign in str(error) for sign in signs)
