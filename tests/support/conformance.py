"""What every public layer must pass, on every backend."""

import inspect
import json

import keras
import numpy as np
from keras import ops


def to_numpy(x):
    return keras.tree.map_structure(ops.convert_to_numpy, x)


def tokens(*shape, seed=0):
    """Returns normal random numbers, such as the tokens `(B, L, d)` of a batch."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def built(make, shape):
    """Returns a layer whose weights are random numbers."""
    layer, rng = make(), np.random.default_rng(0)
    layer.build(shape)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape) / 3)
    return layer


def relative_error(outputs, expected):
    return np.linalg.norm(outputs - expected) / np.linalg.norm(expected)


def assert_same_arrays(arrays, expected, **tolerances):
    check = np.testing.assert_allclose if tolerances else np.testing.assert_array_equal
    for array, other in zip(arrays, expected, strict=True):
        check(array, other, **tolerances)


def saved_and_loaded(model, inputs, folder):
    """Returns a model from its file, which computes what the saved one does."""
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    # Without compilation, which takes most of the time of small models.
    results, expected = (keras.tree.flatten(to_numpy(x(inputs))) for x in (loaded, model))
    assert_same_arrays(results, expected)
    return loaded


def check_layer(make_layer, inputs, tmp_path, moves_every_weight=True):
    """Checks a layer on real `inputs`, `(B, ...)` with at least two tokens if `(B, L, ...)`.

    Args:
        make_layer: Function without arguments that makes the layer, not built.
        inputs: Float array; its batch axis, and the token axis if it has three, may be unknown.
        tmp_path: Folder for the saved model.
        moves_every_weight: Whether one step of training must change each weight.
    """
    _check_config(make_layer)
    _check_shapes(make_layer, inputs)
    _check_saved_model(make_layer, inputs, tmp_path)
    # Without compilation JAX runs operation by operation: nobody trains so, and it takes minutes.
    check_fit(make_layer, inputs, moves_every_weight, keras.backend.backend() == "jax")
    check_fit_of_unbuilt_models(make_layer, inputs)
    _check_mixed_precision(make_layer, inputs)
    _check_mask_goes_on(make_layer, inputs)


def _check_config(make_layer):
    layer = make_layer()
    config = layer.get_config()
    arguments = set(inspect.signature(type(layer)).parameters) - {"args", "kwargs"}
    assert arguments <= set(config), f"missing in the config: {arguments - set(config)}"
    config = json.loads(json.dumps(config))
    again = type(layer).from_config(config)
    assert json.loads(json.dumps(again.get_config())) == config


def _check_shapes(make_layer, inputs):
    unknown = [None, *inputs.shape[1:]]
    if inputs.ndim > 2:
        unknown[1] = None
    for shape in (inputs.shape, tuple(unknown)):
        symbolic = make_layer()(keras.Input(batch_shape=shape))
        real = make_layer()(inputs)
        assert len(symbolic.shape) == len(real.shape)
        for expected, size in zip(real.shape, symbolic.shape, strict=True):
            assert size is None or size == expected
        assert symbolic.shape[-1] == real.shape[-1]
        assert symbolic.dtype == keras.backend.standardize_dtype(real.dtype)


def _check_saved_model(make_layer, inputs, tmp_path):
    layer = make_layer()
    loaded = saved_and_loaded(_model(layer, inputs), inputs, tmp_path)
    assert loaded.layers[0].get_config() == layer.get_config()


def check_fit(make_layer, inputs, moves_every_weight=True, jit_compile=True):
    """Checks that training moves the weights of a layer and keeps them finite."""
    layer = make_layer()
    model = _model(layer, inputs, keras.layers.Dense(1))
    model.compile("adam", "mse", jit_compile=jit_compile)
    before = layer.get_weights()
    model.fit(inputs, np.ones(model.compute_output_shape(inputs.shape)), epochs=2, verbose=0)
    for weight, old in zip(layer.weights, before, strict=True):
        new = ops.convert_to_numpy(weight)
        assert np.isfinite(new).all(), weight.path
        if moves_every_weight and weight.trainable:
            assert (new != old).any(), f"{weight.path} did not move"


class SubclassedModel(keras.Model):
    """Calls its layers one after the other, and has no shape before it is called."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = list(parts)

    def call(self, inputs):
        for part in self.parts:
            inputs = part(inputs)
        return inputs


def check_fit_of_unbuilt_models(make_layer, inputs):
    """Checks that a layer can be built by `fit`, which JAX traces meanwhile."""
    targets = np.ones((*make_layer()(inputs).shape[:-1], 1))
    for kind in (lambda *parts: keras.Sequential(parts), SubclassedModel):
        model = kind(make_layer(), keras.layers.Dense(1))
        model.compile("adam", "mse", jit_compile=keras.backend.backend() == "jax")
        model.fit(inputs, targets, verbose=0)
        assert model.layers[0].built
        for variable in model.variables:
            assert np.isfinite(to_numpy(variable)).all(), variable.path


def _check_mixed_precision(make_layer, inputs):
    policies = {"mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}
    for (policy, dtype), other in zip(policies.items(), reversed(policies), strict=True):
        keras.config.set_dtype_policy(policy)
        layer = make_layer()
        keras.config.set_dtype_policy(other)  # which no sublayer may take when it is built
        outputs = layer(inputs)
        keras.config.set_dtype_policy("float32")
        assert layer.dtype_policy.name == policy
        assert not [x.path for x in layer._flatten_layers() if x.dtype_policy.name == other]
        assert keras.backend.standardize_dtype(outputs.dtype) == dtype
        assert np.isfinite(to_numpy(ops.cast(outputs, "float32"))).all()
        assert {w.dtype for w in layer.trainable_weights} <= {"float32"}


def _check_mask_goes_on(make_layer, inputs):
    layer = make_layer()
    assert layer.supports_masking
    outputs = layer(inputs)
    if inputs.ndim > 2 and len(outputs.shape) > 2:
        # As a Keras model hands it on: with the tensor, from layer to layer.
        masking = keras.layers.Masking(100.0)
        tokens = inputs.reshape(*inputs.shape[:2], -1).copy()
        tokens[:, 1] = 100.0
        mask = masking.compute_mask(tokens)
        assert to_numpy(layer.compute_mask(inputs, mask)).tolist() == to_numpy(mask).tolist()
        assert not to_numpy(mask)[:, 1].any()


def _model(layer, inputs, *head):
    """A model of unknown batch and length around the layer."""
    shape = inputs.shape[1:] if inputs.ndim == 2 else (None, *inputs.shape[2:])
    return keras.Sequential([keras.Input(shape), layer, *head])


def check_self_attention(make_layer, inputs, tmp_path, **kwargs):
    """Checks a layer `(B, L, ...) -> (B, L, ...)` with a mask and attention scores on top."""
    check_layer(make_layer, inputs, tmp_path, **kwargs)
    check_padding_changes_nothing(make_layer(), inputs)
    _check_scores(make_layer(), inputs)


def check_padding_changes_nothing(layer, inputs):
    """Checks that a masked token neither sends nor receives, whatever it holds."""
    batch, length = inputs.shape[:2]
    expected = to_numpy(layer(inputs))
    rng = np.random.default_rng(1)
    padding = 100 * rng.normal(size=(batch, 3, *inputs.shape[2:])).astype("float32")
    padded = np.concatenate([inputs, padding], axis=1)
    mask = np.arange(length + 3) < length
    mask = np.broadcast_to(mask, (batch, length + 3))
    got = to_numpy(layer(padded, mask=ops.convert_to_tensor(mask)))
    np.testing.assert_allclose(got[:, :length], expected, rtol=1e-5, atol=1e-5)
    assert (got[:, length:] == 0).all()
    # A token that is masked within the text sends nothing either.
    mask = np.ones((batch, length), bool)
    mask[:, 1] = False
    poisoned = inputs.copy()
    poisoned[:, 1] = np.nan
    clean = to_numpy(layer(inputs, mask=ops.convert_to_tensor(mask)))
    got = to_numpy(layer(poisoned, mask=ops.convert_to_tensor(mask)))
    np.testing.assert_array_equal(got, clean)
    assert (got[:, 1] == 0).all()
    # A text of nothing but padding gives 0.
    empty = to_numpy(layer(inputs, mask=ops.zeros((batch, length), "bool")))
    assert (empty == 0).all()


def _check_scores(layer, inputs):
    batch, length = inputs.shape[:2]
    shape = (batch, layer.num_heads, length, length)
    outputs, scores = layer(inputs, return_attention_scores=True)
    assert tuple(scores.shape) == shape
    plain = to_numpy(layer(inputs, training=True))
    np.testing.assert_allclose(to_numpy(outputs), plain, rtol=1e-5, atol=1e-6)
    symbolic = layer(keras.Input(batch_shape=inputs.shape), return_attention_scores=True)
    assert tuple(symbolic[1].shape) == shape
    assert tuple(symbolic[0].shape) == tuple(outputs.shape)
    mask = np.ones((batch, length), bool)
    mask[0] = False
    masked, _ = layer(inputs, mask=ops.convert_to_tensor(mask), return_attention_scores=True)
    assert (to_numpy(masked)[0] == 0).all()
