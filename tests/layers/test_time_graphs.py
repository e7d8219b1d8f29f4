"""Causal, named and given graphs of the layers that filter along a graph over time."""

import math

import keras
import numpy as np
import pytest
from conformance import saved_and_loaded, to_numpy
from keras import ops
from slow_cases import slow_but

from keras_tnattn import (
    GraphTensorNetwork,
    TensorizedGraphAttention,
    TensorizedSpectralAttention,
    TNAttention,
)
from keras_tnattn.layers.base_attention import adapter_of
from keras_tnattn.layers.time_graphs import common_bandwidth
from keras_tnattn.ops.time_graph import Exponential, Geometric, PowerLaw, Window

GRAPHS = {
    "geometric": {},
    "exponential": {"time_graph": Exponential(-math.log(0.7), trainable=True)},
    "window": {"time_graph": Window(4)},
    "power_law": {"time_graph": PowerLaw(1.5)},
}
WEIGHTS = {
    "geometric": lambda d: 0.9**d,
    "exponential": lambda d: 0.7**d,
    "window": lambda d: float(d <= 4),
    "power_law": lambda d: d**-1.5,
}


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32") / 2


def adjacency_of(weights, length, receive_from):
    """`Omega`, `A` or `A^T` of a named graph, entry by entry."""
    a = np.zeros((length, length), "float32")
    for i, j in np.ndindex(a.shape):
        d = {"both": abs(i - j), "earlier": i - j, "later": j - i}[receive_from]
        if d > 0:
            a[i, j] = weights(float(d)) * (0.5 if receive_from == "both" else 1)
    return a


def layers():
    cases = {}
    for name, options in GRAPHS.items():
        cases[f"tsa_{name}"] = (TensorizedSpectralAttention, {"num_heads": 2, **options}, (8,))
        tga = {"num_heads": 2, "head_combination": "mean", **options}
        cases[f"tga_{name}"] = (TensorizedGraphAttention, tga, (2, 2, 2))
        gtn = {"propagation_rank": 3, "receive_from": "both", **options}
        cases[f"gtn_{name}"] = (GraphTensorNetwork, gtn, (8,))
    banded = {"num_heads": 2, "damping": 0.1, "method": "banded", "filter_order": 3}
    cases["tsa_banded"] = (TensorizedSpectralAttention, banded, (8,))
    window = {"num_heads": 2, "method": "banded", "time_graph": Window(3)}
    cases["tsa_banded_window"] = (TensorizedSpectralAttention, window, (8,))
    trained = {"num_heads": 2, "time_graph": [Geometric(c, trainable=True) for c in (0.4, 0.9)]}
    cases["tsa_trained"] = (TensorizedSpectralAttention, trained, (8,))
    return cases


CASES = layers()


@pytest.mark.parametrize("name", CASES)
def test_no_earlier_output_moves_when_a_later_token_changes(name):
    make, options, token = CASES[name]
    layer = make(**options)
    x = tokens(2, 60, *token)
    before = to_numpy(layer(x, use_causal_mask=True))
    for position in (59, 41, 1):
        moved = x.copy()
        moved[:, position] += 3
        after = to_numpy(layer(moved, use_causal_mask=True))
        np.testing.assert_array_equal(after[:, :position], before[:, :position])
        assert (after[:, position] != before[:, position]).any()
    # Later tokens do receive: the mask is not the other way round.
    moved = x.copy()
    moved[:, 1] += 3
    assert (to_numpy(layer(moved, use_causal_mask=True))[:, 2] != before[:, 2]).any()
    # And so does an earlier one without the mask.
    assert (to_numpy(layer(moved))[:, 0] != to_numpy(layer(x))[:, 0]).any()


@pytest.mark.parametrize("name", CASES)
def test_padding_changes_no_causal_output(name):
    make, options, token = CASES[name]
    layer = make(**options)
    x = tokens(2, 12, *token)
    expected = to_numpy(layer(x, use_causal_mask=True))
    padded = np.concatenate([x, np.full((2, 40, *token), np.nan, "float32")], axis=1)
    mask = np.broadcast_to(np.arange(52) < 12, (2, 52))
    got = to_numpy(layer(padded, mask=ops.convert_to_tensor(mask), use_causal_mask=True))
    np.testing.assert_allclose(got[:, :12], expected, rtol=1e-5, atol=1e-5)
    assert (got[:, 12:] == 0).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("kind", ["tsa", "tga", "gtn"])
def test_a_named_graph_equals_its_adjacency(kind, name, causal):
    make, options, token = CASES[f"{kind}_{name}"]
    layer = make(**options)
    x = tokens(2, 9, *token)
    got = to_numpy(layer(x, use_causal_mask=causal))
    adjacency = adjacency_of(WEIGHTS[name], 9, "earlier" if causal else "both")
    for given in (adjacency, np.stack([adjacency] * 2)):
        expected = to_numpy(layer(x, ops.convert_to_tensor(given)))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["tsa", "tga", "gtn"])
def test_each_sequence_has_its_own_adjacency_and_the_causal_mask_cuts_it(kind):
    make, options, token = CASES[f"{kind}_geometric"]
    layer = make(**options)
    x = tokens(3, 9, *token)
    adjacency = np.random.default_rng(1).normal(size=(3, 9, 9)).astype("float32")
    batch = to_numpy(layer(x, adjacency))
    for n in range(3):
        alone = to_numpy(layer(x[n : n + 1], adjacency[n]))
        np.testing.assert_allclose(batch[n : n + 1], alone, rtol=1e-4, atol=1e-5)
    causal = to_numpy(layer(x, adjacency, use_causal_mask=True))
    lower = to_numpy(layer(x, np.tril(adjacency, -1)))
    np.testing.assert_allclose(causal, lower, rtol=1e-5, atol=1e-5)


def test_graph_tensor_network_multiplies_by_the_adjacency():
    x = tokens(2, 5, 4)
    adjacency = np.random.default_rng(1).normal(size=(5, 5)).astype("float32")
    got = to_numpy(GraphTensorNetwork()(x, adjacency))
    np.testing.assert_allclose(got, x + adjacency @ x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["tsa", "tga", "gtn"])
def test_a_functional_model_of_tokens_and_adjacency(kind, tmp_path):
    make, options, token = CASES[f"{kind}_geometric"]
    inputs = keras.Input((None, 8))
    adjacency = keras.Input((None, None))
    x = keras.layers.Masking()(inputs)
    layer = make(**options)
    if len(token) > 1:
        from keras_tnattn import TensorizeTokens

        x = TensorizeTokens(token)(x)
    model = keras.Model([inputs, adjacency], layer(x, adjacency))
    data = [tokens(2, 9, 8), np.random.default_rng(1).random((2, 9, 9)).astype("float32")]
    data[0][0, 4] = 0
    got = model.predict(data, verbose=0)
    mask = np.ones((2, 9), bool)
    mask[0, 4] = False
    shaped = data[0].reshape(2, 9, *token)
    expected = to_numpy(layer(shaped, data[1], mask=ops.convert_to_tensor(mask)))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert (got[0, 4] == 0).all()
    # Scores, or a causal mask, of symbolic tensors.
    if kind != "gtn":
        _, scores = layer(x, adjacency, return_attention_scores=True)
        assert scores.shape == (None, 2, None, None)
    assert layer(x, adjacency, use_causal_mask=True).shape == model.output_shape
    saved_and_loaded(model, data, tmp_path)


def test_scores_are_causal():
    layer = TensorizedSpectralAttention(2)
    _, scores = layer(tokens(1, 6, 8), return_attention_scores=True, use_causal_mask=True)
    scores = to_numpy(scores)
    assert (np.triu(scores) == 0).all()
    assert (scores > 0).any()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("tsa", lambda: TensorizedSpectralAttention(2, **GRAPHS["exponential"])),
        ("gtn", lambda: GraphTensorNetwork(**GRAPHS["exponential"])),
    ],
)
def test_a_learned_distance_starts_as_the_geometric_graph_and_is_trained(name, make):
    layer = make()
    x = tokens(2, 9, 8)
    outputs = layer(x)
    options = {**layer.get_config(), "time_graph": Geometric(0.7), "name": "geometric"}
    geometric = type(layer).from_config(options)
    geometric.build(x.shape)
    geometric.set_weights(layer.get_weights()[:-2])
    np.testing.assert_allclose(to_numpy(outputs), to_numpy(geometric(x)), rtol=1e-4, atol=1e-5)
    assert [w.path.split("/")[-1] for w in layer.weights[-2:]] == ["log_rate", "log_power"]
    model = keras.Sequential([keras.Input((None, 8)), layer])
    model.compile("sgd", "mse")
    before = layer.get_weights()[-2:]
    model.fit(x, np.zeros_like(to_numpy(outputs)), verbose=0)
    for old, new in zip(before, layer.get_weights()[-2:], strict=True):
        assert np.isfinite(new).all()
        assert (old != new).all()


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel of TensorFlow")
@pytest.mark.parametrize(
    "name", ["tsa_geometric", "gtn_window", *slow_but([], ["tsa_window", "gtn_power_law"])]
)
def test_an_exported_causal_model_takes_any_length(name, tmp_path):
    import tensorflow as tf

    make, options, token = CASES[name]
    inputs = keras.Input((None, *token))
    model = keras.Model(inputs, make(**options)(inputs, use_causal_mask=True))
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    for batch, length in [(1, 1), (3, 33), (1, 800)]:
        x = tokens(batch, length, *token)
        np.testing.assert_allclose(loaded.serve(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [TensorizedSpectralAttention, TensorizedGraphAttention])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_graph": [Window(3)]}, r"time_graph=\[Window\(size=3\)\], num_heads=2"),
        (
            {"time_graph": [Window(3), Geometric(trainable=True)]},
            "of one kind, if they are trained",
        ),
        ({"time_graph": Exponential(0.1), "method": "banded"}, "method='banded'"),
        ({"time_graph": Window(3), "damping": 0.5}, r"damping=0\.5, time_graph=Window"),
        ({"num_heads": 0}, "num_heads=0"),
        ({"damping": 1.5}, r"damping=1\.5"),
    ],
)
def test_errors_name_the_option(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**{"num_heads": 2, **options})


def test_heads_can_have_graphs_of_different_kinds():
    layer = TensorizedSpectralAttention(2, time_graph=[Window(3), PowerLaw(1.5)])
    x = tokens(2, 9, 8)
    got = to_numpy(layer(x))
    for head, graph in enumerate(layer.time_graphs):
        alike = TensorizedSpectralAttention(2, time_graph=graph)
        alike.build(x.shape)
        alike.set_weights(layer.get_weights())
        columns = slice(8 * head, 8 * head + 8)
        np.testing.assert_allclose(got[..., columns], to_numpy(alike(x))[..., columns], atol=1e-5)
    again = TensorizedSpectralAttention.from_config(layer.get_config())
    assert again.time_graphs == layer.time_graphs


def test_a_word_is_no_graph():
    with pytest.raises(TypeError, match="time_graph='window'"):
        TensorizedSpectralAttention(2, time_graph="window")


@pytest.mark.parametrize(
    ("make", "length", "compares"),
    [
        (lambda: TensorizedSpectralAttention(2), 717, True),
        (lambda: TensorizedSpectralAttention(2), 718, False),  # as `describe` says
        (lambda: TensorizedSpectralAttention(2, method="direct"), 4096, True),
        (lambda: TensorizedGraphAttention(2, time_graph=Window(9)), 4096, False),
        (lambda: TensorizedGraphAttention(2, time_graph=Window(4000)), 4096, True),
        (lambda: TensorizedSpectralAttention(2, time_graph=Exponential(0.1)), 4096, True),
        (lambda: GraphTensorNetwork(time_graph=Window(9)), 4096, False),
        (lambda: GraphTensorNetwork(time_graph=Geometric(trainable=True)), 4096, True),
        (lambda: TNAttention(), 4096, False),
        (lambda: keras.layers.Identity(), 4096, False),
        (lambda: keras.layers.MultiHeadAttention(2, 4), 9, True),
    ],
)
def test_a_layer_tells_whether_it_compares_all_pairs(make, length, compares):
    assert adapter_of(make()).compares_pairs(length, dim=64) is compares


def test_a_graph_without_a_bandwidth_leaves_none_to_all():
    near, far, endless = Window(3), Window(7), PowerLaw(1.0)
    assert common_bandwidth([near, far]) == 7
    assert common_bandwidth([near, endless]) is None
