"""Embeddings whose factors or cores are integers."""

import keras
import numpy as np
import pytest
from conformance import relative_error, saved_and_loaded, to_numpy

from keras_small.storage import QuantizedTTEmbedding
from keras_tnattn.layers import TTEmbedding


def built(layer):
    layer.build()
    return layer


@pytest.mark.parametrize(("bits", "error", "share"), [(8, 0.02, 0.3), (4, 0.2, 0.2)])
def test_quantized_cores_are_small_and_near(bits, error, share, tmp_path):
    layer = built(TTEmbedding(500, 32, tt_ranks=16, reorder_rows=True))
    layer.positions.assign(np.random.default_rng(1).permutation(500))
    small = QuantizedTTEmbedding.from_layer(layer, bits)
    ids = np.arange(500)
    full, approximation = to_numpy(layer(ids)), to_numpy(small(ids))
    assert relative_error(approximation, full) < error
    assert not small.trainable_weights

    def core_bytes(layer):
        return sum(
            w.numpy().nbytes if hasattr(w, "numpy") else np.asarray(w).nbytes
            for w in layer.weights
            if w.name != "positions"
        )

    assert core_bytes(small) < share * core_bytes(layer)
    model = keras.Sequential([keras.Input((None,), dtype="int32"), small])
    saved_and_loaded(model, ids[None], tmp_path)


def test_each_core_makes_up_for_the_rounding_of_the_one_before():
    layer = built(TTEmbedding(500, 32, tt_ranks=16))
    small = QuantizedTTEmbedding.from_layer(layer, 4)
    apart = QuantizedTTEmbedding.from_config({**small.get_config(), "name": "apart"})
    apart.build()
    apart.assign_cores([to_numpy(core) for core in layer.cores])
    ids = np.arange(500)
    full = to_numpy(layer(ids))
    errors = [np.linalg.norm(to_numpy(x(ids)) - full) for x in (small, apart)]
    assert errors[0] < 0.97 * errors[1]


@pytest.mark.parametrize("bits", [8, 4])
def test_a_core_that_all_ids_share_stays_in_floats(bits):
    layer = TTEmbedding(60, 8, (12, 5, 1), (1, 1, 8), (3, 4))
    layer.build()
    small = QuantizedTTEmbedding.from_layer(layer, bits)
    assert [w.name for w in small.weights if w.dtype == "float32"][-1] == "core_2"
    shared = to_numpy(small.packed_cores[2])
    assert len(np.unique(shared)) == shared.size  # not rounded
    ids = np.arange(60)
    expected, result = to_numpy(layer(ids)), to_numpy(small(ids))
    assert relative_error(result, expected) < 0.3
