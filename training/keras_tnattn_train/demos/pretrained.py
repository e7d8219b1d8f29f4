"""`make models`: trains the models that come with the package, makes them small, and packs them.

    python -m keras_tnattn_train.demos.pretrained [RUNS [FOLDER]]

Runs that are there already are kept. `FOLDER` is that of the package by default.
"""

import json
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from keras_small import pretrained
from keras_small.pretrained import ABOUT, MODEL
from keras_tnattn_train.cli import main as command
from keras_tnattn_train.commands import run_demo
from keras_tnattn_train.system.files import write_json

# For each model the training and the compression, as typed after `keras-tnattn`, and its card. No
# command trains on pictures: `train_digits` does.
MODELS: dict[str, dict[str, Any]] = {
    "docstrings": {
        "train": "classify --dataset docstrings --attention tsa --vocabulary-size 4000 "
        "--embedding-dim 32 --epochs 3",
        "compress": "--target 12 --bits 4",
        "data": "8,000 docstrings of installed Python libraries",
        "licence": "of the libraries: Apache-2.0, BSD-3-Clause and PSF-2.0; the model has words of "
        "them, and no sentence",
    },
    "dates-and-names": {
        "train": "translate --corpus cldr:pt-en --preset sdpa --model-dim 64 --num-heads 4 "
        "--feedforward-dim 256 --num-layers 1 --dropout 0 --attention-dropout 0 "
        "--learning-rate 0.001 --warmup-steps 800 --epochs 12 --cooldown-epochs 6 "
        "--vocabulary-size 1000",
        "compress": "--target 7 --bits 4",
        "data": "CLDR's dates, times, amounts, and names of languages and countries, by Babel",
        "licence": "Unicode-3.0",
    },
    "digits": {
        "train": None,
        "compress": "--target 6 --bits 4",
        "data": "scikit-learn's digits, 1,797 pictures",
        "licence": "CC-BY-4.0",
    },
}


def run() -> None:
    """Makes all models."""
    words = sys.argv[1:]
    runs = Path(words[0] if words else "runs/pretrained")
    folder = Path(words[1] if len(words) > 1 else pretrained.__file__.removesuffix("__init__.py"))
    for name, about in MODELS.items():
        trained = runs / name
        small = trained / "compressed"
        if not (trained / "results.json").exists():
            if about["train"] is None:
                train_digits(trained)
            else:
                training = shlex.split(about["train"])
                _check(command([*training, "--run-dir", str(trained), "--name", name]))
        if not (small / "report.json").exists():
            source = trained if about["train"] else trained / MODEL
            options = [*shlex.split(about["compress"]), "--output", str(small)]
            _check(command(["compress", str(source), *options]))
        pack(name, trained, small, folder / name)


def train_digits(folder: Path) -> None:
    """Trains a small convolutional network on three quarters of the digits."""
    epochs = 40
    batch_size = 64
    keras.utils.set_random_seed(0)
    pictures, labels = load_digits(return_X_y=True)
    pictures = (pictures / 16).astype("float32").reshape(-1, 8, 8)
    x, x_test, y, y_test = train_test_split(
        pictures, labels, test_size=0.25, stratify=labels, random_state=0
    )
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(pictures.shape[1:]),
            layers.Reshape((*pictures.shape[1:], 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(10),
        ],
        name="image_classifier",
    )
    steps = epochs * math.ceil(len(x) / batch_size)
    schedule = keras.optimizers.schedules.CosineDecay(5e-3, steps)
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(x, y, batch_size, epochs, verbose=2)
    correct = model.predict(x_test, verbose=0).argmax(axis=-1) == y_test
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / MODEL)
    write_json(folder / "results.json", {"test_accuracy": float(np.mean(correct))})


def _check(status: int) -> None:
    if status:
        raise SystemExit(status)


def pack(name: str, trained: Path, small: Path, folder: Path) -> None:
    """Writes the folder that `keras_small.load` reads."""
    about = MODELS[name]
    results = json.loads((trained / "results.json").read_text(encoding="utf-8"))
    # A small classifier has its vocabulary in another order.
    run = small if (small / "data.json").exists() else trained
    content = _digits() if about["train"] is None else _TASKS[about["train"].split()[0]](run)
    folder.mkdir(parents=True, exist_ok=True)
    data = (small / MODEL).read_bytes()
    (folder / MODEL).write_bytes(data)
    card = {
        "name": name,
        "data": about["data"],
        "licence": about["licence"],
        "commands": _commands(name),
        "bytes": len(data),
        "trained": {key: results[key] for key in ("test_accuracy", "test") if key in results},
    }
    write_about(folder, {**content, "card": card})


def write_about(folder: Path, about: dict[str, Any]) -> None:
    """Writes what `keras_small.load` reads beside the model."""
    text = json.dumps(about, ensure_ascii=False, separators=(",", ":"))
    (folder / ABOUT).write_text(text, encoding="utf-8")


def _texts(folder: Path) -> dict[str, Any]:
    from keras_tnattn_train.classify.loading import ClassifierRun

    run = ClassifierRun(folder)
    words = {
        "vocabulary": run.vectorizer.get_vocabulary()[2:],
        "between": run.vectorizer.between,
        "max_words": run.vectorizer.max_words,
    }
    return {"task": "classify", "class_names": run.class_names, "words": words}


def _pairs(folder: Path) -> dict[str, Any]:
    from keras_tnattn_train.exports.translator import pieces_of
    from keras_tnattn_train.translate.predicting import corpus_of

    source, target = map(pieces_of, corpus_of(folder).tokenizers)
    return {"task": "translate", "source": source, "target": target}


def _digits() -> dict[str, Any]:
    return {"task": "images", "class_names": [str(number) for number in range(10)]}


def _commands(name: str) -> list[str]:
    """Returns the commands that make a model again, for its card."""
    about = MODELS[name]
    if about["train"] is None:
        return ["make models"]
    return [
        f"keras-tnattn {about['train']} --name {name}",
        f"keras-tnattn compress runs/{name} {about['compress']}",
    ]


_TASKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "classify": _texts,
    "translate": _pairs,
}


if __name__ == "__main__":
    sys.exit(run_demo(run))
