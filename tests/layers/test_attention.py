import json

import keras
import numpy as np
import oracles
import pytest
from conformance import relative_error, to_numpy, tokens
from keras import ops

from keras_tnattn import (
    MultiHeadAdditiveAttention,
    MultiHeadDotProductAttention,
    TensorizedGraphAttention,
    TensorizedSpectralAttention,
    TensorizeTokens,
)
from keras_tnattn.ops import spectral_filter, time_graph
from keras_tnattn.ops.time_graph import Geometric


def head_matrices(cores):
    cores = [to_numpy(core) for core in cores]
    return [oracles.tt_matrix([core[h] for core in cores]) for h in range(cores[0].shape[0])]


def heads_oracle(layer, x, dampings, coefficients=(1.0, 1.0)):
    """Outputs `(B, H, L, J)` and graphs `(B, H, L, L)` of all heads."""
    maps = list(zip(head_matrices(layer.key_cores), head_matrices(layer.value_cores), strict=True))
    pairs = [
        [
            oracles.spectral_attention(sequence, key, value, c, coefficients)
            for (key, value), c in zip(maps, dampings, strict=True)
        ]
        for sequence in x
    ]
    outputs = np.array([[y for y, _ in heads] for heads in pairs])
    return outputs, np.array([[psi for _, psi in heads] for heads in pairs])


@pytest.mark.parametrize("method", ["direct", "banded"])
@pytest.mark.parametrize("damping", [0.4, (0.2, 0.7, 0.7)])
def test_spectral_attention_is_that_of_the_paper(method, damping):
    x = tokens(2, 11, 12)
    layer = TensorizedSpectralAttention(3, 6, 3, damping=damping, method=method)
    outputs, scores = layer(x, return_attention_scores=True)
    dampings = (damping,) * 3 if isinstance(damping, float) else damping
    expected, graphs = heads_oracle(layer, x, dampings)
    expected = expected.transpose(0, 2, 1, 3).reshape(2, 11, 18)
    np.testing.assert_allclose(to_numpy(outputs), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(to_numpy(scores), graphs, rtol=1e-4, atol=1e-5)


def test_cores_have_the_promised_shapes():
    layer = TensorizedSpectralAttention(2)
    layer.build((None, None, 64))
    shapes = [(2, 1, 2, 2, 2), *[(2, 2, 2, 2, 2)] * 4, (2, 2, 2, 2, 1)]
    assert [tuple(c.shape) for c in layer.key_cores] == shapes
    assert [tuple(c.shape) for c in layer.value_cores] == shapes
    assert layer.count_params() == 2 * 2 * 16 * (6 - 1)
    layer = TensorizedSpectralAttention(2, 4)
    layer.build((None, None, 6))
    assert layer.count_params() == 2 * 2 * (1 * 3 * 2 * 2 + 2 * 2 * 2 * 1)


def test_coefficients_of_higher_orders():
    x = tokens(2, 7, 8) / 3
    layer = TensorizedSpectralAttention(2, filter_order=4, damping=0.6)
    layer.build(x.shape)
    np.testing.assert_array_equal(to_numpy(layer.coefficients), [1, 1, 0, 0])
    coefficients = [0.9, -0.7, 0.4, 0.2]
    layer.coefficients.assign(coefficients)
    expected, _ = heads_oracle(layer, x, (0.6, 0.6), coefficients)
    got = to_numpy(layer(x))
    expected = expected.transpose(0, 2, 1, 3).reshape(got.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("combination", ["sum", "mean", "project"])
def test_heads_are_combined(combination):
    x = tokens(2, 5, 8)
    layer = TensorizedSpectralAttention(3, 4, damping=0.5, head_combination=combination)
    got = to_numpy(layer(x))
    heads, _ = heads_oracle(layer, x, (0.5,) * 3)
    if combination == "project":
        cores = [to_numpy(core) for core in layer.output_cores]
        expected = heads.transpose(0, 2, 1, 3).reshape(2, 5, 12) @ oracles.tt_matrix(cores)
    else:
        expected = getattr(heads, combination)(axis=1)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_a_fixed_seed_draws_every_map_anew():
    layer = TensorizedSpectralAttention(
        2, 8, head_combination="project", kernel_initializer=keras.initializers.GlorotUniform(1)
    )
    layer.build((None, None, 16))
    maps = head_matrices(layer.key_cores) + head_matrices(layer.value_cores)
    for n, one in enumerate(maps):
        assert all(np.abs(one - other).max() > 1e-3 for other in maps[:n])
    cores = [c for c in layer.weights if c.shape[-4:] == (2, 2, 2, 2)]
    blocks = np.concatenate([to_numpy(c).reshape(-1, 16) for c in cores])
    assert len(np.unique(np.abs(blocks).round(5), axis=0)) == len(blocks)


@pytest.mark.parametrize(("policy", "bound"), [("mixed_bfloat16", 0.05), ("mixed_float16", 5e-3)])
@pytest.mark.parametrize("trained", [False, True])
def test_half_precision_is_near_float32(policy, bound, trained):
    # Powers of a damping that is itself rounded to half precision would be off by 10 % here.
    x = tokens(2, 200, 16) / 2
    full = TensorizedSpectralAttention(2, time_graph=Geometric(0.97, trained))
    expected, psi = (to_numpy(t) for t in full(x, return_attention_scores=True))
    half = TensorizedSpectralAttention(2, time_graph=Geometric(0.97, trained), dtype=policy)
    half.build(x.shape)
    half.set_weights(full.get_weights())
    got, scores = half(x, return_attention_scores=True)
    for value, reference in ((got, expected), (scores, psi)):
        value = to_numpy(ops.cast(value, "float32"))
        assert relative_error(value, reference) < bound


def test_trained_damping_starts_where_told_and_stays_below_1():
    x = tokens(2, 6, 8)
    fixed = TensorizedSpectralAttention(2, damping=(0.3, 0.8))
    trained = TensorizedSpectralAttention(
        2, time_graph=[Geometric(0.3, trainable=True), Geometric(0.8, trainable=True)]
    )
    expected = to_numpy(fixed(x))
    trained.build(x.shape)
    trained.set_weights([*fixed.get_weights(), *trained.get_weights()[-1:]])
    np.testing.assert_allclose(to_numpy(trained(x)), expected, rtol=1e-4, atol=1e-5)
    trained.graph_weights["damping_logits"].assign([1e6, -1e6])
    psi = to_numpy(trained(x, return_attention_scores=True)[1])
    assert np.isfinite(psi).all()
    assert (psi[:, 1] == 0).all()
    neighbor = 2 * np.max(psi[:, 0] / np.maximum(oracle_theta(trained, x), 1e-9))
    assert 0.99 < neighbor < 1


def oracle_theta(layer, x):
    """`Theta` of the first head: `Psi` without damping, by one of almost 1."""
    key = head_matrices(layer.key_cores)[0]
    scores = [np.maximum((s @ key) @ (s @ key).T / np.sqrt(key.shape[1]), 0) for s in x]
    return np.array(scores)


def test_graph_attention_is_spectral_attention_on_flat_tokens():
    x = tokens(2, 6, 2, 3, 2)
    layer = TensorizedGraphAttention(2, (2, 2, 3), tt_ranks=3, damping=0.5)
    got = to_numpy(layer(x))
    assert got.shape == (2, 6, 4, 2, 3)
    expected, _ = heads_oracle(layer.attention, x.reshape(2, 6, 12), (0.5, 0.5))
    expected = expected.transpose(0, 2, 1, 3).reshape(got.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    assert [tuple(c.shape[2:4]) for c in layer.attention.key_cores] == [(2, 2), (3, 2), (2, 3)]


def test_graph_attention_keeps_the_shape_of_the_tokens():
    x = keras.Input((None, 2, 3, 2))
    for combination, shape in [("sum", (2, 2, 3)), ("mean", (2, 2, 3)), ("project", (2, 3, 2))]:
        layer = TensorizedGraphAttention(2, (2, 2, 3), head_combination=combination)
        assert layer(x).shape == (None, None, *shape)


@pytest.mark.parametrize("implied", ["filter_order", "key_dim", "tt_input_shape"])
def test_graph_attention_takes_no_option_it_would_forget(implied):
    with pytest.raises(TypeError, match=implied):
        TensorizedGraphAttention(2, **{implied: 3})


def test_tokens_become_tensors_in_c_order():
    x = tokens(2, 3, 12)
    np.testing.assert_array_equal(to_numpy(TensorizeTokens((3, 2, 2))(x)), x.reshape(2, 3, 3, 2, 2))
    assert TensorizeTokens()(x).shape == (2, 3, 2, 2, 3)
    with pytest.raises(ValueError, match=r"token_shape=\(5, 2\)"):
        TensorizeTokens((5, 2))(x)
    with pytest.raises(ValueError, match=r"input_shape=\(None, 3, None\)"):
        TensorizeTokens()(keras.Input((3, None)))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_dot_product_attention_is_the_textbook_one():
    x = tokens(2, 5, 6)
    layer = MultiHeadDotProductAttention(2, 4)
    got, scores = layer(x, return_attention_scores=True)
    weights = {w.path.split("/")[-2]: to_numpy(w) for w in layer.weights}
    query, key, value = (
        np.einsum("bli,ihj->bhlj", x, weights[name]) for name in ("query", "key", "value")
    )
    expected_scores = softmax(query @ key.swapaxes(-1, -2) / 2)
    heads = expected_scores @ value
    expected = np.einsum("bhlj,hji->bli", heads, weights["attention_output"])
    np.testing.assert_allclose(to_numpy(scores), expected_scores, atol=1e-5)
    np.testing.assert_allclose(to_numpy(got), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "width", "num_weights"),
    [
        ({}, 64, 256),
        ({"key_dim": 16}, 32, 240),
        ({"head_combination": "sum"}, 32, 256),
        ({"head_combination": "mean"}, 32, 256),
        ({"head_combination": "project"}, 32, 332),
    ],
)
def test_has_the_shapes_and_weights_of_the_mechanism_page(options, width, num_weights):
    layer = TensorizedSpectralAttention(num_heads=2, **options)
    assert layer(tokens(4, 10, 32)).shape == (4, 10, width)
    assert layer.count_params() == num_weights


@pytest.mark.parametrize("layer", [MultiHeadDotProductAttention, MultiHeadAdditiveAttention])
def test_a_causal_mask_hides_the_future(layer):
    layer, x = layer(2), tokens(2, 5, 6)
    want = to_numpy(layer(x[:, :3], use_causal_mask=True))
    outputs, scores = layer(x, return_attention_scores=True, use_causal_mask=True)
    np.testing.assert_allclose(to_numpy(outputs)[:, :3], want, rtol=1e-5, atol=1e-6)
    assert (np.triu(to_numpy(scores), 1) == 0).all()
    np.testing.assert_allclose(to_numpy(scores).sum(-1), 1, rtol=1e-5)


def test_the_parts_of_the_baselines_have_the_precision_of_the_layer():
    dot = MultiHeadDotProductAttention(2, dtype="mixed_bfloat16")
    additive = MultiHeadAdditiveAttention(2, dtype="mixed_bfloat16")
    for layer in (dot, additive):
        layer.build((None, None, 6))
    maps = [additive.query_map, additive.key_map, additive.value_map, additive.output_map]
    for part in (dot.attention, *maps, *additive.heads):
        assert part.dtype_policy.name == "mixed_bfloat16"


def test_additive_attention_is_the_textbook_one():
    x = tokens(2, 5, 6)
    layer = MultiHeadAdditiveAttention(2, 4)
    got, scores = layer(x, return_attention_scores=True)
    maps = [layer.query_map, layer.key_map, layer.value_map]
    query, key, value = (np.einsum("bli,ihj->bhlj", x, to_numpy(m.kernel)) for m in maps)
    v = np.stack([to_numpy(head.scale) for head in layer.heads])
    sums = np.tanh(query[:, :, :, None] + key[:, :, None])
    expected_scores = softmax(np.einsum("hj,bhlmj->bhlm", v, sums))
    output = to_numpy(layer.output_map.kernel)
    expected = np.einsum("bhlj,hji->bli", expected_scores @ value, output)
    np.testing.assert_allclose(to_numpy(scores), expected_scores, atol=1e-5)
    np.testing.assert_allclose(to_numpy(got), expected, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="counts traces of tf.function")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_one_trace_serves_all_batches_and_lengths(jit_compile):
    import tensorflow as tf

    layer = TensorizedSpectralAttention(2, damping=0.2)
    layer.build((None, None, 8))
    signature = [tf.TensorSpec((None, None, 8)), tf.TensorSpec((None, None), tf.bool)]
    compiled = tf.function(
        lambda x, mask: layer(x, mask=mask), input_signature=signature, jit_compile=jit_compile
    )
    # Lengths on both sides of the banded form's start, and an empty batch.
    for batch, length in [(2, 3), (1, 200), (3, 33), (0, 5)]:
        x, mask = tokens(batch, length, 8), np.ones((batch, length), bool)
        mask[:, 2:4] = False
        got = compiled(x, mask).numpy()
        expected = to_numpy(layer(x, mask=mask))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert compiled.experimental_get_tracing_count() == 1


def test_numpy_numbers_do_not_reach_the_config():
    layer = TensorizedSpectralAttention(2, damping=np.float32(0.5), tt_ranks=np.array([2, 2]))
    config = json.loads(json.dumps(layer.get_config()))
    assert (config["time_graph"]["config"]["damping"], config["tt_ranks"]) == (0.5, [2, 2])


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="lengths are static on JAX")
def test_an_unknown_length_chooses_at_run_time(monkeypatch):
    import tensorflow as tf

    def which(state):
        banded = float(state.band.num_offsets > 0)
        return (state.band.join(ops.zeros_like(state.values) + banded),)

    monkeypatch.setattr(spectral_filter, "_forward", which)
    layer = TensorizedSpectralAttention(2, damping=0.2)
    layer.build((None, None, 8))
    compiled = tf.function(layer, input_signature=[tf.TensorSpec((None, None, 8))])
    shortest = spectral_filter.banded_plan(time_graph.bandwidth(0.2), features=8)[2]
    assert (compiled(tf.zeros((1, shortest - 1, 8))).numpy() == 0).all()
    assert (compiled(tf.zeros((1, shortest, 8))).numpy() == 1).all()


def test_describe_names_the_band(capsys):
    layer = TensorizedSpectralAttention(2, damping=(0.5, 0.9))
    layer.build((None, None, 64))
    text = layer.describe()
    assert not capsys.readouterr().out
    assert "320 parameters" in text
    assert "one product for the 4 maps of all heads" in text
    assert "bandwidth 25: banded from a length of 175 on" in text
    assert "bandwidth 159: banded from a length of 718 on" in text
    narrow = TensorizedSpectralAttention(8, 8, damping=0.9)
    narrow.build((None, None, 64))
    assert "banded from a length of 478 on, blocks of 32 or more, 6 block" in narrow.describe()
    large = TensorizedSpectralAttention(2)
    large.build((None, None, 4096))
    assert "one product" not in large.describe()


def test_a_trainable_graph_starts_above_0():
    with pytest.raises(ValueError, match=r"to start training from.*damping=0\.0"):
        Geometric(0.0, trainable=True)
