import pytest

from keras_small import compressing

# Their comparison with Keras' own quantization takes a quarter of a small model's compression.
_WITH_PEERS = {"test_peers", "test_random_models"}


@pytest.fixture(autouse=True)
def _no_peers(request, monkeypatch):
    if request.module.__name__.rpartition(".")[2] not in _WITH_PEERS:
        monkeypatch.setattr(compressing, "keras_quantizations", lambda *_: ())
