import keras
import numpy as np
import pytest
from keras import ops

from keras_tnattn import TensorizedSpectralAttention
from keras_tnattn.models import text_classifier

SIZES = {"tsa": 16, "tga": 16, "dpa": 6, "ada": 6, "plga": 8, "sdpa": 6}


def texts():
    ids = np.random.default_rng(0).integers(1, 50, (6, 12))
    ids[1, 5:] = 0
    ids[2] = 0
    return ids.astype("int32"), np.array([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize("attention", SIZES)
def test_padding_changes_nothing_and_an_empty_text_is_finite(attention):
    ids, labels = texts()
    options = {"residual_units": 1, "residual_dim": 5} if attention == "plga" else {}
    model = text_classifier(50, 3, attention, embedding_dim=SIZES[attention], **options)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(ids, labels, epochs=2, verbose=0)
    assert all(np.isfinite(ops.convert_to_numpy(w)).all() for w in model.weights)
    probabilities = model.predict(ids, verbose=0)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    padded = model.predict(np.pad(ids, ((0, 0), (0, 5))), verbose=0)
    np.testing.assert_allclose(padded, probabilities, rtol=1e-4, atol=1e-6)
    # Without the mask the padding of the second text would count.
    alone = model.predict(ids[1:2, :5], verbose=0)
    np.testing.assert_allclose(probabilities[1:2], alone, rtol=1e-4, atol=1e-6)


def test_the_seven_layers():
    model = text_classifier(
        50, 3, TensorizedSpectralAttention(3, name="mine"), 16, dropout_rate=0.2
    )
    kinds = [type(layer).__name__ for layer in model.layers]
    assert kinds == [
        *("InputLayer", "Embedding", "TensorizedSpectralAttention", "MaskedAveragePooling1D"),
        *("Dropout", "Dense", "Dropout", "Dense"),
    ]
    assert model.get_layer("mine").num_heads == 3
    assert model.get_layer("hidden").units == 20
    assert model.get_layer("pooling_dropout").rate == 0.2
    assert model.input_shape == (None, None)
    assert text_classifier(50, 3, sequence_length=7).input_shape == (None, 7)


def test_options_reach_the_attention():
    attention = text_classifier(50, 3, "tsa", damping=0.3, num_heads=4).get_layer("attention")
    assert (attention.damping, attention.num_heads) == (0.3, 4)


def test_probabilities_are_float32_under_mixed_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = text_classifier(50, 3)
    assert model.get_layer("attention").compute_dtype == "bfloat16"
    assert keras.backend.standardize_dtype(model(texts()[0]).dtype) == "float32"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: text_classifier(1, 3), "vocabulary_size=1"),
        (lambda: text_classifier(50, 1), "num_classes=1"),
        (lambda: text_classifier(50, 3, "lstm"), "attention='lstm'"),
        (
            lambda: text_classifier(50, 3, TensorizedSpectralAttention(2), damping=0.5),
            r"attention_options=\{'damping': 0\.5\}",
        ),
    ],
)
def test_errors_name_what_was_given(make, message):
    with pytest.raises(ValueError, match=message):
        make()
