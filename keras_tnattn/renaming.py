"""Old names of public arguments, classes and functions: they keep working, and warn."""

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def new_names(
    names: Mapping[str, str], arguments: Mapping[str, Any], owner: str, stacklevel: int | None
) -> dict[str, Any]:
    """Returns arguments by their new names.

    Args:
        names: The new name of each old one.
        arguments: Arguments by old or new names.
        owner: What takes the arguments, for the warning.
        stacklevel: Where the warning points to, counted from the caller of this function; `None`
            for no warning, when a saved file is read.

    Raises:
        TypeError: If an argument is given by both names.

    Example:
        >>> from keras_tnattn.renaming import new_names
        >>> new_names({"rate": "dropout"}, {"rate": 0.1}, "Layer", stacklevel=None)
        {'dropout': 0.1}
    """
    renamed = dict(arguments)
    for old in names.keys() & arguments.keys():
        new = names[old]
        if new in arguments:
            raise TypeError(
                f"Expected {new}, whose old name is {old}, once. "
                f"Received: {new}={arguments[new]!r}, {old}={arguments[old]!r}"
            )
        if stacklevel is not None:
            message = f"The argument {old} of {owner} is now called {new}"
            warnings.warn(message, DeprecationWarning, stacklevel=stacklevel + 1)
        renamed[new] = renamed.pop(old)
    return renamed


def renamed_arguments(
    **names: str | tuple[str, Callable[[Any], Any]],
) -> Callable[[Function], Function]:
    """Decorates a function that still takes arguments by their old names.

    Args:
        **names: The new name of each old one, or that and a function from the old value to the new.

    Example:
        >>> from keras_tnattn.renaming import renamed_arguments
        >>> @renamed_arguments(rate="dropout")
        ... def rate_of(dropout):
        ...     return dropout
        >>> rate_of(dropout=0.1)  # or, with a DeprecationWarning, rate_of(rate=0.1)
        0.1
    """

    pairs = {old: new if isinstance(new, tuple) else (new, _as_it_is) for old, new in names.items()}
    to_new = {old: new for old, (new, _) in pairs.items()}

    def decorate(function: Function) -> Function:

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not names.keys().isdisjoint(kwargs):
                values = {n: pairs[n][1](v) if n in pairs else v for n, v in kwargs.items()}
                kwargs = new_names(to_new, values, function.__qualname__, stacklevel=2)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def _as_it_is(value: Any) -> Any:
    return value


def renamed_attributes(module: str, **names: str) -> Callable[[str], Any]:
    """Returns a module's `__getattr__` that still knows old names.

    Args:
        module: The module's `__name__`.
        **names: The new name of each old one.

    Example:
        ```python notest
        __getattr__ = renamed_attributes(__name__, Old="New")
        ```
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        message = f"{module}.{name} is now called {names[name]}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return get
