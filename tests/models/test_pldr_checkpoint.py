"""Checkpoints of the published code: what is read, and what is refused."""

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conformance import to_numpy

from keras_tnattn.models import LANGUAGE_MODELS, language_model, load_pldr_checkpoint
from keras_tnattn.models.state_dicts import read_state_dict

DATA = Path(__file__).resolve().parents[1] / "data"
IDS = np.array([[3, 1, 4, 1, 5, 9, 2, 6]])


@pytest.fixture(scope="module")
def oracle():
    with np.load(DATA / "pldr_llm.npz") as file:
        return dict(file)


@pytest.fixture
def weights(oracle):
    return {n.removeprefix("weights/"): x for n, x in oracle.items() if n.startswith("weights/")}


def save(path, weights):
    """Writes a file of safetensors by hand, as its format is described."""
    header, data = {}, b""
    for name, array in weights.items():
        array = np.ascontiguousarray(array, "<f4")
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def of_torch(state, storages):
    """Returns a pickle of protocol 2 of tensors, opcode by opcode, as `torch.save` writes it.

    Args:
        state: Dict of `(storage, offset, shape, stride)` by names.
        storages: Dict of `(class of torch, number of elements)`.
    """

    def text(value):
        value = value.encode()
        return b"X" + len(value).to_bytes(4, "little") + value

    def number(value):
        return b"J" + int(value).to_bytes(4, "little", signed=True)

    def numbers(values):
        return b"(" + b"".join(number(value) for value in values) + b"t"

    empty = b"ccollections\nOrderedDict\n)R"
    content = b"\x80" + bytes([2]) + empty + b"("
    for name, (key, offset, shape, stride) in state.items():
        kind, size = storages[key]
        storage = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key)
        storage += text("cpu") + number(size) + b"tQ"
        arguments = storage + number(offset) + numbers(shape) + numbers(stride) + b"\x89" + empty
        content += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR"
    return content + b"u."


def save_torch(path, content, data=None):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", content)
        for key, array in (data or {}).items():
            archive.writestr(f"{path.stem}/data/{key}", array.tobytes())
    return path


def save_weights_torch(path, weights):
    state, storages, data = {}, {}, {}
    for key, (name, array) in enumerate(weights.items()):
        data[str(key)] = array = np.ascontiguousarray(array, "<f4")
        strides = [s // array.itemsize for s in array.strides]
        state[name] = (str(key), 0, array.shape, strides)
        storages[str(key)] = ("FloatStorage", array.size)
    return save_torch(path, of_torch(state, storages), data)


@pytest.mark.parametrize(
    ("name", "write"), [("a.safetensors", save), ("a.pth", save_weights_torch)]
)
def test_a_checkpoint_gives_the_published_logits(oracle, weights, tmp_path, name, write):
    buffer = {"decoder.dec_layers.0.mha1.rotary_embedding.theta": np.ones(4)}
    model = load_pldr_checkpoint(write(tmp_path / name, {**weights, **buffer}))
    got = to_numpy(model(oracle["inputs/ids"]))
    np.testing.assert_allclose(got, oracle["outputs/logits"], rtol=1e-5, atol=5e-5)


def later_names(weights):
    """Returns the weights by names as the form for the transformers library has them."""
    names = {"decoder.embedding.weight": "model.embed_tokens.weight"}
    names |= {f"final_layer.{kind}": f"lm_head.{kind}" for kind in ("weight", "bias")}
    return {
        names.get(n, n.replace("decoder.dec_layers.", "model.layers.")): x
        for n, x in weights.items()
    }


@pytest.mark.slow
def test_a_later_version_has_other_prefixes_no_biases_and_a_config(weights, tmp_path):
    def load(weights, **config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return load_pldr_checkpoint(save(tmp_path / "model.safetensors", weights))

    def biased(name):
        return name.endswith(".bias") and ("glu" in name or "final_layer" in name)

    zeros = {n: x * 0 if biased(n) else x for n, x in weights.items()}
    want = to_numpy(load(zeros)(IDS))
    absent = later_names({n: x for n, x in weights.items() if not biased(n)})
    model = load(absent, max_position_embeddings=64)
    assert model.max_length == 64
    np.testing.assert_array_equal(to_numpy(model(IDS)), want)
    halves = load(absent, reference_rope=False)
    assert halves.decoders[0].self_attention.rotary == "halves"
    assert np.abs(to_numpy(halves(IDS)) - want).max() > 0.01
    for wrong in ({"custom_G_type": "random"}, {"layer_norm_eps": 1e-5}, {"rope_theta": 5e5}):
        with pytest.raises(ValueError, match=f"Received: .*{next(iter(wrong))}"):
            load(absent, **wrong)


@pytest.mark.slow
def test_options_change_the_model(weights, tmp_path):
    file = save(tmp_path / "a.safetensors", weights)
    model = load_pldr_checkpoint(file, causal_metric=True, padding_in_metric=False)
    other = np.concatenate([IDS[:, :-1], [[7]]], axis=1)
    first, second = (to_numpy(model(ids))[:, :-1] for ids in (IDS, other))
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("decoder.embedding.weight", "such as .* without embedding.weight"),
        ("decoder.dec_layers.0.mha1.plgatt_layer.Wlst", "without 0.mha1.plgatt_layer.Wlst"),
        ("decoder.dec_layers.1.mha1.plgatt_layer.pwlst", "without 1.mha1.plgatt_layer.pwlst"),
        ("decoder.dec_layers.1.mha1.wq.bias", "without 1.mha1.wq.bias"),
        ("decoder.layernorm1.bias", "without layernorm1.bias"),
        ("final_layer.weight", "without final_layer.weight"),
    ],
)
def test_missing_names_are_named(weights, tmp_path, missing, message):
    del weights[missing]
    with pytest.raises(ValueError, match=f"Expected .*weights of .*{message}"):
        load_pldr_checkpoint(save(tmp_path / "a.safetensors", weights))


@pytest.mark.parametrize(
    "name",
    [
        "decoder.dec_layers.1.mha1.wq.weight",
        "decoder.dec_layers.1.mha1.plgatt_layer.Wlst",
        "decoder.dec_layers.0.ffn.gluw3.bias",
        "final_layer.weight",
    ],
)
def test_a_weight_of_another_size_is_named(weights, tmp_path, name):
    weights[name] = weights[name][..., :-1]
    known = name.removeprefix("decoder.dec_layers.")
    with pytest.raises(ValueError, match=f"first layer has. Received: {known} of "):
        load_pldr_checkpoint(save(tmp_path / "a.safetensors", weights))


def test_views_and_kinds_of_numbers(tmp_path):
    x = np.arange(12, dtype="<f4")
    halves = (x.view("<u4") >> 16).astype("<u2")  # exact for small integers
    state = {"t": ("0", 1, (2, 3), (1, 4)), "h": ("1", 0, (12,), (1,)), "s": ("0", 5, (), ())}
    content = of_torch(state, {"0": ("FloatStorage", 12), "1": ("BFloat16Storage", 12)})
    arrays = read_state_dict(save_torch(tmp_path / "a.pt", content, {"0": x, "1": halves}))
    np.testing.assert_array_equal(arrays["t"], [[1, 5, 9], [2, 6, 10]])
    np.testing.assert_array_equal(arrays["h"], x)
    assert arrays["s"] == 5


class Code:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path):
    marker = tmp_path / "marker"
    file = save_torch(tmp_path / "a.pth", pickle.dumps({"weight": Code(marker)}, protocol=2))
    with pytest.raises(ValueError, match="no code is run"):
        load_pldr_checkpoint(file)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["a.safetensors", "a.pth"])
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_refused(weights, tmp_path, name, share):
    write = save if name.endswith("safetensors") else save_weights_torch
    path = write(tmp_path / name, weights)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"Received: path=.*a\."):
        load_pldr_checkpoint(path)


@pytest.mark.parametrize(
    ("offset", "shape", "stride"),
    [
        (0, (13,), (1,)),
        (1, (12,), (1,)),
        (0, (2, 6), (7, 1)),
        (-1, (2,), (1,)),
        (0, (-1,), (1,)),
        (11, (2,), (-1,)),
        (0, (2**31 - 1,), (0,)),
    ],
)
def test_a_tensor_beyond_its_storage_is_refused(tmp_path, offset, shape, stride):
    content = of_torch({"x": ("0", offset, shape, stride)}, {"0": ("FloatStorage", 12)})
    file = save_torch(tmp_path / "a.pth", content, {"0": np.zeros(12, "<f4")})
    with pytest.raises(ValueError, match="within its storage"):
        read_state_dict(file)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
        b"\x80\x02ctorch\nFloatStorage\n)R.",
        b"\x80\x02X\x01\x00\x00\x00aQ.",
        b"\x80\x02K\x01K\x02b.",
        b"not a pickle",
    ],
)
def test_a_damaged_pickle_is_refused(tmp_path, content):
    file = save_torch(tmp_path / "a.pth", content)
    with pytest.raises(ValueError, match="Expected a file of torch"):
        read_state_dict(file)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="Expected a file"):
        load_pldr_checkpoint(tmp_path / "none.pth")
    (tmp_path / "a.h5").write_bytes(b"")
    with pytest.raises(ValueError, match=r"\.safetensors"):
        load_pldr_checkpoint(tmp_path / "a.h5")
    file = save_torch(tmp_path / "a.pth", pickle.dumps([1, 2], protocol=2))
    with pytest.raises(ValueError, match=r"dict of tensors\. .*list"):
        load_pldr_checkpoint(file)
    with pytest.raises(ValueError, match="Expected the weights of a PLDR-LLM"):
        load_pldr_checkpoint(save(tmp_path / "a.safetensors", {"x.weight": np.ones(2)}))


def test_the_published_preset():
    preset = dict(LANGUAGE_MODELS["pldr-v510"])
    layers, heads, head_dim = preset["num_layers"], preset["num_heads"], 64
    assert (layers, heads, preset["model_dim"]) == (5, 14, heads * head_dim)
    assert preset["feedforward_dim"] == preset["model_dim"] * 4 * 2 // 3
    assert preset["residual_dim"] == head_dim * 4 * 2 // 3
    d, k, r, f = preset["model_dim"], head_dim, preset["residual_dim"], preset["feedforward_dim"]
    vocabulary = 100
    units, dense = preset["residual_units"], preset["residual_dense_layers"]

    def gated(size, hidden):
        return 2 * (size * hidden + hidden) + hidden * size + size

    attention = 4 * (d * d + d) + 2 * k + units * (dense * gated(k, r) + 2 * k)
    attention += 5 * heads * k * k
    layer = attention + gated(d, f) + 4 * d
    model = language_model(vocabulary, **preset)
    model.build((None, 8))
    assert model.count_params() == layers * layer + 2 * d + 2 * vocabulary * d + vocabulary
