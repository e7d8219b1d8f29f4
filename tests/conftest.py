import keras
import pytest


@pytest.fixture(autouse=True)
def _seeded():
    """Every test starts from the same seed, in float32, whatever ran before it."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32")
    yield
    keras.config.set_dtype_policy("float32")
