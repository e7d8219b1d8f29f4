import numpy as np
import pytest

from training.automata import LENGTHS, RuleTask, accuracies, evolve, learn_rule


def test_rule_30_of_one_cell():
    rows = np.zeros((1, 9), int)
    rows[0, 4] = 1
    drawn = ["".join(".#"[b] for b in evolve(rows, 30, steps)[0]) for steps in range(4)]
    assert drawn == ["....#....", "...###...", "..##..#..", ".##.####."]


def test_rule_90_is_the_sum_of_the_neighbours():
    rows = np.random.default_rng(0).integers(0, 2, (5, 11))
    ring = np.roll(rows, 1, axis=1) ^ np.roll(rows, -1, axis=1)
    np.testing.assert_array_equal(evolve(rows, 90), ring)
    fixed = evolve(rows, 90, boundary="fixed")
    np.testing.assert_array_equal(fixed[:, 1:-1], ring[:, 1:-1])
    np.testing.assert_array_equal(fixed[:, 0], rows[:, 1])


def test_errors_name_what_was_given():
    with pytest.raises(ValueError, match="rule=256"):
        evolve(np.zeros((1, 4), int), 256)
    with pytest.raises(ValueError, match="boundary='open'"):
        evolve(np.zeros((1, 4), int), 30, boundary="open")


def test_training_lowers_the_error():
    task = RuleTask(204, num_batches=30, lengths=(4, 5))  # the identity
    assert accuracies(learn_rule(task), task, [4, 9], 500) == {4: 1.0, 9: 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("rule", [30, 90, 110, 184])
def test_learns_the_rules_exactly(rule):
    task = RuleTask(rule)
    model = learn_rule(task)
    longest = max(LENGTHS)
    found = accuracies(model, task, [*LENGTHS, 2 * longest, 4 * longest, 16 * longest])
    assert all(found[length] == 1 for length in LENGTHS)
    assert found[16 * longest] >= 0.999
