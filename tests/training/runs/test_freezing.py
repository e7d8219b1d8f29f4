"""The metric of a trained run, frozen: which losses are reported, and which model goes on."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tnattn.layers import MetricAttention
from keras_tnattn.models import language_model
from keras_tnattn_train.runs.freezing import LIVE, freeze
from keras_tnattn_train.runs.run import Run

pytestmark = pytest.mark.usefixtures("eagerly")
IDS = np.random.default_rng(0).integers(1, 11, (24, 7))
BATCHES = [(IDS[i : i + 8, :-1], IDS[i : i + 8, 1:]) for i in range(0, 24, 8)]
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def model_with(scales):
    """A model whose metrics depend on the text by `scales`, one for each layer, and matter."""
    options = {"model_dim": 8, "num_heads": 2, "feedforward_dim": 8}
    options |= {"residual_units": 1, "residual_dim": 4, "num_layers": len(scales)}
    model = language_model(11, "plga", **options)
    rng = np.random.default_rng(0)
    for decoder, scale in zip(model.decoders, scales, strict=True):
        layer = decoder.self_attention
        layer.power_law_W.assign(scale * rng.normal(size=layer.power_law_W.shape))
        for name, low, high in (("b", 0.5, 1.5), ("a", 3, 6), ("b_a", -3, 3), ("P", 0.5, 1)):
            variable = getattr(layer, f"power_law_{name}")
            variable.assign(rng.uniform(low, high, size=variable.shape))
    return model


def loss_of(model):
    losses = [float(LOSS(labels, model(ids, training=False))) for ids, labels in BATCHES]
    return np.mean(losses)


def run_in(folder):
    run = Run(folder)
    run.folder.mkdir()
    return run


def test_the_losses_before_and_after(tmp_path, capsys):
    model, run = model_with([0.12, 0.12]), run_in(tmp_path / "run")
    frozen, results = freeze(model, BATCHES, LOSS, run)
    before, after = loss_of(model), loss_of(frozen)
    assert abs(before - after) > 1e-3  # so that they cannot be taken for each other
    assert results["loss_before"] == pytest.approx(before, rel=1e-5)
    assert results["loss_after"] == pytest.approx(after, rel=1e-5)
    assert results["layers"] == 2
    # Rounded from what is reported: `before` and `after` differ from it in the last bits.
    reported = f"{results['loss_before']:.4f} before, {results['loss_after']:.4f} after"
    assert f"loss: {reported}" in capsys.readouterr().out
    for decoder in frozen.decoders:
        assert isinstance(decoder.self_attention, MetricAttention)
    live = keras.models.load_model(run.folder / LIVE)
    got, want = (ops.convert_to_numpy(each(IDS)) for each in (live, model))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_part_of_the_layers(tmp_path, capsys):
    model, run = model_with([1e-4, 3.0]), run_in(tmp_path / "run")
    frozen, results = freeze(model, BATCHES, LOSS, run)
    assert results["layers"] == 1
    assert list(results["spreads"]) == ["decoder_0/self_attention", "decoder_1/self_attention"]
    first, second = results["spreads"].values()
    assert max(first) < 0.01
    assert max(second) > 0.2
    assert isinstance(frozen.decoders[0].self_attention, MetricAttention)
    assert not isinstance(frozen.decoders[1].self_attention, MetricAttention)
    assert "decoder_1/self_attention: kept" in capsys.readouterr().out


def test_without_a_layer_to_freeze_the_model_stays(tmp_path, capsys):
    model, run = model_with([3.0]), run_in(tmp_path / "run")
    same, results = freeze(model, BATCHES, LOSS, run)
    assert same is model
    assert results["layers"] == 0
    assert "depends on the input" in results["reason"]
    assert "note: the metric is not frozen" in capsys.readouterr().err
    assert not (run.folder / LIVE).exists()
