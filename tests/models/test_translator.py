import keras
import numpy as np
import pytest
from conformance import saved_and_loaded, to_numpy
from slow_cases import slow_but

from keras_tnattn import layers
from keras_tnattn.models import Translator, language_model, translator
from keras_tnattn.models.attentions import ATTENTIONS
from keras_tnattn.search import BeamSearch

SIZES = {"model_dim": 8, "num_heads": 2, "feedforward_dim": 8, "dropout": 0.0}
IDS = {
    "source": np.array([[2, 5, 3, 0], [2, 7, 8, 3]], "int32"),
    "target": np.array([[2, 4, 6], [2, 3, 0]], "int32"),
}
SMALL = {"plga": {"residual_units": 1, "residual_dim": 4, "causal_metric": True}, "sdpa": {}}


def make(attention="sdpa", **options):
    return translator(9, 11, attention, **{**SIZES, **SMALL.get(attention, {}), **options})


def test_dtypes_do_not_depend_on_the_policy_of_the_moment():
    models = make(), language_model(11, "sdpa", model_dim=8, num_heads=2, feedforward_dim=8)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        again = [type(model).from_config(model.get_config()) for model in models]
    finally:
        keras.config.set_dtype_policy("float32")
    every = [x for model in again for x in model.layers if type(x) is not keras.layers.InputLayer]
    assert {x.compute_dtype for x in every} == {"float32"}


@pytest.mark.parametrize("wrong", ["layer", "two", "no list"])
def test_a_side_that_is_none_gets_a_clear_error(wrong):
    model = translator(20, 20, "sdpa", model_dim=8, num_heads=2)
    side = (model.target_embedding, model.target_positions, model.decoders)
    wrong_side = {"layer": side[0], "two": side[:2], "no list": (*side[:2], side[2][0])}[wrong]
    source = (model.source_embedding, model.source_positions, model.encoders)
    with pytest.raises(ValueError, match=r"target=\(embedding, positions, \[layer, \.\.\.\]\)"):
        Translator(source, wrong_side, model.logits)


def test_decoders_are_no_encoders():
    model = make()
    source, target = (
        (getattr(model, f"{side}_embedding"), getattr(model, f"{side}_positions"))
        for side in ("source", "target")
    )
    with pytest.raises(ValueError, match=r"encoders in source\. Received: a TransformerDecoder"):
        Translator((*source, model.decoders), (*target, model.decoders), model.logits)
    with pytest.raises(ValueError, match=r"decoders in target\. Received: a TransformerEncoder"):
        Translator((*source, model.encoders), (*target, model.encoders), model.logits)


def test_a_config_has_the_layers_of_each_side():
    model = make(num_layers=2)
    again = type(model).from_config(model.get_config())
    again.set_weights(model.get_weights())
    want = model.predict(IDS, verbose=0)
    np.testing.assert_array_equal(again.predict(IDS, verbose=0), want)
    for side in ("source", "target"):
        for kind in ("embedding", "positions"):
            name = f"{side}_{kind}"
            assert getattr(again, name) is again.get_layer(name)
    assert [layer.name for layer in again.encoders] == ["encoder_0", "encoder_1"]
    assert [layer.name for layer in again.decoders] == ["decoder_0", "decoder_1"]


@pytest.mark.parametrize("attention", SMALL)
def test_encode_and_decode_are_the_model(attention):
    model = make(attention, num_layers=2)
    want = model.predict(IDS, verbose=0)
    memory, encoded = model.encode(IDS["source"], return_details=True)
    mask = IDS["source"] != 0
    got, decoded = model.decode(IDS["target"], memory, mask, return_details=True)
    np.testing.assert_allclose(to_numpy(got), want, rtol=1e-4, atol=1e-5)
    assert set(encoded) == {"encoder_0", "encoder_1"}
    assert set(decoded) == {f"decoder_{i}.{kind}" for i in (0, 1) for kind in ("self", "cross")}
    scores = "E_LM" if attention == "plga" else "scores"
    assert decoded["decoder_1.cross"][scores].shape == (2, 2, 3, 4)
    plain = model.decode(IDS["target"], model.encode(IDS["source"]), mask)
    np.testing.assert_allclose(to_numpy(plain), want, rtol=1e-4, atol=1e-5)
    assert (model.source_vocabulary_size, model.target_vocabulary_size) == (9, 11)


def test_encoding_drops_nothing_out_unless_training():
    model = make(dropout=0.5)
    first, second = (to_numpy(model.encode(IDS["source"], training=False)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    trained = to_numpy(model.encode(IDS["source"], training=True))
    assert np.abs(trained - first).max() > 1e-3
    # A search drops nothing out, even where its caller trains.
    search = BeamSearch(model, 1, extra_tokens=2)

    class Caller(keras.layers.Layer):
        def call(self, ids, training=None):
            return search.start(ids).context["memory"][0]["keys"]

    keys = to_numpy(Caller()(IDS["source"], training=True))
    want = to_numpy(model.decoders[0].memory_state(first, IDS["source"] != 0)["keys"])
    np.testing.assert_allclose(keys, want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_it_trains_and_comes_back(tmp_path):
    model = make(feedforward="tensor_train", position_encoding="learned", max_length=6)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=keras.backend.backend() == "jax")
    before = model.get_weights()
    model.fit(IDS, np.array([[4, 6, 3], [5, 3, 3]]), epochs=2, verbose=0)
    moved = [(a != b).any() for a, b in zip(before, model.get_weights(), strict=True)]
    names = [w.path for w, m in zip(model.weights, moved, strict=True) if not m]
    # Biases of keys have no gradient: the softmax takes them out.
    assert all("key/bias" in name or "seed" in name for name in names), names
    loaded = saved_and_loaded(model, IDS, tmp_path)
    assert isinstance(loaded, Translator)
    assert isinstance(loaded.encoders[0].hidden, layers.TTDense)
    assert isinstance(loaded.source_positions, layers.LearnedPositionEncoding)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow exports")
@pytest.mark.slow
def test_model_export_keeps_any_batch_and_length(tmp_path):
    import tensorflow as tf

    model = make()
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    for ids in (IDS, {name: array[:1, :2] for name, array in IDS.items()}):
        want = to_numpy(model(ids))
        got = loaded.serve({name: tf.constant(array) for name, array in ids.items()})
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)


DECODERS = [name for name, entry in ATTENTIONS.items() if entry.can_be_causal]
# Of encoders some; most are in a decoder, too.
ENCODERS = ["tsa", "tga", "rgtn", "tn", "none", "layer"]


# Padding of the source and later tokens of the target change nothing, whatever attends.
# Every encoder's attention with two decoders', and every decoder's with the default encoder's.
PAIRS = [
    *((None, decoder) for decoder in (None, *DECODERS)),
    *((encoder, None) for encoder in ENCODERS),
    *((encoder, "rgtn") for encoder in ENCODERS),
]
FAST = ((None, "tsa"), ("none", None))


@pytest.mark.parametrize(("encoder_attention", "decoder_attention"), slow_but(FAST, PAIRS))
def test_attentions_of_encoder_and_decoder(encoder_attention, decoder_attention):
    if encoder_attention == "layer":
        encoder_attention = layers.GraphTensorNetwork(damping=0.3)
    options = SMALL["plga"] if decoder_attention == "plga" else None
    model = make(
        encoder_attention=encoder_attention,
        decoder_attention=decoder_attention,
        decoder_options=options,
        num_layers=2,
    )
    want = to_numpy(model(IDS))
    alone = {"source": IDS["source"][:1, :3], "target": IDS["target"][:1, :2]}
    got = to_numpy(model(alone))
    np.testing.assert_allclose(got, want[:1, :2], rtol=1e-4, atol=1e-5)
    changed = {**IDS, "source": IDS["source"][:, ::-1]}
    assert np.abs(to_numpy(model(changed)) - want).max() > 1e-4
    # Step by step, the search finds what teacher forcing finds most probable.
    ids = BeamSearch(model, 1, end_id=None, extra_tokens=2)(IDS["source"][1:]).ids[0]
    logits = to_numpy(model({"source": IDS["source"][1:], "target": ids[:, :-1]}))
    assert logits[0].argmax(-1).tolist() == ids[0, 1:].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder_attention": "lstm"}, "encoder_attention='lstm'"),
        ({"decoder_attention": "causal"}, r"'plga'.*decoder_attention='causal'"),
        ({"decoder_attention": layers.GraphTensorNetwork()}, "self_attention=<GraphTensorNetwork"),
        ({"encoder_options": {"damping": 0.5}}, r"encoder_attention.*apply.*'damping': 0\.5"),
        ({"decoder_options": {"damping": 0.5}}, r"decoder_attention.*apply.*'damping': 0\.5"),
        (
            {"encoder_attention": layers.GraphTensorNetwork(), "encoder_options": {"damping": 0.5}},
            r"if `encoder_attention` is a layer.*'damping': 0\.5",
        ),
        ({"feedforward": "conv"}, "feedforward='conv'"),
        ({"attention": "tsa"}, "attention='tsa'"),
        ({"num_heads": 3, "model_dim": 8}, "num_heads=3, model_dim=8"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"attention": layers.PowerLawGraphAttention(2), "residual_units": 2}, "residual_units"),
        ({"position_encoding": "learned"}, "max_length=None"),
        ({"position_encoding": "rotary"}, "position_encoding='rotary'"),
    ],
)
def test_errors_name_what_was_given(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
