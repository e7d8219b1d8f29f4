import keras
import numpy as np
import oracles
import pytest
from conformance import to_numpy
from slow_cases import slow_but

from keras_tnattn import TensorizedSpectralAttention
from keras_tnattn.models import text_classifier
from keras_tnattn.models.attentions import ATTENTIONS
from keras_tnattn.ops.time_graph import Geometric

SIZES = {"tsa": 16, "tga": 16, "plga": 8}  # of the others 6


def texts():
    ids = np.random.default_rng(0).integers(1, 50, (6, 12))
    ids[1, 5:] = 0
    ids[2] = 0
    return ids.astype("int32"), np.array([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize("attention", slow_but(["tsa", "rgtn"], ATTENTIONS))
def test_padding_changes_nothing_and_an_empty_text_is_finite(attention):
    ids, labels = texts()
    options = {"residual_units": 1, "residual_dim": 5} if attention == "plga" else {}
    model = text_classifier(50, 3, attention, embedding_dim=SIZES.get(attention, 6), **options)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(ids, labels, epochs=2, verbose=0)
    assert all(np.isfinite(to_numpy(w)).all() for w in model.weights)
    probabilities = model.predict(ids, verbose=0)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    padded = model.predict(np.pad(ids, ((0, 0), (0, 5))), verbose=0)
    np.testing.assert_allclose(padded, probabilities, rtol=1e-4, atol=1e-6)
    # Without the mask the padding of the second text would count.
    alone = to_numpy(model(ids[1:2, :5]))
    np.testing.assert_allclose(probabilities[1:2], alone, rtol=1e-4, atol=1e-6)


def test_padding_changes_nothing_if_words_are_tensors_of_many_axes():
    model = text_classifier(50, 3, "tga", embedding_dim=128)  # 4 x 2 x 2 x 2 x 2 x 2 x 2
    ids, _ = texts()
    probabilities = to_numpy(model(ids))
    padded = model.predict(np.pad(ids, ((0, 0), (0, 5))), verbose=0)
    np.testing.assert_allclose(padded, probabilities, rtol=1e-4, atol=1e-6)


def test_the_seven_layers():
    model = text_classifier(50, 3, TensorizedSpectralAttention(3, name="mine"), 16, dropout=0.2)
    kinds = [type(layer).__name__ for layer in model.layers]
    assert kinds == [
        *("InputLayer", "TokenEmbedding", "TensorizedSpectralAttention", "MaskedAveragePooling1D"),
        *("Dropout", "Dense", "Dropout", "Dense"),
    ]
    assert model.get_layer("mine").num_heads == 3
    assert model.get_layer("hidden").units == 20
    assert model.get_layer("pooling_dropout").rate == 0.2
    assert model.input_shape == (None, None)
    assert text_classifier(50, 3, sequence_length=7).input_shape == (None, 7)


def test_stacked_linear_filters_are_the_polynomial_of_their_graph():
    # Remark 5 of the paper: two layers I + A reach the neighbors of the neighbors. With the
    # residual sum each is 2 I + A, together 4 I + 4 A + A^2.
    model = text_classifier(
        50, 3, "rgtn", embedding_dim=4, num_layers=2, damping=0.5, receive_from="both"
    )
    ids = np.random.default_rng(0).integers(1, 50, (2, 7))
    inside = keras.Model(model.input, model.get_layer("residual_1").output)
    x = to_numpy(model.get_layer("embedding")(ids)).astype("float64")
    graph = oracles.bidirectional_adjacency(7, 0.5)
    polynomial = 4 * np.eye(7) + 4 * graph + graph @ graph
    np.testing.assert_allclose(to_numpy(inside(ids)), polynomial @ x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "attention", slow_but(["tsa", "plga"], ["tsa", "plga", "tga", "tn", "sdpa"])
)
def test_stacked_attentions_keep_the_size_and_ignore_padding(attention):
    options = {"residual_units": 1, "residual_dim": 5} if attention == "plga" else {}
    model = text_classifier(50, 3, attention, embedding_dim=8, num_layers=2, **options)
    assert model.get_layer("residual_1").output.shape[:2] == (None, None)
    name = "residual" if attention in ("sdpa", "plga") else "attention"
    first, second = (model.get_layer(f"{name}_{i}").weights[0] for i in range(2))
    assert (to_numpy(first) != to_numpy(second)).any()
    ids, _ = texts()
    want = to_numpy(model(ids[1:2, :5]))
    got = to_numpy(model(ids))
    np.testing.assert_allclose(got[1:2], want, rtol=1e-4, atol=1e-6)


def test_no_attention_is_the_average_of_the_words():
    model = text_classifier(50, 3, "none", embedding_dim=8, feedforward_dim=None)
    assert not any(layer.name.startswith("hidden") for layer in model.layers)
    assert model.count_params() == 50 * 8 + 8 * 3 + 3
    ids = np.array([[3, 4, 0], [4, 3, 0]])
    first, second = to_numpy(model(ids))
    np.testing.assert_allclose(first, second, rtol=1e-6)


def test_no_attention_is_the_same_however_often_it_is_stacked():
    one, three = (text_classifier(9, 2, "none", num_layers=n) for n in (1, 3))
    three.set_weights(one.get_weights())
    ids = np.array([[3, 4, 5, 0]])
    outputs = (to_numpy(model(ids)) for model in (one, three))
    np.testing.assert_allclose(*outputs, rtol=1e-6)


def test_normalization_makes_the_size_of_the_average_irrelevant():
    model = text_classifier(50, 3, "none", embedding_dim=8, normalization=True)
    ids, _ = texts()
    embedding, outputs = model.get_layer("embedding"), []
    for _ in range(2):  # with weights so large that the epsilon of Keras, 0.001, is small
        embedding.set_weights([1000 * w for w in embedding.get_weights()])
        outputs.append(to_numpy(model(ids)))
    np.testing.assert_allclose(*outputs, rtol=1e-3, atol=1e-4)
    plain = text_classifier(50, 3, "none", embedding_dim=8)
    assert plain.count_params() == model.count_params() - 2 * 8


def test_a_layer_that_is_stacked_gets_weights_of_its_own():
    attention = TensorizedSpectralAttention(2, head_combination="mean", name="mine")
    model = text_classifier(50, 3, attention, embedding_dim=8, num_layers=2)
    layers = [model.get_layer(f"attention_{i}") for i in range(2)]
    assert attention not in layers
    assert all(layer.head_combination == "mean" for layer in layers)


def test_positions_and_a_tensor_train_head():
    options = {"feedforward": "tensor_train", "feedforward_tt_ranks": 3, "embedding_dim": 8}
    model = text_classifier(50, 3, position_encoding="learned", sequence_length=12, **options)
    assert model.get_layer("positions").max_length == 12
    assert model.get_layer("hidden").tt_ranks == 3
    assert type(model.get_layer("hidden")).__name__ == "TTDense"
    assert to_numpy(model(texts()[0])).shape == (6, 3)
    model = text_classifier(50, 3, embedding_dim=8, position_encoding="sinusoidal")
    assert type(model.get_layer("positions")).__name__ == "SinusoidalPositionEncoding"


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [("dense", 50 * 8), ("low_rank", 3 * (50 + 8)), ("tensor_train", 6 * 3 + 18 * 4 + 6 * 5)],
)
def test_embeddings_of_every_kind(kind, attributes):
    model = text_classifier(50, 3, embedding_dim=8, embedding=kind, embedding_tt_ranks=3)
    embedding = model.get_layer("embedding")
    assert embedding.count_params() == attributes
    assert to_numpy(embedding.compute_mask(np.array([[5, 0]]))).tolist() == [[True, False]]
    assert to_numpy(model(texts()[0])).shape == (6, 3)


def test_more_heads_than_features_have_a_feature_each():
    assert ATTENTIONS["sdpa"].make(4, 4, name="attention").key_dim == 1
    assert ATTENTIONS["sdpa"].make(4, 2, name="attention").key_dim == 1


def test_the_defaults_are_those_of_the_paper():
    model = text_classifier(50, 3)
    assert model.get_layer("embedding").output_dim == 64
    assert model.get_layer("attention").num_heads == 2
    assert model.get_layer("attention").count_params() == 320
    assert model.get_layer("hidden_dropout").rate == 0.1


def test_options_reach_the_attention():
    attention = text_classifier(50, 3, "tsa", damping=0.3, num_heads=4).get_layer("attention")
    assert attention.time_graphs == (Geometric(0.3),) * 4


def test_word_dropout_drops_whole_words_in_training_and_keeps_the_mask():
    model = text_classifier(50, 3, "dpa", embedding_dim=6, word_dropout=0.4)
    inside = keras.Model(model.input, model.get_layer("word_dropout").output)
    ids = np.random.default_rng(0).integers(1, 50, (64, 20)).astype("int32")
    words = to_numpy(model.get_layer("embedding")(ids))
    np.testing.assert_array_equal(to_numpy(inside(ids)), words)
    dropped = to_numpy(inside(ids, training=True))
    nonzero = (dropped != 0).any(axis=-1)
    np.testing.assert_allclose(dropped, words * nonzero[..., None] / 0.6, rtol=1e-5)
    assert abs(nonzero.mean() - 0.6) < 0.06

    ids, labels = texts()
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(ids, labels, verbose=0)
    # Without the mask the padding of the second text would count.
    alone = to_numpy(model(ids[1:2, :5]))
    np.testing.assert_allclose(to_numpy(model(ids))[1:2], alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("attention", slow_but(["tn"], ATTENTIONS))
def test_words_are_learned_while_others_are_dropped(attention):
    model = text_classifier(50, 3, attention, embedding_dim=6, word_dropout=0.5)
    ids = np.random.default_rng(0).integers(1, 50, (8, 20)).astype("int32")
    embedding = model.get_layer("embedding")
    before = embedding.get_weights()[0]
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(ids, np.arange(8) % 3, verbose=0)
    changed = (embedding.get_weights()[0] != before).any(axis=-1)
    # About half of the words in sight are kept.
    assert changed.sum() > 0.3 * len(np.unique(ids))


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
        (lambda: text_classifier(50, 3, num_layers=0), "num_layers=0"),
        (lambda: text_classifier(50, 3, position_encoding="learned"), "max_length=None"),
        (lambda: text_classifier(50, 3, max_length=7), "max_length=7, position_encoding=None"),
        (
            lambda: text_classifier(50, 3, position_encoding="sinusoidal", max_length=7),
            "max_length=7, position_encoding='sinusoidal'",
        ),
        (lambda: text_classifier(50, 3, embedding_tt_ranks=0), "embedding_tt_ranks=0"),
        (lambda: text_classifier(50, 3, feedforward_tt_ranks=-3), "feedforward_tt_ranks=-3"),
        (lambda: text_classifier(50, 3, feedforward="sparse"), "feedforward='sparse'"),
        (
            lambda: text_classifier(50, 3, feedforward_dim=None, feedforward="tensor_train"),
            "feedforward_dim=None",
        ),
        (lambda: text_classifier(50, 3, embedding="sparse"), "embedding='sparse'"),
        (lambda: text_classifier(50, 3, word_dropout=-0.1), "-0.1"),
        (
            lambda: text_classifier(50, 3, TensorizedSpectralAttention(2), damping=0.5),
            r"attention_options=\{'damping': 0\.5\}",
        ),
    ],
)
def test_errors_name_what_was_given(make, message):
    with pytest.raises(ValueError, match=message):
        make()
