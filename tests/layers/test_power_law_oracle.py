"""Parity with the published power law transformer, number by number.

The numbers are in `tests/data/power_law_transformer.npz`, explained in the README there, or in the
file named by `POWER_LAW_ORACLE`. All sizes are taken from it.
"""

import os
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from conformance import to_numpy
from differentiation import weight_gradients
from keras import ops

from keras_tnattn.metrics import TokenAccuracy
from keras_tnattn.models import translator
from keras_tnattn.schedules import WarmupInverseSquareRoot
from keras_tnattn.search.beam_search import BeamSearch, Hypotheses

DEFAULT = Path(__file__).resolve().parents[1] / "data/power_law_transformer.npz"
BLOCKS = ("encoder", "decoder_self", "decoder_cross")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)


@pytest.fixture(scope="module")
def oracle():
    return read_oracle()


def read_oracle():
    with np.load(os.environ.get("POWER_LAW_ORACLE", DEFAULT)) as file:
        return dict(file)


def matches(oracle, pattern):
    """The groups of all keys that match; there has to be one."""
    result = [match.groups() for key in oracle if (match := re.fullmatch(pattern, key))]
    assert result
    return result


def test_an_oracle_that_is_named_has_to_be_there(monkeypatch, tmp_path):
    for path in (str(tmp_path / "none.npz"), ""):
        monkeypatch.setenv("POWER_LAW_ORACLE", path)
        with pytest.raises(FileNotFoundError):
            read_oracle()


@pytest.fixture(scope="module")
def published(oracle):
    return make_model(oracle, padding_in_metric=True)


@pytest.fixture(scope="module")
def ours(oracle):
    return make_model(oracle)


def make_model(oracle, **options):
    layers, dim, heads, dff, residual_dim, units, dense, source, target = oracle["meta/config"][
        :9
    ].tolist()
    sizes = {"num_layers": layers, "model_dim": dim, "num_heads": heads, "feedforward_dim": dff}
    sizes |= {"residual_units": units, "residual_dense_layers": dense, "residual_dim": residual_dim}
    model = translator(source, target, dropout=0.0, attention_dropout=0.0, **sizes, **options)
    named = named_weights(model, oracle)
    assert len(named) == len(model.weights)
    for name, weight in named.items():
        weight.assign(oracle[f"weights/{name}"])
    return model


def named_weights(model, oracle):
    """The model's weights by the oracle's names."""
    layers, units, dense = oracle["meta/config"][[0, 5, 6]].tolist()
    result = {}

    def add(name, layer):
        for weight in layer.weights:
            result[f"{name}/{weight.name}"] = weight

    def add_attention(name, attention):
        for part in ("query", "key", "value", "output"):
            add(f"{name}/{part}", getattr(attention, f"{part}_dense"))
        assert len(attention.residuals) == units
        for i, unit in enumerate(attention.residuals):
            assert len(unit.hidden) == dense
            for j, layer in enumerate(unit.hidden):
                add(f"{name}/residual_{i}/dense_{j}", layer)
            add(f"{name}/residual_{i}/projection", unit.projection)
            add(f"{name}/residual_{i}/layer_norm", unit.norm)
        for part in ("W", "b", "a", "b_a", "P"):
            result[f"{name}/power_law/{part}"] = getattr(attention, f"power_law_{part}")

    for side, language in (("encoder", "source"), ("decoder", "target")):
        add(f"{side}/embedding", model.get_layer(f"{language}_embedding"))
        for i in range(layers):
            layer, name = model.get_layer(f"{side}_{i}"), f"{side}/layer_{i}"
            for kind in (
                ("attention",) if side == "encoder" else ("self_attention", "cross_attention")
            ):
                add_attention(f"{name}/{kind}", getattr(layer, kind))
            for j, norm in enumerate(layer.norms):
                add(f"{name}/layer_norm_{j}", norm)
            add(f"{name}/ffn/dense_0", layer.hidden)
            add(f"{name}/ffn/dense_1", layer.projection)
    add("final", model.get_layer("logits"))
    return result


def logits(model, source, target):
    return to_numpy(model({"source": source, "target": target}))


def close(got, want, atol):
    np.testing.assert_allclose(to_numpy(got), want, rtol=0, atol=atol)


def encode_and_decode(oracle, model):
    """Encoder output and what each attention of the last layers computed, by block."""
    source, target = oracle["inputs/src"], oracle["inputs/tgt"][:, :-1]
    memory, encoded = model.encode(source, return_details=True)
    _, decoded = model.decode(target, memory, source != 0, return_details=True)
    last = oracle["meta/config"][0] - 1
    details = (
        encoded[f"encoder_{last}"],
        decoded[f"decoder_{last}.self"],
        decoded[f"decoder_{last}.cross"],
    )
    return memory, dict(zip(BLOCKS, details, strict=True))


def test_logits(oracle, published):
    got = logits(published, oracle["inputs/src"], oracle["inputs/tgt"][:, :-1])
    close(got, oracle["outputs/logits"], 2e-4)
    close(got, oracle["outputs/logits_f64"], 2e-4)


def test_encoder_output_and_deductive_outputs(oracle, published):
    memory, blocks = encode_and_decode(oracle, published)
    close(memory, oracle["outputs/encoder_output"], 2e-4)
    for block, outputs in blocks.items():
        close(outputs["E_LM"], oracle[f"outputs/{block}/E_LM"], 1e-4)
        for name in ("D_Q", "A", "A_LM", "G_LM", "E"):
            want = oracle[f"outputs/{block}/{name}"]
            close(outputs[name], want, 1e-4 * max(1, np.abs(want).max()))
        for name in ("P", "a", "b_a"):
            close(outputs[name], oracle[f"outputs/{block}/{name}"], 0)


def test_a_padded_batch_equals_each_sentence_alone(oracle, ours):
    target = oracle["inputs/tgt"][:, :-1]
    got = logits(ours, oracle["inputs/src"], target)
    for i in range(len(target)):
        want = oracle[f"outputs_unpadded/logits_{i}"]
        assert len(want) == (target[i] != 0).sum()
        close(got[i, : len(want)], want, 2e-4)
    # As the published code computes them: by themselves.
    assert np.abs(got - oracle["outputs/logits"]).max() > 1e-2


def test_extra_padding_changes_the_published_result_and_not_ours(oracle, published, ours):
    source = np.pad(oracle["inputs/src"], ((0, 0), (0, 3)))
    target = np.pad(oracle["inputs/tgt"][:, :-1], ((0, 0), (0, 2)))
    close(logits(published, source, target), oracle["outputs_extra_padding/logits"], 2e-4)
    length = oracle["inputs/tgt"].shape[1] - 1
    got = logits(ours, source, target)[:, :length]
    real = oracle["inputs/tgt"][:, :-1] != 0
    want = logits(ours, oracle["inputs/src"], oracle["inputs/tgt"][:, :-1])
    close(got[real], want[real], 1e-4)  # sums of other lengths are in another order


def test_the_published_future_leaks_and_a_causal_metric_does_not(oracle, published):
    source, target = oracle["inputs/src"], oracle["inputs/tgt"][:, :-1]
    probe = oracle["outputs_future_probe/tgt_in"]
    close(logits(published, source, probe), oracle["outputs_future_probe/logits"], 2e-4)
    changed = (probe != target).any(0).argmax()
    causal = make_model(oracle, causal_metric=True)
    before, after = logits(causal, source, target), logits(causal, source, probe)
    np.testing.assert_array_equal(before[:, :changed], after[:, :changed])
    assert np.abs(before - after)[:, changed:].max() > 1e-3


def test_loss_and_accuracy(oracle, published):
    labels = oracle["inputs/tgt"][:, 1:]
    got = logits(published, oracle["inputs/src"], oracle["inputs/tgt"][:, :-1])
    close(LOSS(labels, got), oracle["train/loss"], 1e-5)
    close(LOSS(labels, got), oracle["train/loss_f64"], 1e-5)
    fixture = oracle["loss_fixture/labels"]
    close(LOSS(fixture, oracle["outputs/logits"]), oracle["loss_fixture/loss"], 1e-5)
    for name, y, scores in (
        ("train", labels, got),
        ("loss_fixture", fixture, oracle["outputs/logits"]),
    ):
        metric = TokenAccuracy()
        metric.update_state(y, scores)
        close(metric.result(), oracle[f"{name}/accuracy"], 1e-6)


def test_gradients(oracle, published):
    inputs = {"source": oracle["inputs/src"], "target": oracle["inputs/tgt"][:, :-1]}
    labels = oracle["inputs/tgt"][:, 1:]
    loss, grads = weight_gradients(published, lambda model: LOSS(labels, model(inputs)))
    close(loss, oracle["train/loss"], 1e-5)
    result = {w.path: g for w, g in zip(published.trainable_variables, grads, strict=True)}
    for name, weight in named_weights(published, oracle).items():
        want = oracle[f"train/grad/{name}"]
        close(result[weight.path], want, 2e-3 * np.abs(want).max())


def test_adam_steps(oracle):
    model = make_model(oracle, padding_in_metric=True)
    dim, warmup_steps = oracle["meta/config"][[1, 14]].tolist()
    schedule = WarmupInverseSquareRoot(dim, warmup_steps)
    eager = keras.backend.backend() == "tensorflow"  # tracing takes longer than three steps
    model.compile(keras.optimizers.Adam(schedule, 0.9, 0.98, 1e-9), LOSS, run_eagerly=eager)
    inputs = {"source": oracle["inputs/src"], "target": oracle["inputs/tgt"][:, :-1]}
    labels = oracle["inputs/tgt"][:, 1:]
    checked = 0
    for call, (loss, rate) in enumerate(
        zip(oracle["train/loss_per_call"], oracle["train/lr_per_call"], strict=True), start=1
    ):
        close(schedule(call - 1), rate, 1e-5 * rate)
        model.reset_metrics()
        close(model.train_on_batch(inputs, labels), loss, 1e-5)
        for name, weight in named_weights(model, oracle).items():
            key, start = f"train/after_call_{call}/{name}", oracle[f"weights/{name}"]
            grad = oracle[f"train/grad/{name}"]
            if call == 1:
                close(weight, start, 0)
            elif key in oracle:
                got, large = to_numpy(weight), np.abs(grad) >= 1e-6
                close(got[large], oracle[key][large], {2: 2e-5, 3: 2e-4}[call])
                if name.endswith("embeddings"):  # the rows of the tokens that are not there
                    np.testing.assert_array_equal(got[grad == 0], start[grad == 0])
                checked += 1
    assert checked == sum(key.startswith("train/after_call") for key in oracle)


def test_schedule(oracle):
    for dim, warmup_steps in matches(oracle, r"schedule/lr_d(\d+)_w(\d+)"):
        schedule = WarmupInverseSquareRoot(int(dim), int(warmup_steps))
        got = [float(schedule(step)) for step in oracle["schedule/steps"]]
        want = oracle[f"schedule/lr_d{dim}_w{warmup_steps}"]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=0)


def test_position_encoding(oracle, ours):
    (name,) = (key for key in oracle if key.startswith("posenc/"))
    want = oracle[name]
    got = ours.get_layer("source_positions")(np.zeros((1, *want.shape), "float32"))[0]
    close(got, want, 1e-6)


def test_greedy(oracle, ours):
    search = make_search(oracle, ours, 1)
    for (i,) in matches(oracle, r"decode/src_(\d+)"):
        source, want = oracle[f"decode/src_{i}"], oracle[f"decode/greedy_{i}"]
        result = search(source[None])
        assert result.ids[0, 0].tolist() == want.tolist()
        assert result.finished[0, 0] == (want[-1] == search.end_id)
        assert result.ids.shape[-1] <= 1 + oracle[f"decode/limit_{i}"]
        assert len(source) + search.extra_tokens == oracle[f"decode/limit_{i}"]


@pytest.mark.slow
def test_beam(oracle, ours):
    # All sentences in one padded batch: the published code takes one at a time.
    names = [i for (i,) in matches(oracle, r"decode/src_(\d+)")]
    sources = [oracle[f"decode/src_{i}"] for i in names]
    batch = np.zeros((len(sources), max(map(len, sources))), "int32")
    for row, source in zip(batch, sources, strict=True):
        row[: len(source)] = source
    (beam_size,) = {len(oracle[f"decode/beam_{i}_ids"]) for i in names}
    search = make_search(oracle, ours, beam_size)
    graph = search.search(ops.convert_to_tensor(batch))
    for result in (search(batch), Hypotheses(*map(to_numpy, graph))):
        for row, i in enumerate(names):
            want = oracle[f"decode/beam_{i}_ids"]
            got = result.ids[row][:, : want.shape[1]]
            np.testing.assert_array_equal(got, np.where(want < 0, 0, want))
            assert not result.ids[row][:, want.shape[1] :].any()
            close(result.scores[row], oracle[f"decode/beam_{i}_scores"], 1e-4)
            np.testing.assert_array_equal(result.finished[row], oracle[f"decode/beam_{i}_finished"])


def make_search(oracle, model, beam_size):
    start, end, extra_tokens = oracle["meta/config"][[10, 11, 13]].tolist()
    return BeamSearch(model, beam_size, start, end, extra_tokens)
