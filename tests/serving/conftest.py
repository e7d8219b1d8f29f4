import threading

import keras
import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
if keras.backend.backend() != "tensorflow":
    collect_ignore_glob = ["test_*.py"]  # only TensorFlow serves SavedModels


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """The folder of the models that the conformance table asks."""
    from serving_table import plain_models

    return plain_models(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def tales(tmp_path_factory):
    """The folder of an exported language model, which is written once and not to be changed."""
    from language_models import exported_language_model

    folder = tmp_path_factory.mktemp("exported") / "tales"
    exported_language_model(folder, {"examples": ["bad "]})
    return folder


@pytest.fixture
def gate():
    """What a model of `serving_models.write_factor` waits for; closed by `clear`."""
    gate = threading.Event()
    gate.set()  # loading warms the versions up
    yield gate
    gate.set()
