"""Parity with the published language models of power law attention, number by number.

The numbers are in `tests/data/pldr_llm.npz`, explained in the README there, or in the file named by
`PLDR_ORACLE`. All sizes are taken from it.
"""

import contextlib
import os
from pathlib import Path

import keras
import numpy as np
import pytest
from conformance import to_numpy
from differentiation import weight_gradients
from keras import ops
from slow_cases import slow_but

from keras_tnattn.layers import MetricAttention
from keras_tnattn.models.pldr_checkpoint import named_variables, pldr_model
from keras_tnattn.search import Generator

DATA = Path(__file__).resolve().parents[1] / "data"
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)


@pytest.fixture(scope="module")
def oracle():
    return read_oracle()


def read_oracle():
    with np.load(os.environ.get("PLDR_ORACLE", DATA / "pldr_llm.npz")) as file:
        return dict(file)


def weights_of(oracle):
    start = "weights/"
    return {n.removeprefix(start): x for n, x in oracle.items() if n.startswith(start)}


@pytest.fixture(scope="module")
def published(oracle):
    return pldr_model(weights_of(oracle))


@pytest.fixture(scope="module")
def noise(oracle):
    """The error of the published float32 run, relative to its float64 run, where this is largest.

    It depends on the weights: small entries of A_LM are raised to powers.
    """
    errors = {
        name: np.abs(oracle[name.removesuffix("_f64")] - exact).max() / np.abs(exact).max()
        for name, exact in oracle.items()
        if name.endswith("_f64")
    }
    assert len(errors) > 2
    return max(errors.values())


@contextlib.contextmanager
def computing_in_float64():
    floatx = keras.config.floatx()
    keras.config.set_dtype_policy("float64")
    keras.config.set_floatx("float64")
    try:
        yield
    finally:
        keras.config.set_floatx(floatx)
        keras.config.set_dtype_policy("float32")


@pytest.fixture
def probe_noise(oracle, noise):
    """As `noise`, of the future probe too: the file has no float64 run of it, so ours stands in.

    `test_in_float64` shows that ours is the published one where the file has both.
    """
    if keras.backend.backend() != "tensorflow":
        return 5 * noise  # Keras computes in float32 there
    with computing_in_float64():
        exact = to_numpy(pldr_model(weights_of(oracle))(oracle["future_probe/ids"]))
    error = np.abs(oracle["future_probe/logits"] - exact).max() / np.abs(exact).max()
    return max(noise, error)


def assert_near(got, want, share, name=""):
    """Checks that no number is off by more than a share of the largest."""
    error = np.abs(to_numpy(got) - want).max() / np.abs(want).max()
    assert error <= share, name


def config(oracle):
    names = [str(name) for name in oracle["meta/config_names"]]
    return dict(zip(names, oracle["meta/config"].tolist(), strict=True))


def test_an_oracle_that_is_named_has_to_be_there(monkeypatch, tmp_path):
    monkeypatch.setenv("PLDR_ORACLE", str(tmp_path / "none.npz"))
    with pytest.raises(FileNotFoundError):
        read_oracle()


def test_sizes_are_read_off_the_weights(oracle, published):
    sizes, attention = config(oracle), published.decoders[0].self_attention
    assert len(published.decoders) == sizes["num_layers"]
    assert published.vocabulary_size == sizes["vocabulary_size"]
    assert attention.num_heads == sizes["num_heads"]
    assert attention.residual_dim == sizes["residual_dim"]
    assert attention.residual_units == sizes["residual_units"]
    assert attention.residual_dense_layers == sizes["residual_layers"]
    assert published.count_params() == sum(x.size for x in weights_of(oracle).values())


def test_logits_and_what_the_attentions_computed(oracle, published, noise):
    ids = oracle["inputs/ids"]
    got = to_numpy(published(ids))
    assert_near(got, oracle["outputs/logits"], 2 * noise)
    assert_near(got, oracle["outputs/logits_f64"], noise)
    x, details = published.run_decoders(ops.array(ids), return_details=True)
    assert_near(x, oracle["outputs/decoder"], 2 * noise)
    for i in range(len(published.decoders)):
        for name in ("A", "A_LM", "G_LM", "E"):
            want = oracle[f"outputs/layer_{i}/{name}"]
            assert_near(details[f"decoder_{i}"][name], want, 2 * noise, name)
    mask = oracle["inputs/mask"][0, 0] != 0
    assert (to_numpy(details["decoder_0"]["E_LM"])[0, :, mask] == 0).all()


def test_keys_and_values_that_are_kept(oracle, published, noise):
    search = Generator(published, 1, key_value_cache=True)
    state = search.steps.start(ops.array(oracle["inputs/ids"][:1], "int32")).state
    for i, part in enumerate(state[1:]):
        for name, got in part["self"]["tokens"].items():
            want = oracle[f"outputs/layer_{i}/{name}"][:1]
            assert_near(to_numpy(got).transpose(0, 2, 1, 3), want, 2 * noise)


def test_loss_and_gradients(oracle, published, noise):
    loss, gradients = weight_gradients(
        published, lambda call: LOSS(oracle["inputs/labels"], call(oracle["inputs/ids"]))
    )
    assert_near(loss, oracle["train/loss"], 2 * noise)
    variables = published.trainable_variables
    of_variable = {id(v): g for v, g in zip(variables, gradients, strict=True)}
    names = {n.removeprefix("train/grad/decoder.").removeprefix("train/grad/"): n for n in oracle}
    names = {n.removeprefix("dec_layers."): full for n, full in names.items() if "grad" in full}
    published_names = named_variables(published)
    assert names.keys() == published_names.keys()
    for name, (variable, transposed) in published_names.items():
        got = of_variable[id(variable)]
        # What is off in a power is multiplied once more by its logarithm.
        assert_near(got.T if transposed else got, oracle[names[name]], 40 * noise, name)


CACHES = ("no_cache", "kv_cache", "g_cache", "kv_and_g_cache")


@pytest.mark.parametrize("name", slow_but(["kv_and_g_cache"], CACHES))
def test_greedy_continuation(oracle, published, noise, name):
    prompt, want = oracle["generate/prompt"], oracle[f"generate/{name}/ids"]
    given = prompt.shape[1]
    number = want.shape[1] - given
    caches = {"key_value_cache": "kv_" in name, "metric_cache": "g_" in name}
    search = Generator(published, number, **caches)
    of_steps = oracle[f"generate/{name}/logits"]
    bound = 10 * noise * np.abs(of_steps).max()
    best = np.sort(of_steps.reshape(number, -1), axis=-1)
    sure = given + int(np.cumprod(best[:, -1] - best[:, -2] > bound).sum())  # up to the first tie
    for ids in (
        search(prompt).ids[0],
        search([prompt[0], prompt[0, :2]]).ids[0],  # before a shorter one in the same batch
        list(search.stream(prompt[0])),
    ):
        np.testing.assert_array_equal(ids[: sure - given], want[0, given:sure])
    # The logits, step by step.
    steps = search.steps
    inputs = ops.array(steps.pack(list(prompt)), "int32")
    start = steps.start(inputs)
    logits, state, ids = [start.logits], start.state, np.array(inputs)
    for i in range(number - 1):
        ids = np.concatenate([ids, want[:, given + i : given + i + 1]], axis=1)
        state = steps.with_room(state, 1)
        position = ops.convert_to_tensor(ids.shape[1] - 1, "int32")
        new, state = steps.step(ops.array(ids, "int32"), position, {}, state)
        logits.append(new)
    assert_near(np.concatenate([to_numpy(x) for x in logits]), of_steps, 10 * noise)


def test_without_the_net_of_the_metric_it_is_scaled_dot_product_attention(oracle, published, noise):
    ids, mask = ops.array(oracle["inputs/ids"]), ops.array(oracle["inputs/ids"] != 0)
    x = published.embed(ids)
    for decoder in published.decoders:
        plain = MetricAttention(decoder.self_attention.num_heads, rotary="neighbors")
        plain.build(x.shape)
        for part in ("query", "key", "value", "output"):
            of_plain, ours = (
                getattr(layer, f"{part}_dense") for layer in (plain, decoder.self_attention)
            )
            of_plain.set_weights(ours.get_weights())
        # Padding sends nothing here, and as published it only reads.
        attended = plain(x, x, value_mask=mask, use_causal_mask=True)
        x = decoder.norms[0](x + attended)
        x = decoder.norms[1](x + decoder.gated(x))
    real = oracle["inputs/ids"] != 0
    got = to_numpy(published.compute_logits(x))
    assert_near(got[real], oracle["identity_g/logits"][real], 2 * noise)


def test_the_published_metric_reads_ahead_and_a_causal_one_does_not(oracle, published, probe_noise):
    ids = {"one": oracle["inputs/ids"], "other": oracle["future_probe/ids"]}
    assert (ids["one"] != ids["other"]).sum() == 1
    logits = {name: to_numpy(published(x)) for name, x in ids.items()}
    # Both runs round: on other weights ours was three times as far from float64 as the published.
    assert_near(logits["other"], oracle["future_probe/logits"], 4 * probe_noise)
    changed = np.abs(logits["one"] - logits["other"])[0, :-1].max()
    want = np.abs(oracle["outputs/logits"] - oracle["future_probe/logits"])[0, :-1].max()
    bound = 4 * probe_noise * np.abs(oracle["outputs/logits"]).max()
    assert changed == pytest.approx(want, abs=2 * bound)
    assert changed > 10 * bound
    causal = pldr_model(weights_of(oracle), causal_metric=True, padding_in_metric=False)
    first, second = (to_numpy(causal(x))[0, :-1] for x in ids.values())
    np.testing.assert_allclose(first, second, rtol=0, atol=bound)


def test_without_padding_in_the_metric_a_batch_is_each_text_alone(oracle, noise):
    model = pldr_model(weights_of(oracle), padding_in_metric=False)
    got = to_numpy(model(oracle["inputs/ids"]))
    for row in range(len(got)):
        want = oracle[f"unpadded/logits_{row}"]
        assert_near(got[row, : len(want)], want, 2 * noise)


def round_as_published(attention):
    """Makes an attention in float64 round as the published code does.

    It rounds queries and keys to float32 before it rotates them by a table in float32, which
    PyTorch computed, and whose last bits are no other library's. The root of the size of a head is
    float32.
    """
    root = attention.head_dim**0.5
    energy, factor = attention.energy, root / float(np.float32(root))
    attention.energy = lambda q, k, metric: energy(q, k, metric) * factor
    with np.load(DATA / "pytorch_rotary.npz") as file:
        assert f"sin/{attention.head_dim}" in file, "the table ends at heads of 128 features"
        table = {
            name: file[f"{name}/{attention.head_dim}"] for name in ("frequencies", "cos", "sin")
        }
    angles = np.arange(len(table["cos"]), dtype="float32")[:, None] * table["frequencies"]

    def sines(name, function):
        nearest = function(angles.astype("float64")).astype("float32").view("int32")
        return (nearest + table[name]).view("float32").astype("float64")[:, None]

    cosine, sine = sines("cos", np.cos), sines("sin", np.sin)

    def rotate(x, positions):
        length = x.shape[1]
        x = ops.cast(ops.cast(x, "float32"), "float64")
        first, second, c, s = x[..., 0::2], x[..., 1::2], cosine[:length], sine[:length]
        pairs = [first * c - second * s, first * s + second * c]
        return ops.reshape(ops.stack(pairs, axis=-1), x.shape)

    attention._rotate = rotate


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="Keras computes in float32 there: dense layers on PyTorch, normalization on JAX",
)
def test_in_float64(oracle, noise, float64):
    with computing_in_float64():
        model = pldr_model(weights_of(oracle))
        ids = ops.array(oracle["inputs/ids"])
        # Ours does not round to float32.
        logits = to_numpy(model(ids))
        assert_near(logits, oracle["outputs/logits_f64"], noise)
        for decoder in model.decoders:
            round_as_published(decoder.self_attention)
        x, details = model.run_decoders(ids, return_details=True)
        assert_near(model.compute_logits(x), oracle["outputs/logits_f64"], 1e-6 * noise)
        for i in range(len(model.decoders)):
            got, want = details[f"decoder_{i}"]["G_LM"], oracle[f"outputs/layer_{i}/G_LM_f64"]
            assert_near(got, want, 1e-6 * noise)
