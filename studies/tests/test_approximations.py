"""The forms that the study of tensor networks compares."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import approximations

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(200, 24)) * np.linspace(0.1, 3, 24)
MOMENT = INPUTS.T @ INPUTS / len(INPUTS)
KERNEL = RNG.normal(size=(24, 36)).astype("float32")
TABLE = RNG.normal(size=(50, 24)).astype("float32")
COUNTS = np.arange(50.0)


def kernel_error(matrix):
    difference = matrix - KERNEL
    return np.sum(difference * (MOMENT @ difference)) / np.sum(KERNEL * (MOMENT @ KERNEL))


def table_error(matrix):
    weights = COUNTS + 1
    return weights @ np.sum((matrix - TABLE) ** 2, 1) / (weights @ np.sum(TABLE**2, 1))


def fronts(found, error):
    by_way = {}
    for approximation in found:
        point = approximation.bytes, error(approximation.matrix)
        by_way.setdefault(approximation.way, []).append(point)
    return by_way


@pytest.mark.parametrize("way", ["kernel", "table"])
def test_more_bytes_leave_less_error(monkeypatch, way):
    monkeypatch.setattr(approximations, "SHARES", (0.25, 0.5, 0.75))
    if way == "kernel":
        found = fronts(approximations.of_kernel(KERNEL, MOMENT), kernel_error)
    else:
        found = fronts(approximations.of_table(TABLE, COUNTS), table_error)
    assert {"integers", "coded integers", "low rank", "tensor train, 8 bits"} <= set(found)
    for points in found.values():
        errors = [error for _, error in sorted(points)]
        assert len(errors) > 1
        assert errors == sorted(errors, reverse=True)
        assert errors[0] < 1


def test_tensor_trains_and_low_rank_are_exact_at_full_rank(monkeypatch):
    monkeypatch.setattr(approximations, "SHARES", (2.0,))
    exact = [x for x in approximations.of_kernel(KERNEL, MOMENT) if x.way in EXACT]
    exact += [x for x in approximations.of_table(TABLE, COUNTS) if x.way in EXACT]
    assert len(exact) == 4
    for found in exact:
        expected = KERNEL if found.matrix.shape == KERNEL.shape else TABLE
        np.testing.assert_allclose(found.matrix, expected, atol=1e-4)


EXACT = ("low rank", "tensor train")


def test_low_rank_uses_the_second_moment():
    root = np.linalg.cholesky(MOMENT).T
    plain, weighted = (
        next(x for x in approximations.low_ranks(KERNEL, scale) if x.setting == 0.5)
        for scale in (np.eye(24), root)
    )
    assert kernel_error(weighted.matrix) < kernel_error(plain.matrix)


def test_products_of_a_row_are_states_of_rank_1():
    left, right = RNG.normal(size=(2, 5, 4))
    table = (left[:, :, None] * right[:, None, :]).reshape(5, 16)
    first = next(approximations.product_states(table))
    assert first.setting == 1
    assert first.bytes == 4 * 5 * 8
    np.testing.assert_allclose(first.matrix, table, atol=1e-6)


def test_heads_that_share_factors_are_found(monkeypatch):
    monkeypatch.setattr(approximations, "SHARES", (0.5,))
    factors = [RNG.normal(size=size) for size in ((16, 3), (8, 4), (4, 2))]
    core = RNG.normal(size=(3, 4, 2, 5))
    tensor = np.einsum("ai,bj,ck,ijkh->abch", *factors, core)
    found, rounded = approximations.of_heads(tensor)
    np.testing.assert_allclose(found.matrix, tensor, atol=1e-8)
    error = np.linalg.norm(rounded.matrix - tensor) / np.linalg.norm(tensor)
    assert error < 0.02
    assert rounded.bytes < found.bytes / 2
