import dataclasses
import json
import math
import shutil

import keras
import numpy as np
import pytest
from import_path import run_python
from run_folders import EXPORTS, FILES, assert_equal, assert_refused, interrupted_after

from keras_tnattn_train.cli import train as main
from keras_tnattn_train.data.images import load_images
from keras_tnattn_train.images.config import ImagesConfig
from keras_tnattn_train.images.train import _compiled_model, deductive_outputs
from keras_tnattn_train.runs.run import Run

tensorflow_only = pytest.mark.skipif(not EXPORTS, reason="only the TensorFlow backend exports")


def small_parts(rows=60, size=6):
    """Images whose class is how bright they are."""
    labels = np.arange(rows) % 3
    images = np.random.default_rng(0).integers(0, 80, (rows, size, size))
    images = (images + 85 * labels[:, None, None]).astype("uint8")
    return images, labels.astype("uint8")


def npz(folder, **arrays):
    (x, y), (test_x, test_y) = small_parts(), small_parts(30)
    parts = {"x_train": x, "y_train": y, "x_test": test_x, "y_test": test_y} | arrays
    np.savez(folder / "mnist.npz", **parts)
    return str(folder)


def command(data_dir, folder, *more):
    options = (
        "--dataset mnist --attention tn --patch-size 3 --bond-dim 4 --epochs 5 --batch-size 10"
    )
    options += " --learning-rate 0.03"
    return ["images", "--data-dir", data_dir, "--run-dir", str(folder), *options.split(), *more]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert main(command(npz(folder), folder / "run")) == 0
    return str(folder), folder / "run"


class TestData:
    def test_parts_of_the_digits(self):
        data = load_images("digits")
        assert data.images.shape == (1347, 8, 8)
        assert data.test_images.shape == (450, 8, 8)
        assert (len(data.labels), len(data.test_labels)) == (1347, 450)
        assert data.images.min() == 0
        assert data.images.max() == 1
        assert data.class_names == tuple("0123456789")
        assert min(np.bincount(data.test_labels)) >= 43
        assert load_images("digits").fingerprint() == data.fingerprint()
        assert load_images("digits", seed=1).fingerprint() != data.fingerprint()
        wide = dataclasses.replace(data, images=data.images.reshape(-1, 4, 16))
        assert wide.fingerprint() != data.fingerprint()

    @pytest.mark.parametrize(
        ("dataset", "first"), [("mnist", "0"), ("fashion_mnist", "T-shirt/top")]
    )
    def test_the_loaders_of_keras(self, monkeypatch, dataset, first):
        loader = f"keras.datasets.{dataset}.load_data"
        monkeypatch.setattr(loader, lambda: (small_parts(), small_parts(30)))
        data = load_images(dataset)
        assert data.images.shape == (60, 6, 6)
        assert data.test_labels.tolist() == [0, 1, 2] * 10
        assert 0.9 < data.images.max() <= 1
        assert data.images.dtype == "float32"
        assert data.class_names[0] == first
        assert len(data.class_names) == 10

    def test_a_folder_of_tables(self, tmp_path):
        data = load_images("mnist", npz(tmp_path))
        np.testing.assert_allclose(data.images * 255, small_parts()[0], rtol=1e-6)


def test_the_initial_matrices_have_the_deviation_of_the_options(tmp_path):
    data = load_images("mnist", npz(tmp_path))

    def kernels(deviation):
        keras.utils.set_random_seed(0)
        options = {"attention": "tn", "bond_dim": 4, "initial_deviation": deviation}
        config = ImagesConfig(dataset="mnist", **options)
        return _compiled_model(config, data).get_weights()

    exact, small, large = (kernels(deviation) for deviation in (0.0, 0.1, 0.2))
    assert max(np.abs(one - start).max() for start, one in zip(exact, small, strict=True)) > 0.1
    for start, one, two in zip(exact, small, large, strict=True):
        np.testing.assert_allclose(two - start, 2 * (one - start), atol=1e-6)


def test_the_learning_rate_falls_as_a_cosine_to_0(tmp_path):
    config = ImagesConfig(dataset="mnist", epochs=4, batch_size=16, learning_rate=0.03)
    model = _compiled_model(config, load_images("mnist", npz(tmp_path)))
    schedule = keras.optimizers.schedules.deserialize(model.optimizer.get_config()["learning_rate"])
    last = 4 * 4  # of 60 images, the fourth batch of an epoch has 12
    rates = [float(schedule(step)) for step in range(last + 2)]
    want = [0.015 * (1 + math.cos(math.pi * min(step / last, 1))) for step in range(last + 2)]
    assert rates == pytest.approx(want, rel=1e-4, abs=1e-8)


def test_the_defaults_depend_on_data_and_attention():
    assert [ImagesConfig(dataset=name).epochs for name in ("mnist", "fashion_mnist")] == [5, 5]
    assert [ImagesConfig(dataset=name).epochs for name in ("digits", "pictures")] == [40, 40]
    assert ImagesConfig(dataset="mnist", epochs=3).epochs == 3
    assert ImagesConfig().learning_rate == ImagesConfig(attention="tn").learning_rate == 5e-3
    assert ImagesConfig(attention="plga").learning_rate == 1e-3


@pytest.mark.parametrize("size", [None, 1, 3])
def test_a_site_is_a_row_a_patch_or_a_pixel(tmp_path, size):
    data = load_images("mnist", npz(tmp_path))
    options = {"attention": "tn", "bond_dim": 2, "patch_size": size}
    model = _compiled_model(ImagesConfig(dataset="mnist", **options), data)
    sites = keras.Model(model.input, model.get_layer("patches").output)
    image = np.arange(36).reshape(6, 6)
    got = keras.ops.convert_to_numpy(sites(image[None].astype("float32")))[0]
    high, wide = (size, size) if size else (1, 6)
    want = [
        image[i : i + high, j : j + wide].ravel()
        for i in range(0, 6, high)
        for j in range(0, 6, wide)
    ]
    np.testing.assert_array_equal(got, want)


def test_a_run_folder_holds_it_all(uninterrupted):
    _, folder = uninterrupted
    assert {path.name for path in folder.iterdir()} == FILES - {"export.json"} | {
        "confusion_matrix.png"
    }
    results = Run(folder).results
    assert results["rows"] == {"train": 60, "test": 30}
    assert results["test_accuracy"] >= 0.5  # of three classes; 0.33 knows nothing
    model = keras.models.load_model(folder / "model.keras")
    assert results["parameters"] == {"all": model.count_params()}
    accuracy = np.mean(
        model.predict(small_parts(30)[0] / 255, verbose=0).argmax(-1) == [0, 1, 2] * 10
    )
    assert results["test_accuracy"] == accuracy


@pytest.mark.slow
def test_an_interrupted_run_ends_as_an_uninterrupted_one(uninterrupted, tmp_path, monkeypatch):
    data_dir, whole = uninterrupted
    interrupted_after(2, command(data_dir, tmp_path / "run"), monkeypatch)
    assert main(["images", "--run-dir", str(tmp_path / "run"), "--resume"]) == 0
    assert_equal(tmp_path / "run", whole)


@tensorflow_only
@pytest.mark.slow
def test_exported_and_loaded_with_tensorflow_alone(uninterrupted, tmp_path):
    run = shutil.copytree(uninterrupted[1], tmp_path / "run")
    resumed = ["images", "--run-dir", str(run), "--resume", "--export"]
    assert main([*resumed, "--saved-models", str(tmp_path / "saved")]) == 0
    exported = Run(run).results["exported"]
    assert exported == f"{tmp_path}/saved/mnist-tn-patches-3-0/1"
    code = f"""
import json, sys
import tensorflow as tf
model = tf.saved_model.load({exported!r})
images = tf.random.stateless_uniform([4, 6, 6], (1, 2))
got = model.signatures["serving_default"](images=images)
assert not any(name.startswith("keras_tnattn") for name in sys.modules)
labels = [label.decode() for label in got["label"].numpy()]
print(json.dumps([images.numpy().tolist(), labels, got["probabilities"].numpy().tolist()]))
"""
    out = run_python("-c", code)
    images, labels, probabilities = json.loads(out.stdout)
    model = keras.models.load_model(run / "model.keras")
    want = keras.ops.softmax(model.predict(np.array(images), verbose=0))
    np.testing.assert_allclose(probabilities, want, atol=1e-5)
    assert labels == [str(i) for i in np.argmax(want, -1)]


@pytest.mark.slow
def test_the_default_is_a_convolutional_network(tmp_path):
    arguments = ["images", "--dataset", "mnist", "--data-dir", npz(tmp_path)]
    arguments += ["--epochs", "20", "--batch-size", "10"]
    assert main([*arguments, "--run-dir", str(tmp_path / "run")]) == 0
    model = keras.models.load_model(tmp_path / "run/model.keras")
    assert sum(isinstance(layer, keras.layers.Conv2D) for layer in model.layers) == 2
    assert Run(tmp_path / "run").results["test_accuracy"] > 0.9


@pytest.mark.slow
def test_power_law_graph_attention_and_its_deductive_outputs(tmp_path):
    options = "--attention plga --patch-size 3 --model-dim 8 --residual-units 1 --residual-dim 4"
    options += " --epochs 8 --batch-size 10 --learning-rate 0.01 --dataset mnist --num-layers 2"
    folder = tmp_path / "run"
    arguments = ["images", "--data-dir", npz(tmp_path), "--run-dir", str(folder)]
    assert main([*arguments, *options.split()]) == 0
    assert (folder / "deductive.png").is_file()
    assert Run(folder).results["test_accuracy"] >= 0.5
    model = keras.models.load_model(folder / "model.keras")
    image = load_images("mnist", str(tmp_path)).test_images[0]
    outputs = deductive_outputs(model, image)
    assert outputs["E_LM"].shape == outputs["A_LM"].shape == (2, 4, 4)
    np.testing.assert_allclose(outputs["E_LM"].sum(-1), 1, rtol=1e-5)
    assert outputs["A_LM"].min() > 0
    power = np.einsum("hij,hjk->hik", outputs["a"], outputs["A_LM"] ** outputs["P"])
    np.testing.assert_allclose(outputs["G_LM"], power + outputs["b_a"], rtol=1e-3, atol=1e-5)
    # The last layer's: its first attention learned other exponents.
    last = model.get_layer("encoder_1").attention
    assert any(np.array_equal(weight, outputs["P"]) for weight in last.get_weights())


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "part"),
        [
            (["--dataset", "cats"], "cats"),
            (["--dataset", "digits"], "data_dir="),
            (["--patch-size", "0"], "patch_size=0"),
            (["--patch-size", "4"], "patch_size=4"),
            (["--bond-dim", "0"], "bond_dim=0"),
            (["--initial-deviation", "nan"], "initial_deviation=nan"),
            (["--num-heads", "4"], "num_heads=4"),
            (["--attention", "plga"], "bond_dim=4"),
            (["--attention", "none", "--bond-dim", "10"], "patch_size=3"),
            (["--weight-decay", "nan"], "weight_decay=nan"),
            (["--dataset", "fashion_mnist"], "fashion_mnist.npz"),
        ],
    )
    def test_bad_options_leave_no_folder(self, tmp_path, capsys, options, part):
        assert_refused(capsys, command(npz(tmp_path), tmp_path / "run", *options), part)
        assert [path.name for path in tmp_path.iterdir()] == ["mnist.npz"]

    @pytest.mark.parametrize(
        ("arrays", "part"),
        [
            ({"y_test": np.zeros(2, "uint8")}, "(30, 6, 6) and (2,)"),
            ({"x_train": np.zeros((60, 36), "uint8")}, "(60, 36)"),
            ({"x_test": np.zeros((30, 5, 6), "uint8")}, "(30, 5, 6)"),
            ({"y_train": np.full(60, -1)}, "labels (R,)"),
            ({"x_train": np.full((60, 6, 6), 256)}, "0 to 255"),
        ],
    )
    def test_tables_of_another_kind(self, tmp_path, capsys, arrays, part):
        assert_refused(capsys, command(npz(tmp_path, **arrays), tmp_path / "run"), part)

    def test_half_a_table(self, tmp_path, capsys):
        (tmp_path / "mnist.npz").write_bytes(b"PK half a file")
        assert_refused(capsys, command(str(tmp_path), tmp_path / "run"), "mnist.npz")

    def test_a_failed_download(self, tmp_path, capsys, monkeypatch):
        def fails():
            raise Exception("URL fetch failure on https://somewhere: no network\nat all")

        monkeypatch.setattr("keras.datasets.mnist.load_data", fails)
        arguments = ["images", "--dataset", "mnist", "--run-dir", str(tmp_path / "run")]
        assert_refused(capsys, arguments, "URL fetch failure", "--dataset digits", "--data-dir")
        assert list(tmp_path.iterdir()) == []

    def test_other_data(self, uninterrupted, capsys, tmp_path):
        _, whole = uninterrupted
        config = json.loads((whole / "config.json").read_text())
        run = tmp_path / "run"
        run.mkdir()
        (run / "data.json").write_bytes((whole / "data.json").read_bytes())
        changed = npz(tmp_path, y_train=np.zeros(60, "uint8"))
        (run / "config.json").write_text(json.dumps(config | {"data_dir": changed}))
        assert_refused(capsys, ["images", "--run-dir", str(run), "--resume"], "other texts, images")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "accuracy", "weights"),
    [
        ([], 0.975, 29_820),
        (["--patch-size", "2"], 0.94, 9_020),
        (["--patch-size", "2", "--attention", "plga"], 0.81, 16_426),
    ],
    ids=["rows", "patches", "plga"],
)
def test_learns_the_digits(tmp_path, options, accuracy, weights):
    assert main(["images", *options, "--run-dir", str(tmp_path / "run")]) == 0
    results = Run(tmp_path / "run").results
    assert results["test_accuracy"] >= accuracy  # docs/studies/results.md has the figures
    assert results["parameters"]["all"] == weights
