"""The arguments of `compress` that say how each layer may be replaced."""

import dataclasses
import re
from collections.abc import Callable, Sequence

import keras

from keras_small.coding import arrays
from keras_small.formats import OPTIONAL_FORMATS
from keras_small.formats.runtime_tables import RUNTIMES
from keras_small.survey.inventory import Inventory

# The widths of integers, and the one that stands for floats.
INTEGER_BITS = (8, 4, 3, 2)
FLOATS = 32
# Where `bits` are not given: 2 and more for a whole layer, 8 or 4 for factors, whose errors with 2
# exceed the estimates.
_CHOSEN_BITS = (8, 4, 2)
# Integers of 4 bits that reach a target lose less than other formats.
_SUFFICIENT_BITS = 4

# Maximum layers that an error names.
_NAMES_IN_ERRORS = 8

Filters = str | Sequence[str] | Callable[[keras.layers.Layer], bool]


@dataclasses.dataclass(frozen=True)
class Options:
    """How each layer may be replaced; the attributes are the arguments of `compress`."""

    bits: int | None = None
    formats: str | Sequence[str] = OPTIONAL_FORMATS
    filters: Filters | None = None
    for_runtime: str | None = None
    coded: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.coded, bool):
            raise ValueError(f"Expected True or False. Received: coded={self.coded!r}")
        self._check_formats()
        self._check_bits()
        self._check_runtime()
        self._check_filters()

    def _check_filters(self) -> None:
        if isinstance(self.filters, keras.layers.Layer):
            raise ValueError(
                "Expected regular expressions of names, or a function of a layer. Received: "
                f"filters={self.filters!r}, a layer: pass its name, {self.filters.name!r}"
            )
        if self.filters is not None and not callable(self.filters):
            _check_patterns(self.filters)

    def check_selection(self, inventory: Inventory) -> None:
        """Refuses `filters` that select none of the layers of a model which can be replaced."""
        layers = [place.layer for place in inventory.known.values()]
        if self.filters is None or not layers or any(map(self.selects, layers)):
            return
        names = ", ".join(layer.name for layer in layers[:_NAMES_IN_ERRORS])
        more = ", ..." if len(layers) > _NAMES_IN_ERRORS else ""
        raise ValueError(
            f"Expected filters that select a layer which can be replaced, of {names}{more}. "
            f"Received: filters={self.filters!r}, which select none"
        )

    def _check_formats(self) -> None:
        if not isinstance(self.formats, str | Sequence):
            raise ValueError(
                f"Expected formats among {OPTIONAL_FORMATS}, or () for none. "
                f"Received: formats={self.formats!r}"
            )
        names = as_tuple(self.formats)
        nothing_to_try = not names and self.bits == FLOATS
        if nothing_to_try or not set(names) <= set(OPTIONAL_FORMATS):
            raise ValueError(
                f"Expected formats among {OPTIONAL_FORMATS}. Received: formats={list(names)}"
            )

    def _check_bits(self) -> None:
        if self.coded:
            arrays.coder()
        if self.coded and self.bits is not None:
            raise ValueError(f"Expected coded without bits. Received: coded=True, bits={self.bits}")
        if self.bits not in (None, FLOATS, *INTEGER_BITS):
            raise ValueError(
                "Expected 8, 4, 3 or 2, 32 for floats, or None for what the bytes are best spent "
                f"on. Received: bits={self.bits!r}"
            )

    def _check_runtime(self) -> None:
        if self.for_runtime is None:
            return
        if self.for_runtime not in tuple(RUNTIMES):
            raise ValueError(
                f"Expected a runtime among {tuple(RUNTIMES)}, or None for any. "
                f"Received: for_runtime={self.for_runtime!r}"
            )
        small = RUNTIMES[self.for_runtime].bits
        if self.bits not in (None, FLOATS, *small):
            raise ValueError(
                f"Expected bits among {small}, which files for {self.for_runtime} keep small. "
                f"Received: bits={self.bits}, for_runtime={self.for_runtime!r}"
            )

    @property
    def format_names(self) -> tuple[str, ...]:
        """The names of the formats to try beside the layer itself."""
        return ("coded",) if self.coded else as_tuple(self.formats)

    @property
    def widths(self) -> tuple[int | None, ...]:
        """The bits to look for, those of whole layers last; `None` stands for floats."""
        if self.coded or self.bits == FLOATS:
            return (None,)
        return _CHOSEN_BITS if self.bits is None else (self.bits,)

    @property
    def minimum_bits(self) -> int | None:
        """The minimum bits of a whole layer in integers; `None` if there are floats alone."""
        return self.widths[-1]

    @property
    def sufficient_bits(self) -> int:
        """The minimum bits with which integers that reach a target need no other formats."""
        return _SUFFICIENT_BITS if self.bits is None else self.bits

    @property
    def integers_of(self) -> int | None:
        """The bits of the integers that layers become also without a goal; `None` if they stay."""
        return None if self.bits == FLOATS else self.bits

    def selects(self, layer: keras.layers.Layer) -> bool:
        """Whether `filters` selects a layer, as in `keras.Model.quantize`."""
        if self.filters is None:
            return True
        if callable(self.filters):
            return bool(self.filters(layer))
        return any(re.search(pattern, layer.name) for pattern in as_tuple(self.filters))


def as_tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    """Returns one text or several as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)


def _check_patterns(filters: str | Sequence[str]) -> None:
    try:
        for pattern in as_tuple(filters):
            re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"Expected regular expressions. Received: filters={filters!r} ({error})"
        ) from error
