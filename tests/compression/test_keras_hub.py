"""Backbones and tasks of keras-hub: layers in attributes, tied tables, incomplete configs."""

import keras
import numpy as np
import pytest
from conformance import to_numpy

from keras_tnattn import compress

keras_hub = pytest.importorskip("keras_hub")
pytestmark = pytest.mark.slow  # its import takes long
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 100, (4, 8)).astype("int32")
TEXT = {"token_ids": IDS, "padding_mask": np.ones_like(IDS)}
SIZES = {"vocabulary_size": 100, "num_layers": 1, "hidden_dim": 16, "intermediate_dim": 32}


def bert():
    model = keras_hub.models.BertBackbone(**SIZES, num_heads=2, max_sequence_length=16)
    return model, TEXT | {"segment_ids": np.zeros_like(IDS)}


def gpt2_causal_lm():
    backbone = keras_hub.models.GPT2Backbone(**SIZES, num_heads=2, max_sequence_length=16)
    return keras_hub.models.GPT2CausalLM(backbone, preprocessor=None), TEXT


def gemma():
    heads = {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    return keras_hub.models.GemmaBackbone(**SIZES, **heads), TEXT


def outputs_of(model, inputs):
    return np.concatenate([to_numpy(x).ravel() for x in keras.tree.flatten(model(inputs))])


@pytest.mark.parametrize(
    ("family", "paths"),
    [
        (bert, ["token_embedding", "_self_attention_layer/_query_dense", "pooled_dense"]),
        (gpt2_causal_lm, ["token_embedding", "/_query_dense"]),
        (gemma, ["token_embedding", "query_dense"]),
    ],
)
def test_layers_in_attributes_and_tied_tables_are_reached(family, paths, tmp_path):
    model, inputs = family()
    before = model.get_weights()
    result = compress(model, target=1.4, data=inputs, verbose=0)
    reached = [row.path for row in result.report.layers if row.curve]
    for path in paths:
        assert any(path in known for known in reached)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    expected, actual = outputs_of(model, inputs), outputs_of(result.model, inputs)
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert result.report.error == pytest.approx(error, rel=1e-3)
    assert isinstance(result.model, type(model))
    result.model.save(tmp_path / "small.keras")
    loaded = keras.models.load_model(tmp_path / "small.keras")
    np.testing.assert_allclose(outputs_of(loaded, inputs), actual, rtol=1e-5, atol=1e-6)
