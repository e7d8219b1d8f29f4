import keras
import numpy as np
import pytest
from conformance import saved_and_loaded, to_numpy

from keras_tnattn.layers import LocalEmbedding
from keras_tnattn.models import deep_tensor_network, text_classifier


@pytest.mark.slow
def test_classifies_chains_and_reloads(tmp_path):
    model = deep_tensor_network(
        3, LocalEmbedding(), num_layers=2, bond_dim=3, skip=True, boundary="open"
    )
    x = np.random.default_rng(0).uniform(size=(4, 9)).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    before = model.get_weights()
    model.fit(x, np.arange(4) % 3, verbose=0)
    assert all((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
    logits = model.predict(x, verbose=0)
    assert logits.shape == (4, 3)
    saved_and_loaded(model, x, tmp_path)


def test_sequence_head_starts_as_the_identity():
    embedding = LocalEmbedding("one_hot", num_ids=2)
    model = deep_tensor_network(2, embedding, 3, head="sequence", initial_deviation=0.0)
    ids = np.random.default_rng(0).integers(0, 2, (2, 1000))
    assert (to_numpy(model(ids)).argmax(-1) == ids).all()


@pytest.mark.slow
def test_a_deep_stack_of_a_thousand_sites_has_a_gradient_to_follow():
    model = deep_tensor_network(
        2, LocalEmbedding("one_hot", num_ids=2), num_layers=4, head="sequence"
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-3), loss)
    ids = np.random.default_rng(0).integers(0, 2, (4, 1000))
    start, before = model.get_weights(), float(model.test_on_batch(ids, 1 - ids))
    model.train_on_batch(ids, 1 - ids)
    slopes = [(a - b) / 1e-3 for a, b in zip(start, model.get_weights(), strict=True)]
    square = sum(float(np.sum(np.square(slope, dtype="float64"))) for slope in slopes)
    assert square > 1e-2
    # So short a step down the gradient lowers the loss by what the gradient promises.
    promised = 1e-5
    model.set_weights([a - promised / square * s for a, s in zip(start, slopes, strict=True)])
    after = float(model.test_on_batch(ids, 1 - ids))
    assert before - after == pytest.approx(promised, rel=0.5)


@pytest.mark.parametrize("order", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("embedding", "inputs"),
    [
        ({"feature_map": "trigonometric"}, np.linspace(0, 1, 20).reshape(2, 10)),
        ({"feature_map": "learned", "num_ids": 4}, np.arange(20).reshape(2, 10) % 4),
    ],
)
def test_the_decoder_gives_back_the_input_of_an_identity(embedding, inputs, order, tmp_path):
    options = {"num_layers": 2, "bond_dim": 2, "head": "decoder", "initial_deviation": 0.0}
    model = deep_tensor_network(None, LocalEmbedding(**embedding, order=order), **options)
    outputs = to_numpy(model(inputs))
    if "num_ids" in embedding:
        assert (outputs.argmax(-1) == inputs).all()
    else:
        np.testing.assert_allclose(outputs, inputs, atol=1e-4)
    saved_and_loaded(model, inputs, tmp_path)


def test_skip_and_normalization():
    x = np.random.default_rng(0).uniform(size=(2, 5)).astype("float32")
    for skip in (False, True):
        for normalize_features in (False, True):
            model = deep_tensor_network(
                3, LocalEmbedding(), bond_dim=2, skip=skip, normalize_features=normalize_features
            )
            embedded = to_numpy(model.layers[1](x))
            want = to_numpy(model.get_layer("attention_0")(embedded)) + skip * embedded
            if normalize_features:
                want = want / np.sqrt((want**2).sum(-1, keepdims=True))
            want = to_numpy(model.get_layer("mps")(want))
            np.testing.assert_allclose(to_numpy(model(x)), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("mps", ["unit_0", "unit_1", "unit_2"]),
        ("sequence", ["unit_0", "unit_1"]),  # its last attention returns logits
        ("decoder", ["unit_0", "unit_1", "unit_2"]),
    ],
)
def test_the_layers_that_are_normalized(head, expected):
    outputs = None if head == "decoder" else 3
    model = deep_tensor_network(outputs, LocalEmbedding(), num_layers=3, bond_dim=2, head=head)
    assert [layer.name for layer in model.layers if layer.name.startswith("unit_")] == expected


def test_the_last_attention_has_the_features_of_the_output():
    for head, outputs, features in (("mps", 3, 5), ("sequence", 3, 3), ("decoder", None, 2)):
        model = deep_tensor_network(
            outputs, LocalEmbedding(), num_layers=2, bond_dim=2, head=head, hidden_dim=5
        )
        shapes = [model.get_layer(f"attention_{n}").output.shape for n in range(2)]
        assert [shape[-1] for shape in shapes] == [5, features]


def test_tensors_per_site():
    model = deep_tensor_network(3, LocalEmbedding(), bond_dim=2, num_sites=9, uniform=False)
    assert model.get_layer("attention_0").attention_tensor.shape == (9, 2, 2, 2)
    assert model.get_layer("mps").site_tensor.shape == (9, 2, 2, 2)
    assert model(np.zeros((2, 9), "float32")).shape == (2, 3)


def test_patches():
    model = deep_tensor_network(10, LocalEmbedding(), num_sites=16, num_features=4, bond_dim=2)
    assert model.input_shape == (None, 16, 4)
    assert model(np.zeros((2, 16, 4), "float32")).shape == (2, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "dense"}, "head='dense'"),
        ({"num_layers": 0}, "layers=0"),
        ({"head": "decoder"}, "head='decoder', num_outputs=2"),
        ({"uniform": False}, "num_sites=None"),
    ],
)
def test_errors_name_what_was_given(options, message):
    with pytest.raises(ValueError, match=message):
        deep_tensor_network(2, LocalEmbedding(), **options)


@pytest.mark.slow
def test_text_classifier_takes_it_by_name():
    model = text_classifier(50, 3, "tn", embedding_dim=6, bond_dim=3)
    assert model.get_layer("attention").attention_tensor.shape == (3, 3, 6, 6)
    model.compile("adam", "sparse_categorical_crossentropy")
    ids = np.array([[4, 7, 9, 0, 0], [1, 2, 0, 0, 0]])
    before = to_numpy(model(ids))
    np.testing.assert_allclose(to_numpy(model(ids[:, :3])), before, rtol=1e-5)
    model.fit(ids, np.array([0, 2]), verbose=0)
    assert np.isfinite(to_numpy(model(ids))).all()
