"""`make models`: trains the models that come with the package, makes them small, and packs them.

    python -m keras_tnattn_train.demos.pretrained [RUNS [FOLDER]]

Runs that are there already are kept. `FOLDER` is that of the package by default.
"""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_small.pretrained import ABOUT, MODEL
from keras_tnattn_train.cli import main as command
from keras_tnattn_train.commands import run_demo

# For each model the trainings and the compression, as typed after `keras-tnattn`, and its card.
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
        "train": "images --dataset digits",
        "compress": "--target 6 --bits 4",
        "data": "scikit-learn's digits, 1,797 pictures",
        "licence": "CC-BY-4.0",
    },
}


def run() -> None:
    """Makes all models."""
    runs, folder = (Path(x) for x in (*sys.argv[1:3], *_default_folders()[len(sys.argv[1:3]) :]))
    for name, about in MODELS.items():
        small = runs / name / "compressed"
        if not (runs / name / "results.json").exists():
            _check(command([*shlex.split(about["train"]), "--run-dir", str(runs), "--name", name]))
        if not (small / "report.json").exists():
            source = runs / name / ("model.keras" if name == "digits" else "")
            options = [*shlex.split(about["compress"]), "--output", str(small)]
            _check(command(["compress", str(source), *options]))
        pack(name, runs / name, small, folder / name)


def _default_folders() -> tuple[str, str]:
    import keras_small.pretrained

    return "runs/pretrained", str(Path(keras_small.pretrained.__file__).parent)


def _check(status: int) -> None:
    if status:
        raise SystemExit(status)


def pack(name: str, trained: Path, small: Path, folder: Path) -> None:
    """Writes the folder that `keras_small.load` reads."""
    about = MODELS[name]
    results = json.loads((trained / "results.json").read_text(encoding="utf-8"))
    # A small classifier has its vocabulary in another order.
    run = small if (small / "data.json").exists() else trained
    content = _TASKS[about["train"].partition(" ")[0]](run)
    folder.mkdir(parents=True, exist_ok=True)
    data = (small / MODEL).read_bytes()
    (folder / MODEL).write_bytes(data)
    card = {
        "name": name,
        "data": about["data"],
        "licence": about["licence"],
        "commands": [
            f"keras-tnattn {about['train']} --name {name}",
            f"keras-tnattn compress runs/{name} {about['compress']}",
        ],
        "bytes": len(data),
        "trained": {key: results[key] for key in ("test_accuracy", "test") if key in results},
    }
    text = json.dumps({**content, "card": card}, ensure_ascii=False, separators=(",", ":"))
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
    from keras_tnattn_train.translate.loading import corpus_of

    source, target = map(pieces_of, corpus_of(folder).tokenizers)
    return {"task": "translate", "source": source, "target": target}


def _pictures(folder: Path) -> dict[str, Any]:
    from keras_tnattn_train.images.loading import ImagesRun

    return {"task": "images", "class_names": ImagesRun(folder).class_names}


_TASKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "classify": _texts,
    "translate": _pairs,
    "images": _pictures,
}


if __name__ == "__main__":
    sys.exit(run_demo(run))
