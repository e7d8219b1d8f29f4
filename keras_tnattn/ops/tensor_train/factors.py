"""Factors of the sizes of a TT-matrix, and its ranks."""

import math
from collections.abc import Sequence
from typing import overload

import numpy as np


def prime_factors(size: int) -> list[int]:
    """Returns the prime factors of `size` in ascending order; `[1]` for 1.

    Example:
        >>> prime_factors(300)
        [2, 2, 3, 5, 5]
    """
    if size < 1:
        raise ValueError(f"Expected a positive size. Received: size={size}")
    factors = []
    divisor = 2
    while divisor * divisor <= size:
        while size % divisor == 0:
            factors.append(divisor)
            size //= divisor
        divisor += 1
    return [*factors, size] if size > 1 else factors or [1]


def balanced_factors(size: int, num_factors: int) -> tuple[int, ...]:
    """Splits `size` into `num_factors` factors, as equal as its prime factors allow.

    Args:
        size: Positive int; the product of the result, exactly. Nothing is padded.
        num_factors: Positive int. More factors than `size` has primes are filled up with 1.

    Returns:
        The factors in ascending order, for instance `balanced_factors(300, 3) == (5, 6, 10)`.

    Example:
        >>> balanced_factors(300, 3)
        (5, 6, 10)
    """
    if num_factors < 1:
        raise ValueError(f"Expected at least one factor. Received: num_factors={num_factors}")
    factors = [1] * num_factors
    for prime in reversed(prime_factors(size)):
        factors[factors.index(min(factors))] *= prime
    return tuple(sorted(factors))


def tt_shapes(input_dim: int, output_dim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Proposes the factors of a TT-matrix of shape `(input_dim, output_dim)`.

    The sizes are split into their prime factors; powers of two are thus quantized (all factors 2,
    QTT). The size with fewer prime factors is filled up with ones, and its large factors are paired
    with small factors of the other size, so that no core is larger than necessary. Nothing is
    padded: a prime size stays one factor.

    Returns:
        `(tt_input_shape, tt_output_shape)`, of equal length.

    Example:
        >>> tt_shapes(16, 10)
        ((2, 2, 2, 2), (5, 2, 1, 1))
    """
    num_factors = max(len(prime_factors(input_dim)), len(prime_factors(output_dim)))
    inputs = balanced_factors(input_dim, num_factors)
    outputs = balanced_factors(output_dim, num_factors)
    return inputs, outputs[::-1]


def resolve_factors(
    input_dim: int,
    output_dim: int,
    tt_input_shape: Sequence[int] | None,
    tt_output_shape: Sequence[int] | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the given factors of both sizes, or those of `tt_shapes` if there are none.

    Raises:
        ValueError: If only one of both is given.

    Example:
        >>> resolve_factors(6, 4, [2, 3], [2, 2])
        ((2, 3), (2, 2))
        >>> resolve_factors(16, 10, None, None)
        ((2, 2, 2, 2), (5, 2, 1, 1))
    """
    check_both_factors(tt_input_shape, tt_output_shape)
    if tt_input_shape is None or tt_output_shape is None:
        return tt_shapes(input_dim, output_dim)
    return as_ints(tt_input_shape, "tt_input_shape"), as_ints(tt_output_shape, "tt_output_shape")


def check_both_factors(
    tt_input_shape: Sequence[int] | None, tt_output_shape: Sequence[int] | None
) -> None:
    """Raises a `ValueError` if the factors of only one size are given.

    Example:
        >>> check_both_factors((2, 3), (2, 2))
        >>> check_both_factors(None, None)
    """
    if (tt_input_shape is None) != (tt_output_shape is None):
        raise ValueError(
            "Expected both of `tt_input_shape` and `tt_output_shape`, or none. Received: "
            f"tt_input_shape={tt_input_shape}, tt_output_shape={tt_output_shape}"
        )


def check_factors(tt_input_shape: Sequence[int], tt_output_shape: Sequence[int]) -> None:
    """Raises a `ValueError` unless both are `N >= 1` positive factors.

    Example:
        >>> check_factors((2, 3), (4, 5))
        >>> check_factors((2, 3), (4,))
        Traceback (most recent call last):
            ...
        ValueError: Expected as many positive input factors as output factors, at least one. ...
    """
    factors = (*tt_input_shape, *tt_output_shape)
    if len(tt_input_shape) != len(tt_output_shape) or not factors or min(factors) < 1:
        raise ValueError(
            "Expected as many positive input factors as output factors, at least one. Received: "
            f"tt_input_shape={tuple(tt_input_shape)}, tt_output_shape={tuple(tt_output_shape)}"
        )


def rank_bounds(tt_input_shape: Sequence[int], tt_output_shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the largest useful TT-rank of each of the `N - 1` bonds.

    Bond `n` joins `(I_1 J_1) ... (I_n J_n)` to the rest; its rank is bounded by the smaller of the
    two products.

    Example:
        >>> rank_bounds((2, 2, 2, 2), (2, 2, 2, 2))
        (4, 16, 4)
    """
    sizes = [i * j for i, j in zip(tt_input_shape, tt_output_shape, strict=True)]
    return tuple(min(math.prod(sizes[:n]), math.prod(sizes[n:])) for n in range(1, len(sizes)))


@overload
def as_ints(value: None, name: str) -> None: ...
@overload
def as_ints(value: int, name: str) -> int: ...
@overload
def as_ints(value: Sequence[int], name: str) -> tuple[int, ...]: ...
def as_ints(value: int | Sequence[int] | None, name: str) -> int | tuple[int, ...] | None:
    """Returns ranks or factors as a Python int or a tuple of them, which a config can hold.

    Args:
        value: The ranks or factors, or `None`.
        name: Their name, for the error.

    Raises:
        ValueError: If `value` is neither an int nor a sequence of ints.

    Example:
        >>> as_ints(np.int64(3), "ranks"), as_ints([2, 4], "ranks")
        (3, (2, 4))
    """
    if value is None:
        return None
    array = np.asarray(value)
    if array.ndim > 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"Expected an int or a sequence of ints. Received: {name}={value!r}")
    return int(array) if array.ndim == 0 else tuple(map(int, array))


def as_ranks(tt_ranks: int | Sequence[int]) -> int | tuple[int, ...]:
    """Returns TT-ranks as a Python int or a tuple of them.

    Args:
        tt_ranks: The maximum TT-rank, or the rank of each bond.

    Raises:
        ValueError: If `tt_ranks` is neither an int nor a sequence of ints, or a rank is below 1.

    Example:
        >>> as_ranks([2, 4])
        (2, 4)
    """
    if tt_ranks is None:
        raise ValueError("Expected an int or a sequence of ints. Received: tt_ranks=None")
    ranks = as_ints(tt_ranks, "tt_ranks")
    if np.any(np.less(ranks, 1)):
        raise ValueError(f"Expected TT-ranks of at least 1. Received: tt_ranks={ranks}")
    return ranks


def resolve_ranks(
    tt_ranks: int | Sequence[int], tt_input_shape: Sequence[int], tt_output_shape: Sequence[int]
) -> tuple[int, ...]:
    """Returns the `N - 1` inner TT-ranks that `tt_ranks` stands for.

    Args:
        tt_ranks: Int, the maximum TT-rank, clipped at each bond to `rank_bounds`; or the sequence
            of ranks, which is returned unchanged.
        tt_input_shape: The `N` factors `I_n`.
        tt_output_shape: The `N` factors `J_n`.

    Raises:
        ValueError: If a rank is below 1, or a sequence has the wrong length or is above the bound.

    Example:
        >>> resolve_ranks(8, (2, 2, 2, 2), (2, 2, 2, 2))
        (4, 8, 4)
    """
    bounds = rank_bounds(tt_input_shape, tt_output_shape)
    ranks = as_ranks(tt_ranks)
    if isinstance(ranks, int):
        return tuple(min(ranks, bound) for bound in bounds)
    if len(ranks) != len(bounds) or any(np.greater(ranks, bounds)):
        raise ValueError(
            f"Expected {len(bounds)} TT-ranks of at most {bounds} for "
            f"tt_input_shape={tuple(tt_input_shape)} and tt_output_shape={tuple(tt_output_shape)}. "
            f"Received: tt_ranks={ranks}. Pass an int to have the ranks clipped to the bound."
        )
    return ranks


def core_shapes(
    tt_input_shape: Sequence[int], tt_output_shape: Sequence[int], tt_ranks: Sequence[int]
) -> list[tuple[int, int, int, int]]:
    """Returns the shapes `(R_{n-1}, I_n, J_n, R_n)` of the `N` TT-cores.

    Example:
        >>> core_shapes((2, 3), (4, 5), (6,))
        [(1, 2, 4, 6), (6, 3, 5, 1)]
    """
    ranks = (1, *tt_ranks, 1)
    return list(zip(ranks[:-1], tt_input_shape, tt_output_shape, ranks[1:], strict=True))
