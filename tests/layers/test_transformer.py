import keras
import numpy as np
import pytest
from conformance import saved_and_loaded, to_numpy, tokens
from keras import ops
from slow_cases import slow_but

from keras_tnattn import layers
from keras_tnattn.layers.residual_attention import ResidualAttention
from keras_tnattn.models import PRESETS, translator
from keras_tnattn.typing import Chunk

DIM = 6


def plga(**options):
    sizes = {"residual_units": 1, "residual_dense_layers": 1, "residual_dim": 5}
    return layers.PowerLawGraphAttention(2, **{**sizes, "causal_metric": False, **options})


def sdpa():
    return keras.layers.MultiHeadAttention(2, 3)


def layer_norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)


def feed_forward(layer, x):
    kernels = [to_numpy(w) for w in (*layer.hidden.weights, *layer.projection.weights)]
    return np.maximum(x @ kernels[0] + kernels[1], 0) @ kernels[2] + kernels[3]


def encoded(layer, x, attend):
    """What an encoder whose norms are not trained computes with an attention."""
    if layer.norm_first:
        x = x + attend(layer_norm(x))
        return x + feed_forward(layer, layer_norm(x))
    x = layer_norm(x + attend(x))
    return layer_norm(x + feed_forward(layer, x))


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_equals_the_formula(norm_first):
    layer = layers.TransformerEncoder(sdpa(), 5, norm_first=norm_first)
    x = tokens(2, 4, DIM)
    got = to_numpy(layer(x))
    want = encoded(layer, x, lambda inside: to_numpy(layer.attention(inside, inside)))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make_attention", [lambda: plga(causal_metric=True), sdpa])
def test_decoder_sees_neither_padding_nor_the_future(make_attention):
    layer = layers.TransformerDecoder(make_attention(), make_attention(), 5)
    x, memory = tokens(2, 5, DIM), tokens(2, 4, DIM, seed=1)
    want = to_numpy(layer(x[:, :3], memory[:, :2]))
    changed = x.copy()
    changed[:, 3:] = tokens(2, 2, DIM, seed=2)
    masks = [np.broadcast_to(np.arange(n) < m, (2, n)) for n, m in ((5, 5), (4, 2))]
    inputs_mask, memory_mask = map(ops.convert_to_tensor, masks)
    for inputs in (x, changed):
        got = layer(inputs, memory, inputs_mask=inputs_mask, memory_mask=memory_mask)
        np.testing.assert_allclose(to_numpy(got)[:, :3], want, rtol=1e-4, atol=1e-5)
    other = to_numpy(layer(x, -memory, inputs_mask=inputs_mask, memory_mask=memory_mask))
    assert np.abs(other[:, :3] - want).max() > 1e-3


def test_attentions_are_returned_on_request():
    x, memory = tokens(2, 3, DIM), tokens(2, 4, DIM)
    encoder = layers.TransformerEncoder(plga(), 5)
    outputs, attention = encoder(x, return_details=True)
    np.testing.assert_array_equal(to_numpy(outputs), to_numpy(encoder(x)))
    assert set(attention) >= {"E_LM", "A_LM", "P", "a", "b_a", "G_LM", "E"}
    encoder = layers.TransformerEncoder(layers.TNAttention(bond_dim=2), 5)
    assert encoder(x, return_details=True)[1]["local_weights"].shape == (2, 3, DIM, DIM)
    with pytest.raises(ValueError, match="GraphTensorNetwork"):
        layers.TransformerEncoder(layers.GraphTensorNetwork(), 5)(x, return_details=True)
    decoder = layers.TransformerDecoder(plga(), sdpa(), 5)
    outputs, attention = decoder(x, memory, return_details=True)
    assert attention["self"]["E_LM"].shape == (2, 2, 3, 3)
    assert attention["cross"]["scores"].shape == (2, 2, 3, 4)


def test_transformer_layers_come_back(tmp_path):
    inputs, memory = keras.Input((None, DIM)), keras.Input((None, DIM))
    encoded = layers.TransformerEncoder(plga(), 5, dropout=0.1)(memory)
    outputs = layers.TransformerDecoder(plga(), sdpa(), 5, norm_first=True)(inputs, encoded)
    model = keras.Model([inputs, memory], outputs)
    arrays = [tokens(2, 3, DIM), tokens(2, 5, DIM)]
    saved_and_loaded(model, arrays, tmp_path)


def test_a_decoder_wants_attentions_of_query_and_value():
    with pytest.raises(ValueError, match="self_attention=<GraphTensorNetwork"):
        layers.TransformerDecoder(layers.GraphTensorNetwork(), sdpa(), 5)
    with pytest.raises(ValueError, match="cross_attention=<TNAttention"):
        layers.TransformerDecoder(sdpa(), layers.TNAttention(), 5)
    with pytest.raises(TypeError, match="attention='plga'"):
        layers.TransformerEncoder("plga", 5)
    with pytest.raises(ValueError, match="feedforward_dim=0"):
        layers.TransformerEncoder(sdpa(), 0)
    with pytest.raises(ValueError, match="dropout=1"):
        layers.TransformerEncoder(sdpa(), 5, dropout=1)


def test_decoders_know_whether_they_keep_a_state():
    for attentions, keeps in (
        ((plga(), sdpa()), False),  # the published metric changes with each token
        ((plga(causal_metric=True), sdpa()), True),
        ((sdpa(), plga()), False),
        ((sdpa(), plga(metric_from="key")), True),
        ((sdpa(), sdpa()), True),
        ((layers.TNAttention(), None), True),
    ):
        assert layers.TransformerDecoder(*attentions, 5).keeps_state is keeps


def test_a_feed_forward_net_of_tensor_trains_equals_the_dense_one():
    layer = layers.TransformerEncoder(sdpa(), 8, feedforward="tensor_train", feedforward_tt_ranks=3)
    x = tokens(2, 4, DIM)
    got = to_numpy(layer(x))
    assert layer.hidden.tt_ranks == layer.projection.tt_ranks == 3
    dense = layers.TransformerEncoder(layer.attention, 8)
    dense.build(x.shape)
    for name in ("hidden", "projection"):
        tensor_train = getattr(layer, name)
        getattr(dense, name).set_weights(tensor_train.to_dense().get_weights())
        assert isinstance(tensor_train, layers.TTDense)
    np.testing.assert_allclose(got, to_numpy(dense(x)), rtol=1e-4, atol=1e-5)
    decoder = layers.TransformerDecoder(sdpa(), sdpa(), 8, feedforward="tensor_train")
    assert decoder(x, x).shape == x.shape
    assert isinstance(decoder.hidden, layers.TTDense)
    with pytest.raises(ValueError, match="feedforward='sparse'"):
        layers.TransformerEncoder(sdpa(), 8, feedforward="sparse")
    with pytest.raises(ValueError, match="feedforward_tt_ranks=0"):
        layers.TransformerEncoder(sdpa(), 8, feedforward_tt_ranks=0)


def test_positions_are_sines_and_cosines():
    layer = layers.SinusoidalPositionEncoding(100.0)
    got = to_numpy(layer(np.zeros((1, 7, 5), "float32")))[0]
    for p in range(7):
        for i in range(5):
            angle = p / 100.0 ** (2 * (i // 2) / 5)
            want = np.cos(angle) if i % 2 else np.sin(angle)
            assert abs(got[p, i] - want) < 1e-6
    later = to_numpy(layer(np.zeros((1, 2, 5), "float32"), start_index=5))[0]
    np.testing.assert_allclose(later, got[5:], atol=1e-6)
    # Far positions need more than half precision.
    half = layers.SinusoidalPositionEncoding(dtype="mixed_bfloat16")
    wide = layers.SinusoidalPositionEncoding()
    x = np.zeros((1, 1, 4), "float32")
    got, want = (to_numpy(ops.cast(p(x, start_index=5001), "float32")) for p in (half, wide))
    np.testing.assert_allclose(got, want, atol=0.01)
    x, got = tokens(1, 7, 5), to_numpy(layer(np.zeros((1, 7, 5), "float32")))[0]
    scaled = layers.SinusoidalPositionEncoding(100.0, scale=True)(x)
    np.testing.assert_allclose(to_numpy(scaled)[0], x[0] * 5**0.5 + got, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="max_wavelength=0"):
        layers.SinusoidalPositionEncoding(0)


def test_an_embedding_trains_alike_whether_tokens_repeat_or_not(tmp_path):
    # The same gradient for token 1 once, and in two halves.
    trained = []
    for ids, scale in ([[1, 2]], 1.0), ([[1, 2, 1, 2]], 0.5):
        layer = layers.TokenEmbedding(4, 3, embeddings_initializer="ones", mask_zero=True)
        model = keras.Sequential([keras.Input((None,)), layer])
        model.compile(keras.optimizers.Adam(0.1), loss=lambda y, p, s=scale: ops.sum(y * p) * s)
        ids = np.array(ids)
        for _ in range(3):
            model.train_on_batch(ids, np.ones((*ids.shape, 3), "float32"))
        trained.append(to_numpy(layer.embeddings))
    np.testing.assert_allclose(*trained, rtol=1e-6)
    assert (trained[0][[0, 3]] == 1).all()
    assert (trained[0][1:3] != 1).all()
    assert to_numpy(layer.compute_mask(np.array([[0, 1]]))).tolist() == [[False, True]]


PARAMETERS = {
    "plga-1": 20_646_016,
    "plga-2": 22_817_152,
    "plga-3": 22_520_128,
    "plga-4": 26_554_816,
    "plga-5": 31_072_576,
    "plga-6": 42_475_840,
    "sdpa": 41_721_664,
}


@pytest.mark.parametrize("name", slow_but(["plga-1", "sdpa"], sorted(PARAMETERS)))
def test_presets_have_the_papers_parameters(name):
    assert translator(8000, 8000, **PRESETS[name]).count_params() == PARAMETERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "plga", "layer"])
def test_translator_takes_an_attention_by_name_or_as_a_layer(attention, tmp_path):
    options = {"model_dim": 8, "num_heads": 2, "feedforward_dim": 4, "num_layers": 2}
    options |= {"residual_units": 1, "residual_dim": 4} if attention == "plga" else {}
    attention = plga(causal_metric=True) if attention == "layer" else attention
    model = translator(9, 11, attention=attention, **options)
    inputs = {"source": np.array([[2, 5, 3, 0]]), "target": np.array([[2, 4, 6]])}
    want = model.predict(inputs, verbose=0)
    assert want.shape == (1, 3, 11)
    unpadded = {**inputs, "source": inputs["source"][:, :3]}
    np.testing.assert_allclose(model.predict(unpadded, verbose=0), want, rtol=1e-4, atol=1e-5)
    names = [layer.name for layer in model.layers]
    assert {"encoder_1", "decoder_1"} <= set(names)
    first, second = (model.get_layer(f"encoder_{i}").attention for i in range(2))
    assert (to_numpy(first.weights[0]) != to_numpy(second.weights[0])).any()
    saved_and_loaded(model, inputs, tmp_path)


SIZES = {"model_dim": 8, "num_heads": 2, "residual_units": 1, "residual_dim": 4}


def attentions_of(model, place=0):
    encoder, decoder = model.encoders[place], model.decoders[place]
    return [encoder.attention, decoder.self_attention, decoder.cross_attention]


@pytest.mark.parametrize("metric_from", ["key", "query"])
def test_a_causal_metric_is_the_decoders_alone_unless_it_is_of_the_source(metric_from):
    options = SIZES | {"feedforward_dim": 4, "epsilon": 0.01, "causal_metric": True}
    model = translator(9, 11, num_layers=2, metric_from=metric_from, **options)
    for place in range(2):
        attentions = attentions_of(model, place)
        assert [x.metric_from for x in attentions] == ["query", "query", metric_from]
        assert [x.causal_metric for x in attentions] == [False, True, metric_from == "query"]
        assert [x.epsilon for x in attentions] == [0.01] * 3


def test_the_same_attention_by_name_has_the_same_options():
    options = SIZES | {"metric_from": "key", "epsilon": 0.01, "causal_metric": True}
    names = {"encoder_attention": "plga", "decoder_attention": "plga"}
    attentions = attentions_of(
        translator(9, 11, **options, **names, decoder_options={"epsilon": 0.1})
    )
    assert [x.residual_dim for x in attentions] == [4] * 3
    assert [x.epsilon for x in attentions] == [0.01, 0.1, 0.01]
    assert [x.causal_metric for x in attentions] == [False, True, False]
    with pytest.raises(
        ValueError, match=r"where it is used.*{'causal_metric': True}.*decoder_attention='sdpa'"
    ):
        translator(9, 11, **options, decoder_attention="sdpa")


def test_an_option_that_no_attention_takes_is_refused():
    with pytest.raises(TypeError, match="damping"):  # by the layer itself
        translator(9, 11, **SIZES, damping=0.5)
    with pytest.raises(ValueError, match="metric_from='neither'"):
        translator(9, 11, **SIZES, metric_from="neither")
    # The same options in every place, for an attention that does not say otherwise.
    model = translator(9, 11, "sdpa", model_dim=8, num_heads=2, dropout=0.0, use_bias=False)
    assert [x.get_config()["use_bias"] for x in attentions_of(model)] == [False] * 3


@pytest.mark.parametrize("decoder_attention", [None, "sdpa"])
def test_with_a_metric_of_the_source_only_self_attention_can_leak(decoder_attention):
    options = SIZES | {"metric_from": "key", "decoder_attention": decoder_attention}
    model = translator(9, 11, **options, dropout=0.0)
    source, target = np.array([[1, 2, 3]]), np.array([[1, 4, 5, 6]])
    changed = np.array([[1, 4, 7, 8]])
    before, after = (
        to_numpy(model({"source": source, "target": ids}))[:, :2] for ids in (target, changed)
    )
    assert np.array_equal(before, after) == (decoder_attention == "sdpa")


class Halves(keras.layers.Layer):
    """An attention that Keras knows no output shape of."""

    def call(self, inputs):
        return inputs / 2


DEFAULTS = {
    "sdpa": sdpa,
    "tsa": lambda: layers.TensorizedSpectralAttention(2),
    "tga": lambda: layers.TensorizedGraphAttention(2),
    "gat": lambda: layers.GraphAttention(2),
    "rgtn": lambda: layers.GraphTensorNetwork(),
    "tn": lambda: layers.TNAttention(),
    "plga": lambda: layers.PowerLawGraphAttention(2),
    "ada": lambda: layers.MultiHeadAdditiveAttention(2),
    "dpa": lambda: layers.MultiHeadDotProductAttention(2),
}


@pytest.mark.parametrize("name", slow_but(["sdpa", "tsa", "tga", "tn", "plga", "ada"], DEFAULTS))
def test_an_encoder_takes_every_self_attention_with_default_arguments(name):
    layer = layers.TransformerEncoder(DEFAULTS[name](), 16)
    x = tokens(2, 5, 8)
    assert layer(keras.Input((None, 8))).shape == (None, None, 8)
    mask = ops.convert_to_tensor(np.arange(5) < [[5], [3]])
    got = to_numpy(layer(x, mask=mask))
    np.testing.assert_allclose(got[1, :3], to_numpy(layer(x[1:, :3]))[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
def test_concatenated_heads_are_mapped_back_to_the_size_of_the_inputs(norm_first):
    attention = layers.TensorizedSpectralAttention(2)
    layer = layers.TransformerEncoder(attention, 7, norm_first=norm_first)
    x = tokens(2, 5, 8)
    got = to_numpy(layer(x))
    kernel = to_numpy(layer.attention_projection.kernel)
    assert kernel.shape == (16, 8)
    want = encoded(layer, x, lambda inside: to_numpy(attention(inside)) @ kernel)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    one_head = layers.TransformerEncoder(layers.TensorizedSpectralAttention(1), 7)
    one_head(x)
    assert one_head.attention_projection is None


def test_both_attentions_of_a_decoder_may_have_outputs_of_another_size():
    def make():
        return keras.layers.MultiHeadAttention(2, 4, output_shape=4)

    decoder = layers.TransformerDecoder(make(), make(), 16)
    x, memory = tokens(1, 3, 8), tokens(1, 5, 8, seed=1)
    want = to_numpy(decoder(x, memory))
    shapes = [p.kernel.shape for p in (decoder.self_projection, decoder.cross_projection)]
    assert [tuple(shape) for shape in shapes] == [(4, 8), (4, 8)]
    # One token after the other, from keys and values.
    assert decoder.keeps_state
    real = ops.ones((1, 5), "bool")
    memory_state = decoder.memory_state(ops.convert_to_tensor(memory), real)
    state = decoder.empty_state(1, 3)
    for t in range(3):
        prefix = ops.convert_to_tensor((np.arange(3) <= t)[None])
        chunk = Chunk(t, ops.full((1, 1), t), ops.ones((1, 1), "bool"), prefix, is_prompt=False)
        token = ops.convert_to_tensor(x[:, t : t + 1])
        outputs, state = decoder.extend(token, state, chunk, memory_state, real)
        np.testing.assert_allclose(to_numpy(outputs)[:, 0], want[:, t], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: layers.TensorizedSpectralAttention(2), 16),
        (lambda: layers.TensorizedSpectralAttention(1, key_dim=1), 1),
        (lambda: keras.layers.MultiHeadAttention(2, 4, output_shape=4), 4),
    ],
    ids=["concat", "broadcast", "output_shape"],
)
def test_a_residual_attention_refuses_another_output_size(make, size):
    with pytest.raises(ValueError, match=f"size 8 of its inputs.*outputs of size {size}"):
        ResidualAttention(make())(keras.Input((None, 8)))


def test_integers_are_tokens_too():
    x = np.arange(40).reshape(1, 5, 8) % 3
    encoder = layers.TransformerEncoder(sdpa(), 4)
    decoder = layers.TransformerDecoder(sdpa(), sdpa(), 4)
    for layer, inputs in ((encoder, (x,)), (decoder, (x, x))):
        expected = to_numpy(layer(*(x.astype("float32") for x in inputs)))
        np.testing.assert_array_equal(to_numpy(layer(*inputs)), expected)


def test_transformer_layers_know_their_output_shape():
    encoder = layers.TransformerEncoder(Halves(), 16)
    assert encoder.compute_output_shape((2, 5, 8)) == (2, 5, 8)

    class OfTwo(Halves):
        def compute_output_shape(self, query_shape, value_shape):
            return query_shape

    assert layers.TransformerEncoder(OfTwo(), 16)(ops.ones((2, 5, 8))).shape == (2, 5, 8)

    class Faulty(Halves):
        def compute_output_shape(self, input_shape):
            return input_shape + 1

    with pytest.raises(TypeError, match="concatenate"):
        layers.TransformerEncoder(Faulty(), 16)(ops.ones((2, 5, 8)))
    frames = keras.layers.TimeDistributed(encoder)(keras.Input((3, 5, 8)))
    assert frames.shape == (None, 3, 5, 8)
    decoder = layers.TransformerDecoder(sdpa(), sdpa(), 16)
    assert decoder.compute_output_shape((2, 5, 8), (2, 7, 8)) == (2, 5, 8)


def test_attentions_without_scores_are_left_out_of_the_details():
    model = translator(
        11, 12, "sdpa", model_dim=8, num_heads=2, encoder_attention="rgtn", decoder_attention="rgtn"
    )
    source, target = np.array([[2, 5, 3]]), np.array([[2, 4, 6]])
    memory, details = model.encode(source, return_details=True)
    assert details == {}
    _, details = model.decode(target, memory, return_details=True)
    assert set(details) == {"decoder_0.cross"}
    with pytest.raises(ValueError, match="can return its scores"):
        model.encoders[0](memory, return_details=True)
