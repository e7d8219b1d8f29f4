import keras
import numpy as np
import pytest
from conformance import to_numpy, tokens
from differentiation import weight_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from oracles import power_law_attention

from keras_tnattn.layers import MetricAttention, PLDRAttention, PowerLawGraphAttention
from keras_tnattn.layers.base_attention import adapter_of
from keras_tnattn.ops.power_law import elementwise_power

SIZES = {"residual_units": 2, "residual_dense_layers": 1, "residual_dim": 5}


def make_layer(num_heads=2, **options):
    return PowerLawGraphAttention(num_heads, **{**SIZES, **options})


def randomize(layer, seed=1):
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(rng.normal(scale=0.4, size=weight.shape))
    return layer


def weights_of(layer):
    """The weights as the oracle takes them, by plain names."""
    dense = {
        part: tuple(to_numpy(w) for w in getattr(layer, f"{part}_dense").weights)
        for part in ("query", "key", "value", "output")
    }
    units = [
        [
            tuple(to_numpy(w) for w in part.weights)
            for part in (*unit.hidden, unit.projection, unit.dropout_layer, unit.norm)
        ]
        for unit in layer.residuals
    ]
    power = {n: to_numpy(getattr(layer, f"power_law_{n}")) for n in ("W", "b", "a", "P", "b_a")}
    return {**dense, **power, "units": [[w for w in unit if w] for unit in units]}


@pytest.mark.parametrize(
    "options",
    [{}, {"causal_metric": True}, {"metric_from": "key"}, {"epsilon": 0.3}],
    ids=lambda options: "-".join(options) or "published",
)
def test_equals_the_equations(options):
    layer = make_layer(**options)
    query, value, key = tokens(1, 5, 6), tokens(1, 4, 3, seed=1), tokens(1, 4, 7, seed=2)
    layer.build(query.shape, value.shape, key.shape)
    randomize(layer)
    outputs, deductive = layer(query, value, key, return_details=True)
    want, scores = power_law_attention(
        query[0], value[0], key[0], weights_of(layer), num_heads=2, **options
    )
    np.testing.assert_allclose(to_numpy(outputs)[0], want, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(to_numpy(deductive["E_LM"])[0], scores, rtol=1e-3, atol=1e-4)


def test_a_gated_metric_is_normalized_and_positive():
    layer = PLDRAttention(1, epsilon=0.3, residual_units=0, rotary=None)
    layer.build((1, 4, 2))
    layer.power_law_W.assign(np.zeros((1, 2, 2)))
    layer.power_law_b.assign([[[2.0, 0.0], [-1.0, 1.0]]])
    _, details = layer(tokens(1, 4, 2), return_details=True)
    # x^2 sigmoid(x) + epsilon
    expected = [[4 * 0.8807971 + 0.3, 0.3], [0.2689414 + 0.3, 0.7310586 + 0.3]]
    np.testing.assert_allclose(to_numpy(details["A_LM"])[0, 0], expected, rtol=1e-5)
    metric = to_numpy(details["D_Q"])
    centred = metric - metric.mean(-1, keepdims=True)
    normalized = centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(to_numpy(details["A"]), normalized, rtol=1e-4, atol=1e-5)


def test_the_slope_has_the_precision_of_the_layer(float64):
    layer, x = make_layer(dtype="float64"), tokens(2, 4, 6).astype("float64")
    layer.build(x.shape)
    randomize(layer)
    _, details = layer(x, return_details=True)
    q, k = (
        (x @ to_numpy(dense.kernel) + to_numpy(dense.bias)).reshape(2, 4, 2, 3).swapaxes(1, 2)
        for dense in (layer.query_dense, layer.key_dense)
    )
    energy = q @ to_numpy(details["G_LM"]) @ k.swapaxes(-1, -2) / 3**0.5
    assert (energy < 0).any()
    expected = np.where(energy > 0, energy, 0.2 * energy)
    # PyTorch and, by default, JAX compute products in float32.
    rtol = 1e-12 if keras.backend.backend() == "tensorflow" else 1e-4
    np.testing.assert_allclose(to_numpy(details["E"]), expected, rtol=rtol)


def test_masked_keys_get_nothing_and_a_row_without_keys_gives_zero():
    layer, x = make_layer(), tokens(2, 4, 6)
    mask = np.ones((2, 4, 4), bool)
    mask[0, :, 1] = False
    mask[1, 2] = False
    outputs, scores = layer(
        x, tokens(2, 4, 6, seed=1), attention_mask=mask, return_attention_scores=True
    )
    scores = to_numpy(scores)
    assert (scores[0, :, :, 1] == 0).all()
    assert (scores[1, :, 2] == 0).all()
    assert (to_numpy(outputs)[1, 2] == 0).all()
    sums = scores.sum(-1)
    np.testing.assert_allclose(sums[sums > 0], 1, rtol=1e-5)


def test_an_attention_mask_alone_keeps_padding_out_of_the_metric():
    layer, x = make_layer(), tokens(2, 5, 6)
    want = to_numpy(layer(x[:, :3]))
    real = np.arange(5) < 3
    for value in (None, x):
        got = to_numpy(layer(x, value, attention_mask=np.broadcast_to(real, (2, 1, 5))))
        if value is None:
            np.testing.assert_allclose(got[:, :3], want, rtol=1e-5, atol=1e-6)
            assert (got[:, 3:] == 0).all()


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_one_array_given_twice_attends_to_itself(dtype):
    layer = PowerLawGraphAttention(2, residual_units=1, residual_dim=4, dtype=dtype)
    x, mask = np.array(tokens(2, 5, 6)), np.arange(5) < [[5], [2]]
    twice, once = (to_numpy(layer(*args, query_mask=mask)) for args in ((x, x), (x,)))
    np.testing.assert_array_equal(twice, once)


def test_cross_attention_ignores_padded_queries_and_values():
    layer = make_layer()
    query, value = tokens(2, 4, 6), tokens(2, 5, 6, seed=1)
    want = to_numpy(layer(query[:, :3], value[:, :2]))
    got = layer(
        query,
        value,
        query_mask=ops.convert_to_tensor(np.arange(4)[None] < [[3], [3]]),
        value_mask=ops.convert_to_tensor(np.arange(5)[None] < [[2], [2]]),
    )
    np.testing.assert_allclose(to_numpy(got)[:, :3], want, rtol=1e-5, atol=1e-6)


def test_padding_in_the_metric_is_the_published_fault():
    layer, x = make_layer(padding_in_metric=True), tokens(2, 5, 6)
    mask = ops.convert_to_tensor(np.broadcast_to(np.arange(5) < 3, (2, 5)))
    difference = to_numpy(layer(x, mask=mask))[:, :3] - to_numpy(layer(x[:, :3]))
    assert np.abs(difference).max() > 1e-3


def test_causal_metric_by_prefixes():
    # Step by step, each prefix by itself, is what training on the whole sequence sees.
    layer, plain = make_layer(causal_metric=True), make_layer(causal_metric=False)
    x = tokens(2, 5, 6)
    whole = to_numpy(layer(x, use_causal_mask=True))
    plain.build(x.shape)
    plain.set_weights(layer.get_weights())
    for t in range(1, 6):
        prefix = to_numpy(plain(x[:, :t], use_causal_mask=True))
        np.testing.assert_allclose(whole[:, t - 1], prefix[:, -1], rtol=1e-4, atol=1e-5)
    # Without a causal metric, earlier outputs depend on later tokens.
    leaking = to_numpy(plain(x, use_causal_mask=True))
    assert np.abs(leaking - whole)[:, :4].max() > 1e-3


@pytest.mark.parametrize("options", [{}, {"metric_from": "key"}])
@pytest.mark.parametrize("kind", [PowerLawGraphAttention, PLDRAttention])
def test_warns_once_of_later_tokens(kind, options):
    sizes = {"residual_units": 1, "residual_dim": 4}
    layer, x = kind(2, **sizes, **options), tokens(1, 5, 8)
    layer(x)
    with pytest.warns(UserWarning, match="reads later tokens.*causal_metric=True"):
        layer(x, use_causal_mask=True)
    layer(x, use_causal_mask=True)  # warnings are errors here
    chosen = kind(2, **sizes, **options, causal_metric=False)
    chosen(x, use_causal_mask=True)
    kind.from_config(chosen.get_config())(x, use_causal_mask=True)


def test_a_metric_of_keys_reads_later_tokens_too():
    layer, x = make_layer(metric_from="key", causal_metric=False, epsilon=0.01), tokens(1, 5, 6)
    changed = x.copy()
    changed[:, -1] += np.arange(6)
    outputs, others = (to_numpy(layer(v, use_causal_mask=True)) for v in (x, changed))
    assert np.abs(outputs - others)[:, :4].max() > 1e-3


@pytest.mark.parametrize(
    ("options", "num_weights"), [({}, 675_376), ({"residual_units": 1, "residual_dim": 8}, 7_168)]
)
def test_has_the_number_of_weights_of_its_docstring(options, num_weights):
    layer = PowerLawGraphAttention(2, **options)
    layer.build((None, None, 32))
    assert layer.count_params() == num_weights


def test_a_metric_of_keys_ignores_queries_and_padding():
    layer = make_layer(metric_from="key")
    memory, real = tokens(2, 5, 6), np.arange(5) < 3
    first, second = (
        layer(x, memory, value_mask=np.stack([real, real]), return_details=True)
        for x in (tokens(2, 4, 6, seed=1), tokens(2, 4, 6, seed=2))
    )
    np.testing.assert_array_equal(to_numpy(first[1]["G_LM"]), to_numpy(second[1]["G_LM"]))
    assert np.abs(to_numpy(first[0]) - to_numpy(second[0])).max() > 1e-3
    cut = layer(tokens(2, 4, 6, seed=1), memory[:, :3])
    np.testing.assert_allclose(to_numpy(cut), to_numpy(first[0]), rtol=1e-4, atol=1e-5)
    # A key that no query may attend to does not count either.
    mask = np.broadcast_to(real, (2, 4, 5))
    masked = layer(tokens(2, 4, 6, seed=1), memory, attention_mask=mask)
    np.testing.assert_allclose(to_numpy(cut), to_numpy(masked), rtol=1e-4, atol=1e-5)
    # Nor does one that only padding may attend to, or that is padding itself.
    allowed = np.broadcast_to(np.arange(5) < 2, (2, 4, 5)).copy()
    allowed[:, 3] = True
    real_queries = np.broadcast_to(np.arange(4) < 3, (2, 4))
    first, second = (
        layer(x, m, query_mask=real_queries, value_mask=v, attention_mask=a)
        for x, m, v, a in (
            (tokens(2, 4, 6, seed=1), memory, np.stack([real, real]), allowed),
            (tokens(2, 4, 6, seed=1), memory[:, :2], None, allowed[:, :, :2]),
        )
    )
    np.testing.assert_allclose(to_numpy(first), to_numpy(second), rtol=1e-4, atol=1e-5)


METRIC_ATTENTIONS = {
    "query": lambda: make_layer(),
    "key": lambda: make_layer(metric_from="key"),
    "causal": lambda: make_layer(causal_metric=True),
    "pldr": lambda: PLDRAttention(2, rotary=None, key_dim=4, **SIZES),
    "fixed": lambda: MetricAttention(2, use_metric=True),
}


@pytest.mark.parametrize("value_mask", [None, np.arange(5)[None] > 0])
@pytest.mark.parametrize("name", METRIC_ATTENTIONS)
def test_a_key_mask_hides_keys_and_values_whatever_the_value_mask_is(name, value_mask):
    layer = METRIC_ATTENTIONS[name]()
    query, value, key = tokens(2, 4, 6), tokens(2, 5, 6, seed=1), tokens(2, 5, 6, seed=2)
    layer.build(query.shape, value.shape, key.shape)
    randomize(layer)
    key_mask = np.broadcast_to(np.arange(5) < 3, (2, 5))
    masks = {"key_mask": key_mask, "value_mask": value_mask}
    outputs, scores = layer(query, value, key=key, return_attention_scores=True, **masks)
    cut = layer(query, value[:, :3], key=key[:, :3])
    np.testing.assert_allclose(to_numpy(outputs), to_numpy(cut), rtol=1e-4, atol=1e-5)
    assert (to_numpy(scores)[..., 3:] == 0).all()
    unmasked = layer(query, value, key=key)
    assert np.abs(to_numpy(unmasked) - to_numpy(cut)).max() > 1e-3


@pytest.mark.parametrize("name", METRIC_ATTENTIONS)
def test_a_query_mask_takes_precedence_over_the_mask(name):
    layer, x = METRIC_ATTENTIONS[name](), tokens(2, 5, 6)
    query_mask = np.broadcast_to(np.arange(5) < 3, (2, 5))
    outputs = layer(x, query_mask=query_mask, mask=np.ones((2, 5), bool))
    assert (to_numpy(outputs)[:, 3:] == 0).all()
    cut = layer(x[:, :3])
    np.testing.assert_allclose(to_numpy(outputs)[:, :3], to_numpy(cut), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"metric_from": "key"}, {"causal_metric": True}])
def test_a_memory_that_is_kept_gives_what_the_layer_gives(options):
    """For one token of each of three hypotheses, whose metrics do not depend on one another."""
    layer = make_layer(**options)
    tokens_of_beams, memory = tokens(2, 3, 6), tokens(2, 5, 4, seed=1)
    layer.build(tokens_of_beams.shape, memory.shape)
    randomize(layer)  # biases, too, so that the key of a padded token is not 0
    real = np.arange(5) < np.array([[3], [5]])
    adapter = adapter_of(layer)
    state = adapter.memory_state(memory, real)
    outputs, _ = adapter.attend_to_memory(tokens_of_beams, adapter.empty_context(6), state, real)
    for beam in range(3):
        query = tokens_of_beams[:, beam : beam + 1]
        want, details = layer(query, memory, value_mask=real, return_details=True)
        np.testing.assert_allclose(to_numpy(outputs)[:, [beam]], to_numpy(want), rtol=1e-3)
        if "G_LM" in state:
            metric = to_numpy(details["G_LM"])
            np.testing.assert_allclose(to_numpy(state["G_LM"]), metric, rtol=1e-3, atol=1e-4)


def test_a_metric_of_keys_without_later_tokens_in_self_attention():
    # A token that attends to nothing and that nothing attends to is padding.
    layer, x = make_layer(metric_from="key"), tokens(2, 5, 6)
    real = np.arange(5) < 3
    mask = np.broadcast_to(real[:, None] & real, (2, 5, 5))
    cut = to_numpy(layer(x[:, :3]))
    np.testing.assert_allclose(
        to_numpy(layer(x, attention_mask=mask))[:, :3], cut, rtol=1e-4, atol=1e-5
    )
    one_way = np.broadcast_to(np.ones((5, 1), bool) & real, (2, 5, 5))
    np.testing.assert_allclose(
        to_numpy(layer(x, attention_mask=one_way))[:, :3], cut, rtol=1e-4, atol=1e-5
    )
    # Nor is one that attends to nothing, although others attend to it, if it is the same sequence.
    silent = np.broadcast_to(np.arange(5)[:, None] < 3, (2, 5, 5))
    options = {"attention_mask": silent, "return_details": True}
    alone, both = (to_numpy(layer(*args, **options)[1]["D_Q"]) for args in ((x,), (x, x.copy())))
    expected = to_numpy(layer(x[:, :3], return_details=True)[1]["D_Q"])
    np.testing.assert_allclose(alone, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(both - expected).max() > 1e-3
    published = make_layer(metric_from="key", padding_in_metric=True)
    published.build(x.shape)
    published.set_weights(layer.get_weights())
    _, padded = published(x, mask=np.stack([real, real]), return_details=True)
    assert np.abs(to_numpy(padded["D_Q"]) - expected).max() > 1e-3


def test_start():
    layer = PowerLawGraphAttention(4, **SIZES)
    layer.build((None, None, 32))
    for name in ("W", "a", "P"):
        weight = to_numpy(getattr(layer, f"power_law_{name}"))
        assert weight.shape == (4, 8, 8)
        assert abs(weight.std() * 32**0.5 - 1) < 0.15
    for name in ("b", "b_a"):
        assert (to_numpy(getattr(layer, f"power_law_{name}")) == 0).all()


def test_power_is_the_power_and_bounded():
    def power(base, exponent):
        return to_numpy(elementwise_power(*map(ops.convert_to_tensor, (base, exponent))))

    base, exponent = np.array([1e-9, 0.5, 2.0, 30.0]), np.array([1.5, -2.0, 3.0, 0.0])
    np.testing.assert_allclose(power(base, exponent), base**exponent, 1e-5)
    assert np.isfinite(power(np.array([1e-9, 1e-9, 1e9]), np.array([1e6, -1e6, 1e6]))).all()


# Every example is a compilation on JAX.
@settings(max_examples=12 if keras.backend.backend() == "tensorflow" else 4)
@given(
    scale=st.sampled_from([0.0, 1e-6, 1.0, 30.0, 1e3]),
    inputs=st.sampled_from([0.0, 1e-4, 1.0, 100.0]),
    length=st.sampled_from([1, 2, 9]),
    padding=st.sampled_from([0, 7]),
    policy=st.sampled_from(["float32", "mixed_bfloat16", "mixed_float16"]),
    causal_metric=st.booleans(),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_are_finite(
    scale, inputs, length, padding, policy, causal_metric, seed
):
    # The inputs are the rows of an embedding, padding the first of them: weights as all others.
    embedding = keras.layers.Embedding(1 + 2 * length, 4, mask_zero=True, dtype=policy)
    layer = make_layer(dtype=policy, causal_metric=causal_metric)
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, layer(embedding(ids), use_causal_mask=True))
    rng = np.random.default_rng(seed)
    embedding.embeddings.assign(inputs * rng.normal(size=embedding.embeddings.shape))
    for name in ("W", "b", "a", "P", "b_a"):
        weight = getattr(layer, f"power_law_{name}")
        weight.assign(scale * rng.normal(size=weight.shape))
    x = np.pad(np.arange(1, 1 + 2 * length).reshape(2, length), ((0, 0), (0, padding)))
    # In float16 what is finite may leave the range in the sum.
    value, grads = weight_gradients(model, lambda call: ops.mean(ops.cast(call(x), "float32")))
    assert np.isfinite(value)
    for weight, gradient in zip(model.trainable_variables, grads, strict=True):
        assert np.isfinite(gradient).all(), weight.path


def test_gradients_of_all_zero_metric_tensors_are_finite():
    layer = make_layer()
    model = keras.Sequential([keras.Input((None, 4)), layer])
    for name in ("W", "b", "a", "P", "b_a"):
        weight = getattr(layer, f"power_law_{name}")
        weight.assign(ops.zeros(weight.shape))
    for x in (tokens(2, 3, 4), np.zeros((2, 3, 4), "float32")):
        _, grads = weight_gradients(model, lambda call, x=x: ops.mean(call(x) ** 2))
        assert all(np.isfinite(grad).all() for grad in grads)


def test_sizes_of_numpy_are_taken_and_there_may_be_no_residual_units():
    layer = PowerLawGraphAttention(np.int64(2), np.int32(3), residual_units=np.int64(0))
    assert layer(tokens(1, 2, 4)).shape == (1, 2, 4)
    assert layer.residuals == []
    config = layer.get_config()
    assert all(type(config[name]) is int for name in ("num_heads", "key_dim", "residual_units"))


@pytest.mark.parametrize("option", ["query_dropout", "key_dropout"])
def test_queries_and_keys_drop_out_in_training_only(option):
    plain, x = make_layer(), tokens(2, 6, 6)
    want = to_numpy(plain(x))
    layer = make_layer(**{option: 0.5})
    layer.build(x.shape)
    layer.set_weights(plain.get_weights())
    np.testing.assert_array_equal(to_numpy(layer(x, training=False)), want)
    _, deductive = layer(x, training=True, return_details=True)
    _, expected = plain(x, return_details=True)
    # Dropped queries change the metric, dropped keys only the energies.
    same = np.allclose(to_numpy(deductive["D_Q"]), to_numpy(expected["D_Q"]))
    assert same == (option == "key_dropout")
    assert np.abs(to_numpy(deductive["E"]) - to_numpy(expected["E"])).max() > 1e-3
    with pytest.raises(ValueError, match=rf"{option}=1\.0"):
        make_layer(**{option: 1.0})


def test_symbolic_shapes():
    layer = make_layer()
    query, value = keras.Input((None, 6)), keras.Input((None, 4))
    assert layer.compute_output_shape((2, None, 6)) == (2, None, 6)
    outputs, scores, deductive = layer(
        query, value, return_attention_scores=True, return_details=True
    )
    assert outputs.shape == (None, None, 6)
    assert scores.shape == (None, 2, None, None)
    assert deductive["G_LM"].shape == (None, 2, 3, 3)
