"""Tensor trains of tables: errors as expected, with their own order of ids."""

import keras
import numpy as np
import pytest
from conformance import to_numpy
from slow_cases import slow_but

import keras_tnattn
from keras_small import compress
from keras_small.formats import adaptive, candidates_for, tensor_train
from keras_small.storage import AdaptiveEmbedding
from keras_small.storage.sizes import byte_count
from keras_small.survey.calibration import Statistics
from keras_small.survey.errors import direction_weights, row_weights, table_error

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def layer():
    layer = keras.layers.Embedding(600, 8)
    layer.build()
    rng = np.random.default_rng(0)  # of its own: which test comes first may differ
    kinds = rng.normal(size=(40, 8))
    rows = kinds[rng.integers(0, 40, 600)] + 0.1 * rng.normal(size=(600, 8))
    layer.set_weights([rows.astype("float32")])
    return layer


def made(candidate):
    return candidate.finish(candidate.make())


@pytest.mark.slow
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
        table = to_numpy(layer.embeddings).astype("float64")
        weights, directions = row_weights(layer, statistics), direction_weights(statistics)
        for candidate in [c for c in found if c.format != "tensor_train"]:
            new = made(candidate)
            approximation = to_numpy(new(np.arange(600)))
            error = table_error(table, approximation, weights)
            # That of integers is estimated on some of the rows, and for all directions alike.
            exact = 0.3 if candidate.format == "dense" else 1e-3 if bits is None else 4e-3
            assert candidate.error == pytest.approx(error, rel=exact, abs=1e-6)
            cost = table_error(table, approximation, weights, directions)
            assert candidate.cost == pytest.approx(cost, rel=exact, abs=1e-6)
        trains = [c for c in found if c.format == "tensor_train"]
        for candidate in trains[::60]:
            approximation = made(candidate)
            approximation = to_numpy(approximation(np.arange(600)))
            cost = table_error(table, approximation, weights, directions)
            assert 0.6 < cost / candidate.cost < 1.5
    # One feature decides: a table of a low rank that heeds it costs little, and its error shows
    # what it does to the others.
    lowest = min((c for c in found if c.format == "low_rank"), key=lambda c: c.bytes)
    assert lowest.cost < 0.6 * lowest.error


def test_tensor_trains_are_looked_for_where_they_may_win(layer, monkeypatch):
    formats = ["tensor_train", "adaptive", "low_rank"]
    noise = keras.layers.Embedding(600, 8)
    noise.build()

    def trains(of, least_bytes):
        found = candidates_for(of, Statistics(), formats, 2, (), least_bytes)
        return [candidate for candidate in found if candidate.format == "tensor_train"]

    size = byte_count(layer)
    assert trains(layer, 0)
    assert trains(noise, 0)  # smaller than all others
    assert not trains(noise, size / 8)
    rivals = candidates_for(layer, Statistics(), ["adaptive"], 2)
    smallest = min(candidate.bytes for candidate in trains(layer, 0))
    assert tensor_train.may_win(layer, Statistics(), 2, rivals, smallest)
    # What cannot be improved as far as the probed trains might be, is beaten.
    monkeypatch.setattr(tensor_train, "_LEAST_LEFT", 1e6)
    assert not tensor_train.may_win(layer, Statistics(), 2, rivals, size / 8)


@pytest.mark.parametrize("bits", slow_but([4], [None, 4]))
@pytest.mark.parametrize("kept_ids", [None, 2])
def test_a_chosen_tensor_train_is_better_than_stated_and_as_expected(layer, kept_ids, bits):
    statistics = Statistics(counts=RNG.integers(0, 100, 600), kept_ids=kept_ids)
    found = tensor_train.candidates(layer, statistics, bits)
    trains = [candidate for candidate in found if candidate.format == "tensor_train"]
    assert {len(candidate.ranks) for candidate in trains} == {1, 2}
    table = to_numpy(layer.embeddings).astype("float64")
    for candidate in trains[::8]:
        small, order = made(candidate), candidate.id_order()
        assert byte_count(small) == candidate.bytes
        if kept_ids is None:
            assert order is None
            ids = np.arange(600)
        else:
            assert order[:2].tolist() == [0, 1]
            assert sorted(order) == list(range(600))
            ids = np.argsort(order)
        approximation = to_numpy(small(ids))
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


@pytest.mark.parametrize("bits", slow_but([8, 2], [None, 8, 3, 2]))
@pytest.mark.parametrize("kept_ids", [None, 2])
def test_blocks_of_rows_have_the_sizes_and_errors_of_their_candidates(layer, kept_ids, bits):
    counts = RNG.permutation(np.geomspace(1e4, 0.2, 600).astype(int))
    response = np.diag([8 - 7e-2, *[1e-2] * 7])  # of trace 8
    table = to_numpy(layer.embeddings).astype("float64")
    for statistics in (
        Statistics(counts=counts, kept_ids=kept_ids),
        Statistics(counts=counts, kept_ids=kept_ids, response=response),
    ):
        found = adaptive.candidates(layer, statistics, bits)
        weights, directions = row_weights(layer, statistics), direction_weights(statistics)
        assert len(found) > 20
        for candidate in found[::20]:
            small, order = made(candidate), candidate.id_order()
            assert byte_count(small) == candidate.bytes
            ids = np.arange(600) if order is None else np.argsort(order)
            assert (order is None) == (kept_ids is None)
            if order is not None:
                assert order[:2].tolist() == [0, 1]
                assert sorted(order) == list(range(600))
            approximation = to_numpy(small(ids))
            error = table_error(table, approximation, weights)
            assert candidate.error == pytest.approx(
                error, rel=1e-4 if bits is None else 0.04, abs=1e-6
            )
            cost = table_error(table, approximation, weights, directions)
            assert candidate.cost == pytest.approx(
                cost, rel=1e-4 if bits is None else 0.04, abs=1e-6
            )


def test_frequent_ids_get_the_finer_rows(layer):
    counts = np.random.default_rng(1).permutation(np.geomspace(1e4, 1, 600).astype(int))
    statistics = Statistics(counts=counts, kept_ids=0)
    found = adaptive.candidates(layer, statistics, 2)
    few = min(found, key=lambda c: abs(c.bytes - 2350))
    small = made(few)
    assert small.block_bits == tuple(sorted(small.block_bits, reverse=True))
    assert sum(small.block_rows) < 600
    table = to_numpy(layer.embeddings)
    errors = np.linalg.norm(to_numpy(small(np.argsort(few.id_order()))) - table, axis=1)
    errors /= np.linalg.norm(table, axis=1)
    importance = row_weights(layer, statistics) * np.square(table).sum(axis=1)
    by_importance = errors[np.argsort(-importance)]
    assert by_importance[:100].max() < 0.15
    assert (by_importance[sum(small.block_rows) :] == 1).all()  # these rows are 0
    # One block, in which all rows are alike, is larger and not as good.
    even = AdaptiveEmbedding(600, 8, [600], [8])
    even.build()
    even.assign_blocks([table], np.eye(8))
    even, weights = even.quantized([3]), row_weights(layer, statistics)
    assert byte_count(even) > few.bytes
    assert few.error < 0.8 * table_error(table, to_numpy(even(np.arange(600))), weights)


def test_the_price_of_a_byte_is_the_same_for_all_rows(layer):
    counts = np.random.default_rng(2).permutation(np.geomspace(1e3, 1, 600).astype(int))
    statistics = Statistics(counts=counts)
    table = to_numpy(layer.embeddings).astype("float64")
    importance = row_weights(layer, statistics) * np.square(table).sum(axis=1)
    found = adaptive.candidates(layer, statistics, 4)
    for candidate in found[::10]:
        small = made(candidate)
        assert small.block_rows == candidate.ranks
        positions = to_numpy(small.positions).astype(int) @ [1, 256]
        assert (np.diff(importance[np.argsort(positions)]) <= 1e-3 * importance.max()).all()
    # The sizes are dense, and errors fall with them.
    sizes, errors = np.array(sorted((c.bytes, c.error) for c in found)).T
    assert (np.diff(errors) < 0.01).all()
    assert (sizes[1:] / sizes[:-1] < 1.15).all()


def test_trained_blocks_of_rows_are_quantized_again(layer):
    candidate = adaptive.candidates(layer, Statistics(counts=np.arange(600)), 4)[30]
    floats = candidate.make()
    before = to_numpy(candidate.finish(floats)(np.arange(600)))
    floats.basis.assign(2 * to_numpy(floats.basis))  # as if it had been trained
    after = to_numpy(candidate.finish(floats)(np.arange(600)))
    np.testing.assert_allclose(after, 2 * before, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_table_in_blocks_is_healed():
    ids = np.random.default_rng(0).zipf(1.3, (256, 12)).clip(1, 699)
    table = keras_tnattn.TokenEmbedding(700, 16, mask_zero=True, name="table")
    parts = [keras.Input((12,), dtype="int32"), table, keras_tnattn.MaskedAveragePooling1D()]
    model = keras.Sequential([*parts, keras.layers.Dense(5, activation="softmax")])
    table.set_weights([np.random.default_rng(1).normal(size=(700, 16))])
    result = compress(model, 20, data=ids, bits=4, formats="adaptive", filters="table", verbose=0)
    row = next(row for row in result.report.layers if row.path == "table")
    assert row.format == "adaptive"
    assert row.bytes_after == byte_count(result.model.get_layer("table"))
    zeros = 700 - sum(result.model.get_layer("table").block_rows)
    assert zeros > 0
    assert f"table: {zeros:,} of 700 rows are 0, those of ids that are rare" in str(result)
    before = result.report.error
    losses = result.heal(ids, epochs=4, learning_rate=1e-3)
    assert losses[-1] < losses[0]
    assert result.report.error <= before
    assert byte_count(result.model.get_layer("table")) == row.bytes_after
