import math

import numpy as np
import oracles
import pytest
from conformance import relative_error, to_numpy
from differentiation import gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_tnattn.ops import tensor_train
from keras_tnattn.ops.tensor_train import contraction, suggestion
from keras_tnattn.ops.tensor_train.factors import (
    as_ints,
    balanced_factors,
    check_factors,
    core_shapes,
    prime_factors,
    rank_bounds,
    resolve_ranks,
    tt_shapes,
)

factor_pairs = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=4
).map(lambda pairs: tuple(zip(*pairs, strict=True)))


def random_cores(tt_input_shape, tt_output_shape, tt_ranks, seed=0):
    rng = np.random.default_rng(seed)
    shapes = core_shapes(tt_input_shape, tt_output_shape, tt_ranks)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


@given(size=st.integers(1, 3000))
def test_prime_factors_multiply_to_the_size(size):
    factors = prime_factors(size)
    assert math.prod(factors) == size
    assert factors == sorted(factors)
    assert all(all(f % d for d in range(2, math.isqrt(f) + 1)) for f in factors)


@given(size=st.integers(1, 3000), num_factors=st.integers(1, 6))
def test_balanced_factors_pad_nothing(size, num_factors):
    factors = balanced_factors(size, num_factors)
    assert math.prod(factors) == size
    assert len(factors) == num_factors
    assert factors == tuple(sorted(factors))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((64, 64), ((2,) * 6, (2,) * 6)),
        ((64, 16), ((2,) * 6, (2, 2, 2, 2, 1, 1))),
        ((300, 8), ((2, 2, 3, 5, 5), (2, 2, 2, 1, 1))),
        ((97, 4), ((1, 97), (2, 2))),
        ((1, 1), ((1,), (1,))),
    ],
)
def test_proposed_shapes(sizes, expected):
    assert tt_shapes(*sizes) == expected


def test_balanced_factors_are_balanced():
    assert balanced_factors(300, 3) == (5, 6, 10)


@given(factors=factor_pairs)
def test_rank_bounds_hold_every_matrix(factors):
    # The bound is sharp: a random matrix has these ranks, and they represent it exactly.
    bounds = rank_bounds(*factors)
    shape = math.prod(factors[0]), math.prod(factors[1])
    matrix = np.random.default_rng(0).normal(size=shape)
    cores, error = tensor_train.matrix_to_tt(matrix, *factors, tolerance=1e-12)
    assert tuple(core.shape[-1] for core in cores[:-1]) == bounds
    assert error < 1e-12
    np.testing.assert_allclose(oracles.tt_matrix(cores), matrix, atol=1e-10)


def test_an_integer_rank_is_clipped():
    assert resolve_ranks(100, (2, 2, 2, 2), (2, 2, 2, 2)) == (4, 16, 4)
    assert resolve_ranks(3, (2, 2, 2, 2), (2, 2, 2, 2)) == (3, 3, 3)
    assert resolve_ranks(5, (7,), (3,)) == ()


@pytest.mark.parametrize("ranks", [(2, 2), (5, 4, 4), (2, 2, 2, 2)])
def test_a_rank_list_outside_the_bound_prints_it(ranks):
    with pytest.raises(ValueError, match=r"at most \(4, 16, 4\).*tt_ranks=\("):
        resolve_ranks(ranks, (2, 2, 2, 2), (2, 2, 2, 2))


@settings(max_examples=10)  # JAX compiles each
@given(factors=factor_pairs, rank=st.integers(1, 4), seed=st.integers(0, 10))
def test_matrix_is_the_product_of_cores(factors, rank, seed):
    ranks = resolve_ranks(rank, *factors)
    cores = random_cores(*factors, ranks, seed)
    got = to_numpy(tensor_train.tt_to_matrix([ops.convert_to_tensor(c) for c in cores]))
    np.testing.assert_allclose(got, oracles.tt_matrix(cores), rtol=1e-4, atol=1e-4)


def test_matrices_of_heads():
    cores = [np.stack([c, 2 * c, -c]) for c in random_cores((2, 3), (3, 2), (4,))]
    got = to_numpy(tensor_train.tt_to_matrix(cores))
    for head in range(3):
        expected = oracles.tt_matrix([core[head] for core in cores])
        np.testing.assert_allclose(got[head], expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=10)
@given(factors=factor_pairs, rank=st.integers(1, 4), rows=st.integers(0, 3))
def test_every_plan_gives_the_same_product(factors, rank, rows):
    ranks = resolve_ranks(rank, *factors)
    cores = random_cores(*factors, ranks)
    x = np.random.default_rng(1).normal(size=(rows, 2, math.prod(factors[0]))).astype("float32")
    expected = x @ oracles.tt_matrix(cores)
    plans = [
        contraction.ContractionPlan(split, left_first, 1, 0, 1, 1)
        for split in range(len(cores))
        for left_first in (True, False)
    ]
    for plan in (None, *plans):
        got = to_numpy(tensor_train.tt_matmul(x, cores, plan))
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("split", "shapes"),
    [
        (0, ((2, 3, 2), (3, 2, 1), (4, 2))),
        (2, ((2, 3, 2), (3, 2, 1), (4, 2))),
        (0, ((12,), (6,), ())),
    ],
)
def test_product_of_heads(split, shapes):
    cores = random_cores(*shapes)
    maps = [[np.stack([c, 2 * c + 1]) for c in cores], [np.stack([c - 1, -c]) for c in cores]]
    x = np.random.default_rng(1).normal(size=(3, 5, 12)).astype("float32")
    plan = contraction.ContractionPlan(split, True, 1, 0, 1, 1)
    results = contraction.tt_matmul_heads(x, maps, plan)
    for got, cores in zip(results, maps, strict=True):
        assert tuple(got.shape) == (3, 2, 5, 6)
        for head in range(2):
            expected = x @ oracles.tt_matrix([core[head] for core in cores])
            np.testing.assert_allclose(to_numpy(got)[:, head], expected, rtol=1e-4, atol=1e-4)


@given(
    factors=factor_pairs,
    tolerance=st.sampled_from([0.0, 1e-3, 0.1, 0.5, 0.9]),
    seed=st.integers(0, 5),
)
def test_tt_svd_keeps_its_promise(factors, tolerance, seed):
    shape = math.prod(factors[0]), math.prod(factors[1])
    matrix = np.random.default_rng(seed).normal(size=shape)
    cores, error = tensor_train.matrix_to_tt(matrix, *factors, tolerance=tolerance)
    true_error = relative_error(oracles.tt_matrix(cores), matrix)
    assert true_error == pytest.approx(error, abs=1e-9)
    assert error <= tolerance + 1e-12


def test_tt_svd_recovers_the_ranks_of_a_tt_matrix():
    cores = random_cores((2,) * 5, (2,) * 5, (2, 3, 2, 2))
    matrix = oracles.tt_matrix(cores)
    result, error = tensor_train.matrix_to_tt(matrix, (2,) * 5, (2,) * 5, tolerance=1e-6)
    assert [core.shape[-1] for core in result[:-1]] == [2, 3, 2, 2]
    assert error < 1e-6
    result, error = tensor_train.matrix_to_tt(matrix, (2,) * 5, (2,) * 5, tt_ranks=1)
    assert [core.shape[-1] for core in result[:-1]] == [1, 1, 1, 1]
    assert error > 1e-2


def test_tt_svd_of_zero():
    cores, error = tensor_train.matrix_to_tt(np.zeros((4, 4)), (2, 2), (2, 2), tolerance=0.1)
    assert error == 0
    assert (oracles.tt_matrix(cores) == 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either `tt_ranks` or `tolerance`"),
        ({"tt_ranks": 2, "tolerance": 0.1}, "tt_ranks=2, tolerance=0.1"),
        ({"tolerance": -1.0}, r"tolerance=-1\.0"),
    ],
)
def test_tt_svd_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        tensor_train.matrix_to_tt(np.ones((4, 4)), (2, 2), (2, 2), **arguments)


@pytest.mark.parametrize("factors", [((2, 0), (2, 2)), ((2,), (2, 2)), ((), ())])
def test_factors_are_positive_and_paired(factors):
    with pytest.raises(ValueError, match="as many positive input factors"):
        check_factors(*factors)


def test_a_given_plan_is_followed(monkeypatch):
    cores = random_cores((2, 3), (3, 2), (4,))
    monkeypatch.delattr(contraction, "plan_of")
    plan = contraction.ContractionPlan(1, True, 1, 0, 1, 1)
    x = np.ones((2, 6), "float32")
    expected = x @ oracles.tt_matrix(cores)
    got = to_numpy(tensor_train.tt_matmul(x, cores, plan))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    heads = [ops.expand_dims(core, 0) for core in cores]
    (got,) = contraction.tt_matmul_heads(x[None], [heads], plan)
    np.testing.assert_allclose(to_numpy(got)[0, 0], expected, rtol=1e-4, atol=1e-4)


def test_tt_svd_names_the_shape():
    with pytest.raises(ValueError, match=r"matrix\.shape=\(4, 5\)"):
        tensor_train.matrix_to_tt(np.ones((4, 5)), (2, 2), (2, 2), tt_ranks=2)
    with pytest.raises(ValueError, match=r"tt_output_shape=\(4,\)"):
        tensor_train.matrix_to_tt(np.ones((4, 4)), (2, 2), (4,), tt_ranks=2)


@pytest.mark.parametrize("num_cores", [2, 3, 6, 10])
def test_quantized_rank_2_has_16_n_minus_1_parameters(num_cores):
    shape = (2,) * num_cores
    plan = contraction.contraction_plan(shape, shape, (2,) * (num_cores - 1))
    assert plan.parameters == 16 * (num_cores - 1)


def test_plan_of_a_large_map_has_two_balanced_blocks():
    plan = contraction.contraction_plan((2,) * 10, (2,) * 10, (2,) * 9)
    assert plan.split == 5
    assert plan.flops_per_row == 2 * 2 * 1024 * 64
    assert plan.dense_flops_per_row == 2 * 1024**2
    assert "8.0 times fewer" in str(plan)
    # Small maps and ranks near the bound are cheaper formed.
    assert contraction.contraction_plan((2,) * 6, (2,) * 6, (2,) * 5).split == 0
    ranks = rank_bounds((2,) * 10, (2,) * 10)
    assert contraction.contraction_plan((2,) * 10, (2,) * 10, ranks).split == 0


@pytest.mark.parametrize(
    ("sizes", "budget"), [((64, 64), 512), ((24, 36), 300), ((8, 12), 60), ((30, 6), 100)]
)
def test_suggested_shapes_fit_and_can_have_full_rank(sizes, budget):
    result = tensor_train.suggest_shapes(*sizes, max_parameters=budget)
    factors = result.tt_input_shape, result.tt_output_shape
    assert tuple(math.prod(f) for f in factors) == sizes
    assert resolve_ranks(result.tt_ranks, *factors) == result.tt_ranks
    cores = random_cores(*factors, result.tt_ranks)
    assert sum(core.size for core in cores) == result.plan.parameters <= budget
    assert np.linalg.matrix_rank(oracles.tt_matrix(cores), tol=1e-4) == min(sizes)
    # No pair of balanced factors is cheaper at the ranks that fit.
    for num_factors, rank in np.ndindex(5, 20):
        first, second = (balanced_factors(size, num_factors + 1) for size in sizes)
        for other in ((first, second), (first, second[::-1])):
            ranks = resolve_ranks(rank + 1, *other)
            plan = contraction.contraction_plan(*other, ranks)
            if plan.parameters <= budget and suggestion._can_have_full_rank(*other, ranks):
                assert result.plan.cost <= plan.cost


def kronecker_weight(noise):
    rng = np.random.default_rng(0)
    weight = np.kron(rng.normal(size=(4, 8)), rng.normal(size=(6, 3)))
    return weight + noise * rng.normal(size=weight.shape)


def test_suggested_shapes_find_the_structure_of_a_weight():
    weight = kronecker_weight(1e-4)
    by_size = tensor_train.suggest_shapes(24, 24, max_parameters=50, weight=weight)
    assert (by_size.tt_input_shape, by_size.tt_output_shape) == ((4, 6), (8, 3))
    assert by_size.tt_ranks == (1,)
    _, error = tensor_train.matrix_to_tt(weight, (4, 6), (8, 3), tt_ranks=(1,))
    assert by_size.relative_error == pytest.approx(error)
    assert error < 1e-3
    assert "relative error" in str(by_size)
    both = tensor_train.suggest_shapes(24, 24, max_parameters=60, max_error=0.01, weight=weight)
    assert both.plan.parameters <= 60
    assert both.relative_error <= 0.01
    exact = tensor_train.suggest_shapes(24, 24, max_error=0.0, weight=kronecker_weight(0.0))
    assert exact.relative_error < 1e-6
    # The cheapest of all that keep the error: not dearer than the dense matrix.
    assert exact.plan.cost <= contraction.contraction_plan((24,), (24,), ()).cost


@pytest.mark.parametrize("max_error", [0.05, 0.1])
def test_suggested_shapes_of_several_bonds_keep_the_error(max_error):
    rng = np.random.default_rng(0)
    weight = 0.001 * rng.normal(size=(32, 32))
    for share in (1.0, 0.3):
        product = np.ones((1, 1))
        for _ in range(5):
            product = np.kron(product, np.eye(2) + 0.2 * rng.normal(size=(2, 2)))
        weight += share * product / np.linalg.norm(product)
    result = tensor_train.suggest_shapes(32, 32, max_error=max_error, weight=weight)
    assert len(result.tt_ranks) > 1
    assert result.relative_error <= max_error


def test_a_suggestion_without_a_weight_states_no_error():
    result = tensor_train.suggest_shapes(8, 12, max_parameters=60)
    assert result.relative_error is None
    assert "error" not in str(result)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, "Received: neither"),
        ({"max_error": 0.1}, "weight=None"),
        ({"max_error": -1.0, "weight": np.ones((24, 24))}, r"max_error=-1\.0"),
        ({"max_parameters": 9, "weight": np.ones((2, 2))}, r"weight\.shape=\(2, 2\)"),
        ({"max_parameters": 9}, "max_parameters=9"),
    ],
)
def test_suggestions_name_limits_that_cannot_be_kept(limits, message):
    with pytest.raises(ValueError, match=message):
        tensor_train.suggest_shapes(24, 24, **limits)


@pytest.mark.parametrize("value", [2.5, "a", b"ab", "", [2, "b"], (1.0, 2), [[2, 2]]])
def test_ranks_and_factors_are_ints(value):
    with pytest.raises(ValueError, match=r"an int or a sequence of ints\. Received: tt_ranks="):
        as_ints(value, "tt_ranks")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(np.array(3), 3), (np.int32(3), 3), (np.array([2, 3]), (2, 3)), ([], ()), (None, None)],
)
def test_ranks_and_factors_become_what_json_holds(value, expected):
    result = as_ints(value, "tt_ranks")
    assert result == expected
    assert type(result) is type(expected)


def test_of_equal_plans_the_right_block_comes_first():
    plan = contraction.contraction_plan((2,) * 10, (2,) * 10, (2,) * 9)
    assert (plan.split, plan.left_first) == (5, False)
    # Not if the left block makes the data smaller.
    assert contraction.contraction_plan((32, 2), (2, 32), (4,)).left_first


@pytest.mark.parametrize("rows", [4, 32, 71])  # fewer than a group, one group, two and a rest
def test_gradients_of_two_blocks_are_those_of_the_dense_product(rows):
    # The loss is a fixed linear function of y, so its gradients are known without autodiff.
    rng = np.random.default_rng(0)
    layer_shape = (2, 3, 2), (2, 2, 3)
    cores = random_cores(*layer_shape, (3, 2))
    x = rng.normal(size=(rows, 12)).astype("float32")
    weight = rng.normal(size=(rows, 12))

    def loss(cores, x):
        return float(np.sum(weight * (np.asarray(x, "float64") @ oracles.tt_matrix(cores))))

    for split, left_first in [(0, True), (1, True), (2, False)]:
        plan = contraction.ContractionPlan(split, left_first, 1, 0, 1, 1)
        grads = gradients(
            lambda *t, plan=plan: ops.sum(
                ops.convert_to_tensor(weight, "float32")
                * tensor_train.tt_matmul(t[-1], t[:-1], plan)
            ),
            [*cores, x],
        )
        for n, core in enumerate(cores):
            for index in [(0, 0, 0, 0), tuple(s - 1 for s in core.shape)]:
                moved = [c.astype("float64") for c in cores]
                moved[n][index] += 1.0
                # The loss is linear in each core, so this difference is the exact derivative.
                expected = loss(moved, x) - loss(cores, x)
                assert grads[n][index] == pytest.approx(expected, rel=1e-3, abs=1e-3)
        expected = weight @ oracles.tt_matrix(cores).T
        np.testing.assert_allclose(grads[-1], expected, rtol=1e-3, atol=1e-3)


def test_the_largest_rank_that_fits_is_suggested():
    # With the factors fixed, one rank more exceeds the budget.
    for budget in range(20, 260, 7):
        ranks = suggestion._largest_ranks((4, 5), (3, 4), budget)
        sizes = [sum(map(np.prod, core_shapes((4, 5), (3, 4), (rank,)))) for rank in range(1, 13)]
        fitting = [rank for rank, size in enumerate(sizes, 1) if size <= budget]
        assert ranks == ((max(fitting),) if fitting else None)
