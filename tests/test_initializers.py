"""The initializers of this package are used as those of Keras are."""

import keras
import pytest
from conformance import to_numpy

from keras_tnattn.initializers import NearIdentity, UniformReflections

MAKERS = {
    "near_identity": (lambda **seed: NearIdentity(1, 0.1, 2.0, symmetric=True, **seed), (4, 4, 3)),
    "reflections": (UniformReflections, (6, 3)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_each_draws_a_seed_of_its_own_when_it_is_constructed(name):
    make, shape = MAKERS[name]
    initializer = make()
    values = to_numpy(initializer(shape, "float32"))
    assert (to_numpy(initializer(shape, "float32")) == values).all()
    again = type(initializer).from_config(initializer.get_config())
    for other in (make(), initializer.clone(), again):
        assert (to_numpy(other(shape, "float32")) != values).any()


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_survives_the_config(name):
    make, shape = MAKERS[name]
    initializer = make(seed=7)
    config = initializer.get_config()
    assert config["seed"] == 7
    again = type(initializer).from_config(config)
    assert again.get_config() == config
    assert (to_numpy(again(shape)) == to_numpy(initializer(shape))).all()
    assert (to_numpy(make(seed=8)(shape)) != to_numpy(initializer(shape))).any()


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_generator_gives_new_values_in_each_call(name):
    make, shape = MAKERS[name]
    initializer = make(seed=keras.random.SeedGenerator(1))
    assert (to_numpy(initializer(shape)) != to_numpy(initializer(shape))).any()
