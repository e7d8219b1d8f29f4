"""Freezing the metric of power law attention, beside its definitions."""

import math

import keras
import numpy as np
import pytest
from conformance import assert_same_arrays, saved_and_loaded, to_numpy
from keras import ops
from slow_cases import slow_but

from keras_tnattn import freeze_metric, layers
from keras_tnattn.models import language_model, translator
from keras_tnattn.models.freezing import metric_spreads
from keras_tnattn.search import BeamSearch, Generator

# test_layers_conform.py trains the layers as a graph.
pytestmark = pytest.mark.usefixtures("eagerly")
SIZES = {"model_dim": 8, "num_heads": 2, "feedforward_dim": 8}
PLGA = {"residual_units": 1, "residual_dim": 4}
IDS = np.random.default_rng(0).integers(1, 11, (12, 7))
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_constant(layer, scale=1e-4, seed=0):
    """Makes the metric of a layer nearly the same for all inputs, and far from the identity."""
    rng = np.random.default_rng(seed)
    layer.power_law_W.assign(scale * rng.normal(size=layer.power_law_W.shape))
    for name in ("b", "a", "b_a"):
        variable = getattr(layer, f"power_law_{name}")
        variable.assign(rng.uniform(0.5, 1.5, size=variable.shape) * rng.choice([-1, 1]))
    layer.power_law_b.assign(np.abs(to_numpy(layer.power_law_b)))
    layer.power_law_P.assign(rng.uniform(0.5, 1.0, size=layer.power_law_P.shape))


def make(scale=1e-4, attention="plga", **options):
    sizes = SIZES | (PLGA if attention == "plga" else {})
    model = language_model(11, attention, **{**sizes, **options})
    for seed, decoder in enumerate(model.decoders):
        make_constant(decoder.self_attention, scale, seed)
    return model


def metrics_of(model):
    _, details = model.run_decoders(ops.array(IDS), return_details=True)
    return to_numpy(details["decoder_0"]["G_LM"]).astype("float64")


def test_the_spread_is_that_of_the_definition():
    model = make(scale=0.3, num_layers=1)
    (spread,) = metric_spreads(model, IDS, batch_size=5)
    metrics = metrics_of(model)
    mean = metrics.mean(0)
    squares = ((metrics - mean) ** 2).sum((2, 3)).mean(0)
    want = np.sqrt(squares / (mean**2).sum((1, 2)))
    np.testing.assert_allclose(spread.spreads, want, rtol=1e-4)
    np.testing.assert_allclose(spread.mean, mean, rtol=1e-5, atol=1e-6)
    # A causal metric: of each position.
    causal = make(scale=0.3, num_layers=1, causal_metric=True)
    (spread,) = metric_spreads(causal, [IDS[:4], IDS[4:]])
    mean = metrics_of(causal).mean((0, 2))
    np.testing.assert_allclose(spread.mean, mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attention", slow_but(["plga"], ["plga", "a layer"]))
def test_a_constant_metric_is_frozen_and_nothing_is_lost(attention, tmp_path):
    layer = layers.PowerLawGraphAttention(2, **PLGA)
    model = make(attention=attention if attention == "plga" else layer)
    model.compile("adam", LOSS)
    want, before = to_numpy(model(IDS)), [w.copy() for w in model.get_weights()]
    frozen = freeze_metric(model, (IDS[:, :-1], IDS[:, 1:]), batch_size=5)
    paths = [layer.path for layer in frozen.layers]
    assert paths == ["decoder_0/self_attention", "decoder_1/self_attention"]
    assert all(layer.frozen and not layer.folded for layer in frozen.layers)
    assert isinstance(frozen.model.decoders[1].self_attention, layers.MetricAttention)
    np.testing.assert_allclose(to_numpy(frozen.model(IDS)), want, rtol=1e-3, atol=1e-3)
    assert frozen.loss_after == pytest.approx(frozen.loss_before, abs=1e-3)
    assert "frozen, spread of the metric by head 0.0" in str(frozen)
    assert "loss: " in str(frozen)
    # The original is untouched, and still computes its metric.
    assert frozen.original is model
    assert_same_arrays(before, model.get_weights())
    np.testing.assert_array_equal(to_numpy(model(IDS)), want)
    # It is saved as any model, no longer reads ahead, and keeps keys.
    saved_and_loaded(frozen.model, IDS, tmp_path)
    got = to_numpy(frozen.model(IDS))
    changed = IDS.copy()
    changed[:, -1] = 3
    again = to_numpy(frozen.model(changed))
    np.testing.assert_allclose(again[:, :-1], got[:, :-1], rtol=1e-5, atol=1e-6)
    cached, whole = (Generator(frozen.model, 5, key_value_cache=kv) for kv in (None, False))
    assert cached.steps.keeps_state
    np.testing.assert_array_equal(cached(IDS[:3, :4]).ids, whole(IDS[:3, :4]).ids)


def test_the_loss_is_the_mean_over_the_rows():
    """The last batch, of two rows, counts for two rows."""
    model, data = make(), (IDS[:, :-1], IDS[:, 1:])
    whole, parts = (freeze_metric(model, data, loss=LOSS, batch_size=n) for n in (12, 10))
    assert parts.loss_before == pytest.approx(whole.loss_before, rel=1e-5)
    model.compile(loss=LOSS)
    assert parts.loss_before == pytest.approx(model.evaluate(*data, verbose=0), rel=1e-5)


def test_without_a_leaky_relu_keras_own_attention_remains():
    model = make(position_encoding="sinusoidal")
    data = (IDS[:, :-1], IDS[:, 1:])
    folded = freeze_metric(model, data, loss=LOSS)
    plain = freeze_metric(model, data, fold=False)
    assert all(layer.folded for layer in folded.layers)
    assert plain.loss_before is None
    for decoder in folded.model.decoders:
        assert type(decoder.self_attention) is keras.layers.MultiHeadAttention
    got, want = (to_numpy(each.model(IDS)) for each in (folded, plain))
    # Without AVX-512 the rounding of products differs by up to 2.4e-6.
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


TOKENS = np.random.default_rng(0).normal(size=(6, 5, 8)).astype("float32")


@keras.saving.register_keras_serializable(package="test_freezing")
class CallsItself(keras.Model):
    def __init__(self, attention, **kwargs):
        super().__init__(**kwargs)
        self.attention = attention

    def call(self, inputs):
        return self.attention(inputs)

    def get_config(self):
        return {"attention": keras.saving.serialize_keras_object(self.attention)}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config["attention"]))


def functional(call):
    def make(attention):
        inputs = keras.Input((5, 8))
        return keras.Model(inputs, call(attention, inputs))

    return make


PLAIN = keras.layers.MultiHeadAttention
# Models around an attention, and whether Keras' attention can take its place.
AROUND = {
    "sequential": (lambda layer: keras.Sequential([keras.Input((5, 8)), layer]), False),
    "masked": (lambda x: keras.Sequential([keras.Input((5, 8)), keras.layers.Masking(), x]), False),
    "subclassed": (CallsItself, False),
    "self": (functional(lambda layer, x: layer(x)), False),
    "twice": (functional(lambda layer, x: layer(x, x)), False),
    "causal": (functional(lambda layer, x: layer(x, use_causal_mask=True)), False),
    "cross": (functional(lambda layer, x: layer(x, x[:, :3])), False),
    "scores": (functional(lambda layer, x: layer(x, x, return_details=True)[0]), False),
    "encoder": (functional(lambda layer, x: layers.TransformerEncoder(layer, 5)(x)), True),
    "decoder": (
        functional(lambda layer, x: layers.TransformerDecoder(PLAIN(2, 4), layer, 5)(x, x)),
        True,
    ),
}


@pytest.mark.parametrize("around", AROUND)
def test_folds_only_where_the_attention_of_keras_can_be_called(around, tmp_path):
    make_model, folds = AROUND[around]
    attention = layers.PLDRAttention(2, rotary=None, causal_metric=False, **PLGA)
    model = make_model(attention)
    model(TOKENS)
    make_constant(attention)
    frozen = freeze_metric(model, TOKENS)
    assert [(layer.frozen, layer.folded) for layer in frozen.layers] == [(True, folds)]
    got, want = (to_numpy(each(TOKENS)) for each in (frozen.model, model))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    if around != "subclassed":  # which Keras builds by its own means
        saved_and_loaded(frozen.model, TOKENS, tmp_path)


def test_a_shared_attention_is_refused():
    attention = layers.PLDRAttention(2, rotary=None, causal_metric=False, **PLGA)
    model = functional(lambda layer, x: layer(layers.TransformerEncoder(layer, 5)(x)))(attention)
    with pytest.raises(ValueError, match=r"functional.* with a shared attention"):
        freeze_metric(model, TOKENS, bound=math.inf)


def test_rotated_queries_keep_their_metric():
    """It comes after the rotation, so that no kernel can hold it."""
    model = make(position_encoding="rotary")
    frozen = freeze_metric(model, IDS)
    assert all(layer.frozen and not layer.folded for layer in frozen.layers)
    got, want = (to_numpy(each(IDS)) for each in (frozen.model, model))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("metric_from", ["query", "key"])
def test_the_three_attentions_of_a_translator(metric_from):
    options = {} if metric_from == "query" else {"metric_from": "key"}
    model = translator(12, 11, dropout=0.0, attention_dropout=0.0, **SIZES, **PLGA, **options)
    places = (model.encoders[0].attention, model.decoders[0].self_attention)
    for seed, layer in enumerate((*places, model.decoders[0].cross_attention)):
        make_constant(layer, seed=seed)
    inputs = {"source": IDS, "target": IDS[:, :5] % 11 + 1}
    inputs["target"] = np.minimum(inputs["target"], 10)
    frozen = freeze_metric(model, inputs)
    paths = [layer.path for layer in frozen.layers]
    assert paths == ["encoder_0/attention", "decoder_0/self_attention", "decoder_0/cross_attention"]
    got, want = (to_numpy(each(inputs)) for each in (frozen.model, model))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    search = BeamSearch(frozen.model, 2, extra_tokens=3)
    assert search.steps.keeps_state
    result = search(IDS[:3])
    search.steps.keeps_state = False
    whole = BeamSearch(frozen.model, 2, extra_tokens=3)
    whole.steps.keeps_state = False
    other = whole(IDS[:3])
    np.testing.assert_array_equal(result.ids, other.ids)
    np.testing.assert_allclose(result.scores, other.scores, rtol=1e-4)


def test_a_functional_model_around_layers():
    inputs = keras.Input((None, 8))
    attention = layers.PowerLawGraphAttention(2, residual_units=1, residual_dim=4)
    x = layers.TransformerEncoder(attention, 5)(inputs)
    other = layers.PowerLawGraphAttention(2, residual_units=0, residual_dim=4, name="own")
    model = keras.Model(inputs, keras.layers.Dense(3)(other(x)))
    make_constant(attention)
    make_constant(other, seed=1)
    x = np.random.default_rng(0).normal(size=(6, 5, 8)).astype("float32")
    frozen = freeze_metric(model, x)
    assert [layer.frozen for layer in frozen.layers] == [True, True]
    np.testing.assert_allclose(to_numpy(frozen.model(x)), to_numpy(model(x)), rtol=1e-3, atol=1e-3)


def test_a_metric_that_depends_on_the_input_is_refused():
    model = make(scale=1.0)
    with pytest.raises(ValueError, match=r"bound=0.01.*decoder_0/self_attention [0-9.]+"):
        freeze_metric(model, IDS, bound=0.01)
    # Where only one of the layers does, the other is frozen.
    make_constant(model.decoders[1].self_attention)
    frozen = freeze_metric(model, IDS, bound=0.01)
    assert [layer.frozen for layer in frozen.layers] == [False, True]
    kinds = [type(decoder.self_attention) for decoder in frozen.model.decoders]
    assert kinds == [layers.PLDRAttention, layers.MetricAttention]
    assert "decoder_0/self_attention: kept" in str(frozen)
    frozen = freeze_metric(model, IDS, bound=math.inf)
    assert [layer.frozen for layer in frozen.layers] == [True, True]


def test_errors():
    model = make(num_layers=1)
    with pytest.raises(ValueError, match="model=language_model without one"):
        freeze_metric(language_model(11, "sdpa", **SIZES), IDS)
    for bound in (-1, 0, math.nan):
        with pytest.raises(ValueError, match=f"bound={bound}"):
            freeze_metric(model, IDS, bound=bound)
    with pytest.raises(ValueError, match=r"at least two inputs.*Received: 1"):
        freeze_metric(model, IDS[:1])
    with pytest.raises(ValueError, match="data='ids'"):
        freeze_metric(model, "ids")
    with pytest.raises(ValueError, match="batch_size=0"):
        freeze_metric(model, IDS, batch_size=0)
    model.decoders[0].self_attention.power_law_a.assign(
        np.full(model.decoders[0].self_attention.power_law_a.shape, np.nan)
    )
    with pytest.raises(ValueError, match="decoder_0/self_attention with NaN"):
        freeze_metric(model, IDS)
