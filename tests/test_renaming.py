"""Old names of public arguments work and warn; saved files use them without a warning."""

import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_tnattn import layers
from keras_tnattn.models import Translator, text_classifier, translator
from keras_tnattn.renaming import new_names, renamed_arguments, renamed_attributes

TOKENS = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
IDS = np.array([[2, 5, 3]], "int32")
PLGA = {"residual_units": 1, "residual_dim": 4}


def small_translator():
    return translator(9, 9, "sdpa", model_dim=8, num_heads=2, feedforward_dim=4)


def test_a_renamed_argument_by_either_name():
    @renamed_arguments(rate="dropout", units="dim")
    def made(size, dropout=0.0, dim=None):
        return size, dropout, dim

    with pytest.warns(DeprecationWarning, match="argument rate of .*made is now called dropout"):
        assert made(3, rate=0.5) == (3, 0.5, None)
    with pytest.warns(DeprecationWarning, match="is now called") as caught:
        assert made(size=3, rate=0.5, units=4) == (3, 0.5, 4)
    assert len(caught) == 2
    assert {w.filename for w in caught} == {__file__}
    assert made(3, dropout=0.5) == (3, 0.5, None)
    with pytest.raises(TypeError, match="Expected dropout, whose old name is rate, once"):
        made(3, dropout=0.1, rate=0.5)


def test_names_of_a_config_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert new_names({"a": "b"}, {"a": 1, "c": 2}, "x", stacklevel=None) == {"b": 1, "c": 2}


def test_a_renamed_attribute():
    get = renamed_attributes(__name__, OLD="TOKENS")
    with pytest.warns(DeprecationWarning, match="OLD is now called TOKENS"):
        assert get("OLD") is TOKENS
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        get("other")


CONSTRUCTORS = {
    "text_classifier.dropout_rate": (
        lambda **o: text_classifier(9, 2, "none", **o),
        lambda model: model.get_layer("pooling_dropout").rate,
        ("dropout_rate", "dropout", 0.3),
    ),
    "text_classifier.hidden_units": (
        lambda **o: text_classifier(9, 2, "none", **o),
        lambda model: model.get_layer("hidden").units,
        ("hidden_units", "feedforward_dim", 7),
    ),
    "text_classifier.embedding_ranks": (
        lambda **o: text_classifier(9, 2, "none", embedding="tensor_train", **o),
        lambda model: model.get_layer("embedding").tt_ranks,
        ("embedding_ranks", "embedding_tt_ranks", 3),
    ),
    "text_classifier.feedforward_ranks": (
        lambda **o: text_classifier(9, 2, "none", feedforward="tensor_train", **o),
        lambda model: model.get_layer("hidden").tt_ranks,
        ("feedforward_ranks", "feedforward_tt_ranks", 3),
    ),
    "translator.embedding_ranks": (
        lambda **o: translator(9, 9, model_dim=8, num_heads=1, embedding="low_rank", **PLGA, **o),
        lambda model: model.source_embedding.rank,
        ("embedding_ranks", "embedding_tt_ranks", 3),
    ),
    "translator.feedforward_ranks": (
        lambda **o: translator(9, 9, model_dim=8, num_heads=1, **PLGA, **o),
        lambda model: model.encoders[0].feedforward_tt_ranks,
        ("feedforward_ranks", "feedforward_tt_ranks", 3),
    ),
    "TransformerEncoder.feedforward_ranks": (
        lambda **o: layers.TransformerEncoder(layers.MultiHeadDotProductAttention(2), 4, **o),
        lambda layer: layer.feedforward_tt_ranks,
        ("feedforward_ranks", "feedforward_tt_ranks", 3),
    ),
    "TransformerDecoder.feedforward_ranks": (
        lambda **o: layers.TransformerDecoder(
            keras.layers.MultiHeadAttention(2, 4), keras.layers.MultiHeadAttention(2, 4), 4, **o
        ),
        lambda layer: layer.feedforward_tt_ranks,
        ("feedforward_ranks", "feedforward_tt_ranks", 3),
    ),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_an_old_name_of_an_option(name):
    make, read, (old, new, value) = CONSTRUCTORS[name]
    assert read(make(**{new: value})) == value
    with pytest.warns(DeprecationWarning, match=f"{old} of .* is now called {new}") as caught:
        assert read(make(**{old: value})) == value
    assert caught[0].filename == __file__


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_an_older_config_loads_without_a_warning(kind):
    attention = keras.layers.MultiHeadAttention(2, 4)
    if kind == "encoder":
        layer = layers.TransformerEncoder(attention, 4, feedforward_tt_ranks=3)
    else:
        layer = layers.TransformerDecoder(attention, attention, 4, feedforward_tt_ranks=3)
    config = layer.get_config()
    config["feedforward_ranks"] = config.pop("feedforward_tt_ranks")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(layer).from_config(config).feedforward_tt_ranks == 3


def test_old_names_of_call_arguments():
    plga = layers.PowerLawGraphAttention(2, **PLGA)
    with pytest.warns(DeprecationWarning, match="return_deductive .* called return_details"):
        _, details = plga(TOKENS, return_deductive=True)
    assert details.keys() == plga(TOKENS, return_details=True)[1].keys()
    encoder = layers.TransformerEncoder(plga, 4)
    with pytest.warns(DeprecationWarning, match="return_attention .* called return_details") as w:
        _, details = encoder(TOKENS, return_attention=True)
    assert "E_LM" in details
    assert w[0].filename == __file__
    tn = layers.TNAttention(bond_dim=2)
    _, details = tn(TOKENS, return_details=True)
    with pytest.warns(DeprecationWarning, match="return_local_weights .* called return_details"):
        _, local_weights = tn(TOKENS, return_local_weights=True)  # the tensor alone, as before
    np.testing.assert_array_equal(local_weights, details["local_weights"])
    with pytest.warns(DeprecationWarning, match="now called return_details"):
        assert tuple(tn(TOKENS, return_local_weights=False).shape) == TOKENS.shape


def test_old_names_of_the_methods_of_a_translator():
    model = small_translator()
    with pytest.warns(DeprecationWarning, match="return_attention of Translator.encode"):
        memory, details = model.encode(IDS, return_attention=True)
    assert set(details) == {"encoder_0"}
    for method in (model.decode, model.run_decoders):
        with pytest.warns(DeprecationWarning, match="now called return_details"):
            _, details = method(IDS, memory, return_attention=True)
        assert set(details) == {"decoder_0.self", "decoder_0.cross"}


SAVED = Path(__file__).parent / "data/saved_by_0.2.0.dev0"
OF_THIS_KERAS = tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 15)


@pytest.mark.skipif(not OF_THIS_KERAS, reason="Keras 3.15 wrote the files")
@pytest.mark.parametrize("name", ["translator", "classifier", "layers"])
def test_a_file_with_the_old_names_computes_what_it_did(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        if name == "layers":  # its call arguments have old names, and warn at Keras' code
            warnings.filterwarnings("ignore", "The argument .* is now called return_details")
        model = keras.models.load_model(SAVED / f"{name}.keras")
    assert isinstance(model, Translator) == (name == "translator")
    with np.load(SAVED / f"{name}.npz") as file:
        arrays = dict(file)
    inputs = {n.removeprefix("input_"): arrays.pop(n) for n in list(arrays) if "input_" in n}
    results = model.predict(inputs.get("inputs", inputs), verbose=0)
    results = results if isinstance(results, dict) else {"outputs": results}
    assert results.keys() == arrays.keys()
    for key, array in arrays.items():
        np.testing.assert_allclose(results[key], array, rtol=1e-4, atol=1e-5, err_msg=key)


def test_numbers_are_numbers():
    attention = layers.PowerLawGraphAttention(
        2, **PLGA, dropout=0.1, residual_dropout=0.2, query_dropout=0.3, key_dropout=0.4
    )
    attention.build((None, None, 8))
    names = ("dropout", "residual_dropout", "query_dropout", "key_dropout")
    assert [getattr(attention, name) for name in names] == [0.1, 0.2, 0.3, 0.4]
    assert attention.residuals[0].dropout == 0.2
