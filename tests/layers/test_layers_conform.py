"""Every public layer passes the conformance checks."""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from conformance import check_fit, check_layer, check_self_attention, to_numpy
from slow_cases import slow_but

import keras_small
import keras_tnattn
from keras_small import storage
from keras_tnattn import layers
from keras_tnattn.models import translator
from keras_tnattn.ops.time_graph import Exponential, Geometric, PowerLaw, Window

TOKENS = np.random.default_rng(0).normal(size=(3, 7, 8)).astype("float32")
IDS = np.random.default_rng(0).integers(0, 22, (3, 7), "int32")
TENSOR_TOKENS = TOKENS.reshape(3, 7, 2, 2, 2)
LEARNED = Exponential(0.1, trainable=True)


def power_law_attention(**options):
    sizes = {"residual_units": 2, "residual_dense_layers": 1, "residual_dim": 5}
    return layers.PowerLawGraphAttention(2, **{**sizes, **options})


def transformer_encoder(attention):
    return layers.TransformerEncoder(attention, 5, activation="gelu")


def on(inputs, **makers):
    """Returns by their names functions that make a layer, and the layer's inputs."""
    return {name: (make, inputs) for name, make in makers.items()}


SELF_ATTENTIONS = on(
    TOKENS,
    tsa=lambda: layers.TensorizedSpectralAttention(2),
    tsa_one_head=lambda: layers.TensorizedSpectralAttention(1),
    tsa_order_4=lambda: layers.TensorizedSpectralAttention(2, filter_order=4),
    tsa_per_head=lambda: layers.TensorizedSpectralAttention(2, damping=(0.3, 0.8)),
    tsa_trained=lambda: layers.TensorizedSpectralAttention(
        2, filter_order=3, time_graph=[Geometric(c, trainable=True) for c in (0.3, 0.8)]
    ),
    tsa_project=lambda: layers.TensorizedSpectralAttention(3, 4, head_combination="project"),
    tsa_sum=lambda: layers.TensorizedSpectralAttention(
        2, 6, (2, 3), head_combination="sum", tt_input_shape=(2, 2, 2), tt_output_shape=(1, 2, 3)
    ),
    tsa_banded=lambda: layers.TensorizedSpectralAttention(2, damping=0.2, method="banded"),
    tsa_exponential=lambda: layers.TensorizedSpectralAttention(2, time_graph=LEARNED),
    tsa_window=lambda: layers.TensorizedSpectralAttention(2, time_graph=Window(2)),
    gat=lambda: layers.GraphAttention(2, 4),
    gat_mean=lambda: layers.GraphAttention(
        3, head_combination="mean", self_loops=False, activation="elu", negative_slope=0.1
    ),
    plga=power_law_attention,
    plga_causal=lambda: power_law_attention(causal_metric=True, key_dim=3),
    plga_keys=lambda: power_law_attention(metric_from="key", epsilon=0.01),
    pldr=lambda: layers.PLDRAttention(2, rotary="halves", residual_units=2, residual_dim=5),
    metric=lambda: layers.MetricAttention(
        2, use_metric=True, rotary="neighbors", negative_slope=0.2, key_dim=6
    ),
    dpa=lambda: layers.MultiHeadDotProductAttention(2),
    ada=lambda: layers.MultiHeadAdditiveAttention(2, 3),
) | on(
    TENSOR_TOKENS,
    tga_power_law=lambda: layers.TensorizedGraphAttention(2, time_graph=PowerLaw(1.5)),
    tga=lambda: layers.TensorizedGraphAttention(2),
    tga_project=lambda: layers.TensorizedGraphAttention(2, (3, 1, 2), head_combination="project"),
    tga_mean=lambda: layers.TensorizedGraphAttention(2, (3, 1, 2), head_combination="mean"),
)
OTHERS = (
    on(
        TOKENS,
        tt_dense=lambda: layers.TTDense(6, (2, 2, 2), (3, 1, 2), (2, 3)),
        swiglu=lambda: layers.SwiGLU(5),
        encoder_swiglu=lambda: layers.TransformerEncoder(
            layers.MultiHeadDotProductAttention(2), 8, feedforward="swiglu"
        ),
        low_rank_dense=lambda: storage.LowRankDense(6, 3, "relu", kernel_regularizer="l2"),
        low_rank_einsum=lambda: storage.LowRankEinsumDense(
            "abc,cd->abd", (None, 6), 3, bias_axes="d"
        ),
        tokens=lambda: layers.TensorizeTokens((4, 2)),
        tn=lambda: layers.TNAttention(3, bond_dim=3, kernel_regularizer="l2"),
        mps=lambda: layers.MPSClassifier(3, bond_dim=2, kernel_regularizer="l2"),
        gtn=layers.GraphTensorNetwork,
        gtn_general=lambda: layers.GraphTensorNetwork(3, receive_from="both"),
        gtn_oblique=lambda: layers.GraphTensorNetwork(3, projection="oblique", time_graph=LEARNED),
        embedding=lambda: layers.LocalEmbedding("trigonometric"),
        embedding_order_2=lambda: layers.LocalEmbedding("linear", order=2),
        tn_each=lambda: layers.TNAttention(3, bond_dim=3, normalize="each"),
        positions=lambda: layers.SinusoidalPositionEncoding(100, scale=True),
        encoder_plga=lambda: transformer_encoder(power_law_attention()),
        encoder_tsa=lambda: transformer_encoder(layers.TensorizedSpectralAttention(1)),
        encoder_tn=lambda: transformer_encoder(layers.TNAttention(bond_dim=2)),
        learned_positions=lambda: layers.LearnedPositionEncoding(9, scale=True),
        encoder_tensor_train=lambda: layers.TransformerEncoder(
            layers.MultiHeadDotProductAttention(2), 8, feedforward="tensor_train"
        ),
        pooling=layers.MaskedAveragePooling1D,
    )
    | on(
        TOKENS[:, 0],
        tt_dense_default=lambda: layers.TTDense(
            16, activation="relu", kernel_regularizer="l2", bias_constraint="non_neg"
        ),
    )
    | on(
        IDS,
        low_rank_embedding=lambda: layers.LowRankEmbedding(22, 6, 3, mask_zero=True),
        tt_embedding=lambda: layers.TTEmbedding(22, 30, (2, 3, 4), (5, 2, 3), (4, 6)),
        tt_embedding_reordered=lambda: layers.TTEmbedding(
            22, 8, mask_zero=True, reorder_rows=True, embeddings_regularizer="l2"
        ),
        adaptive_embedding=lambda: storage.AdaptiveEmbedding(
            22, 6, (4, 11), (5, 2), mask_zero=True, embeddings_regularizer="l2"
        ),
        adaptive_embedding_reordered=lambda: storage.AdaptiveEmbedding(
            22, 6, (4, 18), (5, 2), reorder_rows=True
        ),
    )
    | on(
        TENSOR_TOKENS, gtn_tensors=lambda: layers.GraphTensorNetwork(5, 0.5, receive_from="earlier")
    )
)


# Variants, whose code is for the greater part that of another case: only in the slow tests.
VARIANTS = {
    *("tsa_one_head", "tsa_project", "tsa_sum", "tsa_window"),
    *("tga_power_law", "tga_mean", "encoder_swiglu", "plga_causal"),
    *("gtn_tensors", "encoder_tsa", "encoder_tensor_train", "tsa_order_4"),
    *("tsa_exponential", "tga_project", "encoder_tn", "tn_each"),
    *("adaptive_embedding_reordered", "tt_embedding_reordered", "gtn_oblique", "tsa_trained"),
    *("tsa_per_head", "gat_mean", "tt_dense_default", "encoder_plga"),
    *("pldr", "plga_keys", "tsa_banded", "gtn_general"),
    *("embedding_order_2", "ada"),
}


def cases(names):
    return slow_but(names.keys() - VARIANTS, names)


@pytest.mark.parametrize("name", cases(SELF_ATTENTIONS))
def test_self_attention(name, tmp_path):
    make_layer, inputs = SELF_ATTENTIONS[name]
    check_self_attention(make_layer, inputs, tmp_path)


@pytest.mark.parametrize("name", cases(OTHERS))
def test_layer(name, tmp_path):
    make_layer, inputs = OTHERS[name]
    check_layer(make_layer, inputs, tmp_path)


# Those that differ most under XLA; the slow tests have all.
UNDER_XLA = ("tsa", "tt_embedding")


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="JAX always trains with XLA")
@pytest.mark.parametrize("name", slow_but(UNDER_XLA, SELF_ATTENTIONS | OTHERS))
def test_trains_under_xla(name):
    check_fit(*(SELF_ATTENTIONS | OTHERS)[name])


@pytest.mark.parametrize("name", SELF_ATTENTIONS | OTHERS)
def test_regularizers_and_constraints_reach_the_weights(name):
    make_layer, inputs = (SELF_ATTENTIONS | OTHERS)[name]
    kind, config = type(make_layer()), make_layer().get_config()
    for option in config:
        for ending, value in (("regularizer", "l1"), ("constraint", "unit_norm")):
            if option.endswith(f"_{ending}") and option != "activity_regularizer":
                layer = kind.from_config({**config, option: value})
                layer.build(inputs.shape)
                assert layer.get_config()[option]["class_name"] in ("L1", "UnitNorm")
                assert any(
                    type(getattr(w, ending)).__name__ in ("L1", "UnitNorm") for w in layer.weights
                )


@pytest.mark.parametrize("name", SELF_ATTENTIONS | OTHERS)
def test_what_is_frozen_is_built_frozen(name):
    make_layer, inputs = (SELF_ATTENTIONS | OTHERS)[name]
    config = {**make_layer().get_config(), "trainable": False}
    called, loaded = (type(make_layer()).from_config(config) for _ in range(2))
    called(inputs)
    loaded.build_from_config(called.get_build_config())
    assert not [v for layer in (called, loaded) for v in layer.variables if v.trainable]


@pytest.mark.parametrize("name", SELF_ATTENTIONS | OTHERS)
def test_random_weights_differ_from_one_another(name):
    make_layer, inputs = (SELF_ATTENTIONS | OTHERS)[name]
    layer = make_layer()
    layer(inputs)
    weights = [to_numpy(weight) for weight in layer.weights]
    drawn = [w for w in weights if w.ndim > 1 and len(np.unique(w)) > 2]
    for one, other in itertools.combinations(drawn, 2):
        assert one.shape != other.shape or (one != other).any()


def test_no_public_layer_is_left_out():
    # Not called with one float tensor, or each with a graph of its own: tests of their own.
    tested = {layers.TransformerDecoder, layers.TokenEmbedding}
    tested |= {layers.GraphConvolution, layers.SpectralGraphConvolution}
    tested |= {type(make()) for make, _ in (SELF_ATTENTIONS | OTHERS).values()}
    public = {getattr(keras_tnattn, name) for name in keras_tnattn.__all__}
    public |= {getattr(keras_small, name) for name in keras_small.__all__}
    public -= {storage.QuantizedLowRankEmbedding, storage.QuantizedTTEmbedding}  # of integers
    public = {c for c in public if isinstance(c, type) and issubclass(c, keras.layers.Layer)}
    assert public <= tested


# Other shapes than one another's: a layer's input is known by it.
ARRAYS = {"tokens": TOKENS, "tensors": TENSOR_TOKENS, "vectors": TOKENS[:, 0], "ids": IDS}
MODELS = {"layers": ARRAYS, "translator": {"source": IDS, "target": IDS[:, :5]}}


def save_models(folder):
    """Saves a model of all layers side by side, a translator, and what both compute.

    Each layer has random numbers of its own, which no other layer shifts.
    """
    inputs = {n: keras.Input(x.shape[1:], dtype=x.dtype.name, name=n) for n, x in ARRAYS.items()}
    of_shape = {x.shape: inputs[name] for name, x in ARRAYS.items()}
    outputs = {}
    for name, (make_layer, x) in (SELF_ATTENTIONS | OTHERS).items():
        keras.utils.set_random_seed(0)
        outputs[name] = make_layer()(of_shape[x.shape])
    sizes = {"model_dim": 8, "num_heads": 2, "residual_units": 1, "residual_dim": 4}
    models = {"layers": keras.Model(inputs, outputs), "translator": translator(22, 22, **sizes)}
    for name, model in models.items():
        for layer in model.layers:
            rng = np.random.default_rng(0)
            for weight in layer.trainable_variables:  # biases, too, which start as zeros
                weight.assign_add(0.1 * rng.normal(size=weight.shape).astype("float32"))
        model.save(folder / f"{name}.keras")
        results = model.predict(MODELS[name], verbose=0)
        np.savez(folder / name, **(results if isinstance(results, dict) else {"logits": results}))


@pytest.mark.slow
@pytest.mark.parametrize("other", ["tensorflow", "jax", "torch"])
def test_models_saved_on_another_backend_compute_the_same(other, tmp_path):
    if other == keras.backend.backend():
        pytest.skip("the backend of this process")
    if importlib.util.find_spec(other) is None:
        pytest.skip(f"{other} is not installed")
    tests = Path(__file__).parents[1]
    code = "import pathlib, sys, test_layers_conform as t; t.save_models(pathlib.Path(sys.argv[1]))"
    paths = (tests.parent, tests / "support", tests / "layers")
    environment = {"KERAS_BACKEND": other, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(command, env={**os.environ, **environment}, check=True)
    for name, inputs in MODELS.items():
        model = keras.models.load_model(tmp_path / f"{name}.keras")
        results = model.predict(inputs, verbose=0)
        expected = np.load(tmp_path / f"{name}.npz")
        assert set(expected) == (set(results) if isinstance(results, dict) else {"logits"})
        for key, array in expected.items():
            result = results[key] if isinstance(results, dict) else results
            # Powers amplify rounding, some of them a thousandfold.
            amplification = 100 if "plga" in key or name == "translator" else 1
            np.testing.assert_allclose(
                result, array, 1e-4 * amplification, 1e-5 * amplification, err_msg=key
            )
