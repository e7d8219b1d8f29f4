"""Backbones and tasks of keras-hub: layers in attributes, tied tables, incomplete configs."""

import keras
import numpy as np
import pytest
from compressing import compress, error_of, outputs_of
from conformance import assert_same_arrays, saved_and_loaded, to_numpy
from import_path import run_python

import keras_small

keras_hub = pytest.importorskip("keras_hub")
pytestmark = [
    pytest.mark.slow,  # its import takes long
    # Said of every task that Keras loads.
    pytest.mark.filterwarnings("ignore:`compile\\(\\)` was not called:UserWarning"),
]
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
    result = compress(model, 1.4, data=inputs, verbose=0)
    reached = [row.path for row in result.report.layers if row.curve]
    for path in paths:
        assert any(path in known for known in reached)
    assert_same_arrays(before, model.get_weights())
    assert result.report.error == pytest.approx(error_of(model, result.model, inputs), rel=1e-3)
    assert isinstance(result.model, type(model))
    saved_and_loaded(result.model, inputs, tmp_path)


CODED = """
import sys
import keras
import numpy as np
import keras_small

folder = sys.argv[1]
model = keras_small.load(f"{folder}/model.tnz")
assert model.compiled
outputs = model.predict(dict(np.load(f"{folder}/inputs.npz")), verbose=0)
np.testing.assert_allclose(outputs, np.load(f"{folder}/outputs.npy"), rtol=1e-4, atol=1e-5)
"""


def test_tasks_become_coded_files(tmp_path):
    model, inputs = gpt2_causal_lm()
    result = keras_small.compress(model, 6, data=inputs, coded=True, verbose=0)
    result.save(tmp_path / "model.tnz")
    np.savez(tmp_path / "inputs.npz", **inputs)
    np.save(tmp_path / "outputs.npy", result.model.predict(inputs, verbose=0))
    run_python("-c", CODED, tmp_path)


FROM_PRESET = """
import sys
import keras
import keras_hub
import numpy as np
import keras_small

folder, family, preset = sys.argv[1:]
options = {"preprocessor": None} if "Classifier" in family else {}
model = getattr(keras_hub.models, family).from_preset(f"{folder}/{preset}", **options)
inputs = dict(np.load(f"{folder}/inputs.npz"))
outputs = keras.tree.flatten(model.predict(inputs, verbose=0))
outputs = np.concatenate([x.ravel() for x in outputs])
expected = np.load(f"{folder}/{preset}-{'task' if options else 'backbone'}.npy")
np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
"""


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    """A folder with the presets of a compressed backbone and of a compressed task."""
    folder = tmp_path_factory.mktemp("presets")
    backbone, inputs = bert()
    task = keras_hub.models.BertTextClassifier(backbone, num_classes=3, preprocessor=None)
    np.savez(folder / "inputs.npz", **inputs)
    for name, model in (("backbone", backbone), ("task", task)):
        small = compress(model, 1.4, data=inputs, verbose=0).model
        small.save_to_preset(folder / name)
        if name == "task":
            np.save(folder / "task-task.npy", outputs_of(small, inputs))
            small = small.backbone
        np.save(folder / f"{name}-backbone.npy", outputs_of(small, inputs))
    return folder


@pytest.mark.parametrize(
    ("family", "preset"),
    [
        ("Backbone", "backbone"),
        ("BertBackbone", "backbone"),
        ("BertTextClassifier", "task"),
        ("TextClassifier", "task"),
        ("Backbone", "task"),
    ],
)
def test_presets_are_loaded_in_another_process(presets, family, preset):
    run_python("-c", FROM_PRESET, presets, family, preset)


def test_a_task_is_made_of_the_preset_of_a_backbone(presets):
    task = keras_hub.models.TextClassifier.from_preset(
        str(presets / "backbone"), num_classes=2, preprocessor=None
    )
    inputs = dict(np.load(presets / "inputs.npz"))
    np.testing.assert_allclose(
        outputs_of(task.backbone, inputs), np.load(presets / "backbone-backbone.npy"), atol=1e-5
    )
    backbone, _ = bert()
    plain = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None)
    plain.save_to_preset(presets / "plain")
    loaded = keras_hub.models.TextClassifier.from_preset(str(presets / "plain"), preprocessor=None)
    assert type(loaded) is keras_hub.models.BertTextClassifier


def test_lora_trains_replaced_layers(presets, tmp_path):
    backbone = keras_hub.models.Backbone.from_preset(str(presets / "backbone"))
    inputs = dict(np.load(presets / "inputs.npz"))
    before = outputs_of(backbone, inputs)
    backbone.enable_lora(2)
    np.testing.assert_array_equal(outputs_of(backbone, inputs), before)
    names = {weight.name for weight in backbone.trainable_weights}
    assert names == {"lora_kernel_a", "lora_kernel_b", "bias"}
    for weight in backbone.trainable_weights:
        if weight.name == "lora_kernel_b":
            weight.assign(np.full(weight.shape, 0.1))
    changed = outputs_of(backbone, inputs)
    assert np.abs(changed - before).max() > 1e-3
    saved_and_loaded(backbone, inputs, tmp_path)


def gemma_causal_lm():
    backbone, _ = gemma()
    return keras_hub.models.GemmaCausalLM(backbone, preprocessor=None), TEXT


@pytest.mark.parametrize("family", [gpt2_causal_lm, gemma_causal_lm])
def test_a_compressed_model_generates_what_it_computes(family):
    model, inputs = family()
    small = compress(model, 1.4, data=inputs, verbose=0).model
    small.compile(sampler="greedy")
    given = 4
    start = np.where(np.arange(IDS.shape[1]) < given, IDS, 0)
    mask = np.broadcast_to(np.arange(IDS.shape[1]) < given, IDS.shape).astype("int32")
    generated = small.generate({"token_ids": start, "padding_mask": mask}, stop_token_ids=None)[
        "token_ids"
    ]
    ids = start.copy()
    for place in range(given, IDS.shape[1]):
        logits = to_numpy(small({"token_ids": ids, "padding_mask": np.ones_like(ids)}))
        ids[:, place] = logits[:, place - 1].argmax(-1)
    np.testing.assert_array_equal(to_numpy(generated), ids)


def test_lora_alone_heals():
    sizes = {**SIZES, "num_heads": 2, "max_sequence_length": 16, "dropout": 0.0}
    model, inputs = keras_hub.models.BertBackbone(**sizes), bert()[1]
    small = compress(model, 2.0, data=inputs, verbose=0).model
    targets = model.predict(inputs, verbose=0)
    # In random weights the attention hardly counts.
    small.enable_lora(4, ["feedforward_intermediate_dense", "feedforward_output_dense"])
    fixed = [weight for weight in small.weights if not weight.trainable]
    before = [to_numpy(weight) for weight in fixed]
    small.compile(keras.optimizers.Adam(1e-2), loss="mse")
    losses = small.fit(inputs, targets, epochs=60, verbose=0).history["loss"]
    assert losses[-1] < 0.95 * losses[0]
    for weight, value in zip(fixed, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), value)
