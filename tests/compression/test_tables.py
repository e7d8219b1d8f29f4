"""Tensor trains of tables: errors as expected, with their own order of ids."""

import keras
import numpy as np
import pytest
from conformance import to_numpy

import keras_tnattn
from keras_tnattn import compress
from keras_tnattn.compression.calibration import Statistics
from keras_tnattn.compression.candidates import byte_count
from keras_tnattn.compression.errors import direction_weights, row_weights, table_error
from keras_tnattn.compression.formats import candidates_for, tensor_train

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def layer():
    layer = keras.layers.Embedding(600, 8)
    layer.build()
    kinds = RNG.normal(size=(40, 8))
    rows = kinds[RNG.integers(0, 40, 600)] + 0.1 * RNG.normal(size=(600, 8))
    layer.set_weights([rows.astype("float32")])
    return layer


def made(candidate):
    return candidate.finished(candidate.make())


def test_the_memory_of_a_fit_is_bounded(layer, monkeypatch):
    monkeypatch.setattr(tensor_train, "GRAM_NUMBERS", 1000)
    found = tensor_train.candidates(layer, Statistics(), None)
    assert found
    for candidate in found:
        groups, rank = candidate.make().tt_input_shape[0], candidate.ranks[0]
        assert groups * rank**2 <= 1000


@pytest.mark.parametrize("bits", [None, 8])
def test_errors_are_those_of_the_table_and_costs_heed_the_response(layer, bits):
    response = np.diag([8 - 7e-3, *[1e-3] * 7])  # of trace 8
    formats = ["low_rank", "tensor_train"]
    for statistics in (Statistics(), Statistics(response=response)):
        found = candidates_for(layer, statistics, formats, bits)[1:]
        table = keras.ops.convert_to_numpy(layer.embeddings).astype("float64")
        weights, directions = row_weights(layer, statistics), direction_weights(statistics)
        for candidate in [c for c in found if c.format != "tensor_train"]:
            new = made(candidate)
            approximation = keras.ops.convert_to_numpy(new(np.arange(600)))
            error = table_error(table, approximation, weights)
            # That of integers is estimated on some of the rows, and for all directions alike.
            exact = 0.3 if candidate.format == "dense" else 1e-3
            assert candidate.error == pytest.approx(error, rel=exact, abs=1e-6)
            cost = table_error(table, approximation, weights, directions)
            assert candidate.cost == pytest.approx(cost, rel=exact, abs=1e-6)
        trains = [c for c in found if c.format == "tensor_train"]
        for candidate in trains[::60]:
            approximation = made(candidate)
            approximation = keras.ops.convert_to_numpy(approximation(np.arange(600)))
            cost = table_error(table, approximation, weights, directions)
            assert 0.6 < cost / candidate.cost < 1.5
    # One feature decides: a table of a low rank that heeds it costs little, and its error shows
    # what it does to the others.
    lowest = min((c for c in found if c.format == "low_rank"), key=lambda c: c.bytes)
    assert lowest.cost < 0.6 * lowest.error


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("renumber", [None, 2])
def test_a_chosen_tensor_train_is_better_than_stated_and_as_expected(layer, renumber, bits):
    statistics = Statistics(counts=RNG.integers(0, 100, 600), renumber=renumber)
    found = tensor_train.candidates(layer, statistics, bits)
    trains = [candidate for candidate in found if candidate.format == "tensor_train"]
    assert {len(candidate.ranks) for candidate in trains} == {1, 2}
    table = keras.ops.convert_to_numpy(layer.embeddings).astype("float64")
    for candidate in trains[::8]:
        small, order = made(candidate), candidate.id_order()
        assert byte_count(small) == candidate.bytes
        if renumber is None:
            assert order is None
            ids = np.arange(600)
        else:
            assert order[:2].tolist() == [0, 1]
            assert sorted(order) == list(range(600))
            ids = np.argsort(order)
        approximation = keras.ops.convert_to_numpy(small(ids))
        error = table_error(table, approximation, row_weights(layer, statistics))
        assert error <= candidate.error
        assert 0.6 < error / candidate.likely_error < 1.5


@pytest.mark.parametrize("bits", [8, 4])
def test_token_embeddings_become_integers_as_those_of_keras(bits):
    ids = np.random.default_rng(0).integers(1, 90, (16, 7))
    results = []
    for kind in (keras.layers.Embedding, keras_tnattn.TokenEmbedding):
        keras.utils.set_random_seed(0)
        table = kind(90, 32, mask_zero=True, name="table")
        layers = [keras.Input((7,), dtype="int32"), table, keras.layers.GlobalAveragePooling1D()]
        result = compress(keras.Sequential(layers), bits=bits, data=ids, verbose=0)
        row = result.report.layers[0]
        results.append((row.format, row.bits, row.bytes_after, result.model))
    assert results[0][:3] == results[1][:3]
    assert results[1][:2] == ("dense", bits)
    expected, actual = (to_numpy(model(ids)) for *_, model in results)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_tied_logits_use_the_integers():
    model = keras_tnattn.models.language_model(
        30, "none", num_layers=1, model_dim=16, num_heads=2, tie_logits=True
    )
    ids = np.random.default_rng(0).integers(1, 30, (8, 6))
    result = compress(model, bits=8, data=ids, filters="embedding", verbose=0)
    assert {row.path: row.format for row in result.report.layers}["embedding"] == "dense"
    assert result.report.error < 0.02
    table = result.model.embedding
    x = np.random.default_rng(1).normal(size=(2, 3, 16)).astype("float32")
    np.testing.assert_allclose(
        to_numpy(table(x, reverse=True)), x @ to_numpy(table.embeddings).T, rtol=1e-4, atol=1e-4
    )
    table.mask_zero = True
    padded = np.array([[3, 0]])
    np.testing.assert_array_equal(to_numpy(table(padded)._keras_mask), padded != 0)
