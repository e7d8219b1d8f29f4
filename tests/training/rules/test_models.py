import keras
import numpy as np
import pytest

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.rules.config import MODEL_DIMS, RulesConfig
from keras_tnattn_train.rules.models import network

BASELINES = tuple(name for name in MODEL_DIMS if name != "tn")


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_baselines_have_about_as_many_weights_as_the_tensor_network(steps):
    weights = {
        name: network(RulesConfig(model=name, steps=steps)).count_params() for name in MODEL_DIMS
    }
    assert weights["tn"] == 6 * RulesConfig(steps=steps).bond_dim ** 2
    for name in set(BASELINES) - {"large-transformer"}:
        assert 0.9 * weights["tn"] < weights[name] < 1.1 * weights["tn"], name
    assert weights["large-transformer"] > 17_000


@pytest.mark.parametrize("model", BASELINES)
def test_baselines_take_any_length_and_are_saved(model, tmp_path):
    one = network(RulesConfig(model=model, steps=2))
    one.save(tmp_path / "model.keras")
    other = keras.models.load_model(tmp_path / "model.keras")
    for length in (1, 4, 33):
        rows = np.random.default_rng(0).integers(0, 2, (3, length)).astype("int32")
        logits = keras.ops.convert_to_numpy(one(rows))
        assert logits.shape == (3, length, 2)
        np.testing.assert_array_equal(logits, keras.ops.convert_to_numpy(other(rows)))


def changed_outputs(config, length, cell):
    """Where the outputs change if one cell of the row does."""
    model = network(config)
    rows = np.random.default_rng(1).integers(0, 2, (1, length)).astype("int32")
    other = rows.copy()
    other[0, cell] ^= 1
    difference = keras.ops.convert_to_numpy(model(rows) - model(other))
    return np.flatnonzero(np.abs(difference[0]).max(-1) > 1e-7).tolist()


def test_a_convolution_sees_the_neighbors_of_its_steps():
    options = {"model": "convolution", "steps": 2}
    assert changed_outputs(RulesConfig(**options, boundary="fixed"), 9, 4) == [2, 3, 4, 5, 6]
    assert changed_outputs(RulesConfig(**options, boundary="fixed"), 9, 0) == [0, 1, 2]
    assert changed_outputs(RulesConfig(**options, boundary="periodic"), 9, 0) == [0, 1, 2, 7, 8]


@pytest.mark.parametrize("model", ["lstm", "transformer", "large-transformer"])
def test_other_baselines_see_the_whole_row(model):
    assert changed_outputs(RulesConfig(model=model), 5, 2) == [0, 1, 2, 3, 4]


def test_names_and_learning_rates_of_baselines():
    config = RulesConfig(model="lstm", seed=3)
    assert config.name == "lstm-rule-30-steps-1-periodic-3"
    assert RulesConfig(model="large-transformer").learning_rate == 0.001
    assert RulesConfig().learning_rate == 0.01


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"bond_dim": 7}, "bond_dim with model='lstm'.*bond_dim=7"),
        ({"num_layers": 2}, "num_layers=2"),
        ({"initial_deviation": 0.1}, "initial_deviation=0.1"),
        ({"steps": 6}, "at most 5 steps.*steps=6"),
    ],
)
def test_baselines_refuse_the_options_of_the_tensor_network(options, part):
    with pytest.raises(InputError, match=part):
        RulesConfig(model="lstm", **options)
