"""Measures size and accuracy of compressed text classifiers: ours, Keras' quantization, plain SVD.

    python studies/benchmarks/model_compression.py --dataset reuters --data-dir DIR --seeds 0 1 2
    python studies/benchmarks/model_compression.py --dataset newsgroups --data-dir DIR --seeds 0 1 2
    python studies/benchmarks/model_compression.py --dataset reuters --data-dir DIR \
        --model transformer

`--model tsa` is what `keras-tnattn classify --initial-weights random --word-dropout 0.5 --dropout
0.1` trains, with 1.28 million weights; `transformer` has Keras' own `MultiHeadAttention` and
feed-forward layers of 512 units. Each is trained once per seed and kept in `--folder`. Only the
rows called healed are trained after the compression, for an epoch on the training texts, thinned to
30 % of their words. The test part is used for measuring only, and its first 32 texts for the speed,
relative to the trained model. The peers are Keras' int8 and int4 quantization of the whole model,
and the plain SVD of each layer to the same relative error, as keras_compressor does it.
tensorly-torch needs PyTorch: `tensorly_torch.py` measures it with the models and test parts that
this leaves in FOLDER; run this again to draw both in one picture (models and rows are kept, also
after an interruption). `--coded` adds rows of coded files (`.tnz`), by the bytes of these files.

Writes FOLDER/DATASET-MODEL.csv and a picture of it.
"""

import argparse
import csv
import os
import shutil
import sys
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import keras
import numpy as np

from keras_small import Data, Within, compress
from keras_small.building.saving import file_bytes
from keras_small.storage.sizes import byte_count
from keras_small.survey.inventory import places
from keras_tnattn.layers import MaskedAveragePooling1D
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.classify.loading import thin_out
from keras_tnattn_train.classify.texts import read_texts
from keras_tnattn_train.classify.train import prepare_parts, train_classifier
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.system.files import replacing

COLUMNS = ("seed", "method", "asked", "bytes", "ratio", "accuracy", "lost", "speed")
TOLERANCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
# The targets of our method in floats and in 4 bits.
TARGETS = {None: (4, 8, 16, 32), 4: (16, 30, 50, 100)}
# The targets and the bits of the models that are healed for an epoch.
HEALED = {"tsa": ((30, 50, 100), 4), "transformer": ((8, 16), None)}
CODED = (16, 30, 50, 100)
# Of the picture: points of accuracy in the right panel, and sizes.
CLOSE = 4
TICKS = (1, 2, 4, 8, 16, 32, 64)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="reuters")
    parser.add_argument("--data-dir")
    parser.add_argument("--model", choices=("tsa", "transformer"), default="tsa")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--epochs", type=int, default=10, help="of --model transformer")
    parser.add_argument("--folder", type=Path, default=Path("benchmarks/compression"))
    parser.add_argument("--coded", action="store_true", help="measure coded files, too")
    parser.add_argument("--quick", action="store_true", help="try fewer targets, without healing")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / f"{args.dataset}-{args.model}{'-quick' * args.quick}.csv"
    rows = read(path)
    for seed in args.seeds:
        model, parts = trained(args, seed)
        measure = measurer(model, parts["test"])
        for method, asked, make in jobs(model, parts["train"][0], args):
            if (seed, method, str(asked)) in {(r["seed"], r["method"], r["asked"]) for r in rows}:
                continue
            try:
                small, renumbered = make()
            except ValueError as error:
                if not str(error).startswith("Expected a target of at most"):
                    raise
                print(f"{method}, {asked}: {error}")
                continue
            size = file_bytes(small, ".tnz") if "coded" in method else byte_count(small)
            row = {"seed": seed, "method": method, "asked": str(asked)}
            rows.append(row | measure(small, renumbered, size))
            print(rows[-1], flush=True)
            write(path, rows)
    draw(rows + read(path.with_name(f"{path.stem}-tensorly-torch.csv")), path.with_suffix(".png"))
    return 0


def read(path):
    """Returns the rows of a table, or none if there is no such file."""
    if not path.exists():
        return []
    kinds = dict.fromkeys(COLUMNS, float) | dict.fromkeys(("method", "asked"), str)
    kinds |= dict.fromkeys(("seed", "bytes"), int)
    with path.open(newline="") as file:
        return [
            {name: kinds[name](value) if value else None for name, value in row.items()}
            for row in csv.DictReader(file)
        ]


def write(path, rows):
    """Writes a table."""
    with replacing(path) as unfinished, unfinished.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def trained(args, seed):
    """Returns the model of a seed, trained now or earlier, and the parts of the data."""
    config = ClassifyConfig(
        dataset=args.dataset,
        data_dir=args.data_dir,
        seed=seed,
        attention="tsa",
        initial_weights="random",
        test_fraction=0.4,
        validation_fraction=0.0,
        max_words=200,
        word_dropout=0.5,
        dropout=0.1,
        name=f"{args.dataset}-{args.model}-{seed}",
    )
    data = read_texts(config)
    words, split = prepare_parts(config, data)
    parts = {name: (np.asarray(part.ids), part.labels) for name, part in split.items()}
    path = args.folder / f"{config.name}.keras"
    inputs, labels = parts["test"]
    np.savez_compressed(path.with_suffix(".npz"), inputs=inputs, labels=labels)
    if path.exists():
        return keras.models.load_model(path), parts
    if args.model == "tsa":
        run = Run(args.folder / "runs" / config.name)
        if not run.results:
            train_classifier(config, run, data)
        with replacing(path) as unfinished:
            shutil.copy(run.folder / "model.keras", unfinished)
        return keras.models.load_model(path), parts
    keras.utils.set_random_seed(seed)
    model = transformer(words.vocabulary_size(), len(data.class_names))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(*parts["train"], batch_size=32, epochs=args.epochs, verbose=2)
    with replacing(path) as unfinished:
        model.save(unfinished)
    return model, parts


def transformer(vocabulary_size, num_classes):
    """Returns a classifier of Keras' own layers."""
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(vocabulary_size, 128, mask_zero=True)(ids)
    for _ in range(2):
        attended = keras.layers.MultiHeadAttention(4, 32)(x, x)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, attended]))
        hidden = keras.layers.Dense(512, "relu")(x)
        hidden = keras.layers.Dense(128)(keras.layers.Dropout(0.1)(hidden))
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, hidden]))
    x = keras.layers.Dropout(0.1)(MaskedAveragePooling1D()(x))
    return keras.Model(ids, keras.layers.Dense(num_classes, "softmax")(x))


def jobs(model, data, args):
    """Yields a method, what is asked of it, and a function that returns the small model.

    The function also returns how the inputs of the small model are renumbered.
    """

    def ours(target, how, epochs=0):
        result = compress(model, target, data=Data(data, kept_ids=2), **how)
        if epochs:
            result.heal(thin_out(data), epochs=epochs, learning_rate=3e-4)
        return result.model, result.renumbering

    def plain(tolerance):
        return compress(model, Within(tolerance), formats="low_rank", bits=32).model, None

    yield "full", 1, lambda: (model, None)
    for mode in ("int8", "int4"):
        yield f"Keras {mode}", mode, lambda mode=mode: (quantized_by_keras(model, mode), None)
    for tolerance in TOLERANCES[2:3] if args.quick else TOLERANCES:
        yield "plain SVD", tolerance, partial(plain, tolerance)
    for bits, targets in TARGETS.items():
        how = {"bits": bits or 32}
        method = "ours" if bits is None else f"ours, {bits} bits"
        for target in targets[1:2] if args.quick else targets:
            yield method, target, partial(ours, target, how)
    if not args.quick:
        targets, bits = HEALED[args.model]
        how = {"bits": bits or 32}
        for target in targets:
            yield "ours, healed", target, partial(ours, target, how, epochs=1)
    for target in CODED if args.coded else ():
        how = {"coded": True}
        yield "ours, coded", target, partial(ours, target, how)
        yield "ours, coded, healed", target, partial(ours, target, how, epochs=1)


def measurer(model, test):
    """Returns a function that measures a small model beside the original."""
    inputs, labels = test

    def accuracy(small, renumbered):
        ids = inputs if renumbered is None else renumbered(inputs)
        predictions = small.predict(ids, batch_size=256, verbose=0).argmax(-1)
        return 100 * float(np.mean(predictions == labels))

    full, base = byte_count(model), accuracy(model, None)

    def measure(small, renumbered, size):
        reached = accuracy(small, renumbered)
        return {
            "bytes": size,
            "ratio": round(full / size, 2),
            "accuracy": round(reached, 2),
            "lost": round(base - reached, 2),
            "speed": round(speed(model, small, inputs[:32]), 2),
        }

    return measure


def speed(model, small, batch):
    """Returns how many times as fast as `model` the small one is, the two taking turns."""
    times = {model: [], small: []}
    for either in times:
        either.predict_on_batch(batch)
    for _ in range(21):
        for either, measured in times.items():
            start = time.perf_counter()
            either.predict_on_batch(batch)
            measured.append(time.perf_counter() - start)
    return float(np.median(times[model]) / np.median(times[small]))


def quantized_by_keras(model, mode):
    """Returns the whole model quantized by Keras."""
    copy = compress(model, 1).model
    kinds = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding)
    # `keras.Model.quantize` leaves subclasses out, and `TokenEmbedding` is one of `Embedding`.
    for layer in [p.layer for p in places(copy) if isinstance(p.layer, kinds)]:
        layer.quantize(mode, type_check=False)
    return copy


def draw(rows, path):
    """Draws the mean accuracy of each method and size over the seeds.

    The right panel has only what is close to the accuracy of the full model.
    """
    from matplotlib.figure import Figure

    from keras_tnattn_train.runs.plots import distinct_colors

    figure = Figure(figsize=(12, 5), layout="constrained")
    panels = figure.subplots(1, 2)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    colors = distinct_colors(len(methods))
    for number, (method, color) in enumerate(zip(methods, colors, strict=True)):
        points = {}
        of_method = [row for row in rows if row["method"] == method]
        for row in of_method:
            points.setdefault(str(row["asked"]), []).append((row["ratio"], row["accuracy"]))
        seeds = len({row["seed"] for row in of_method})  # a mean over some of them would mislead
        groups = (group for group in points.values() if len(group) == seeds)
        means = sorted(tuple(np.mean(group, axis=0)) for group in groups)
        marker = "os^vD"[number % 5]
        for axes in panels:
            axes.plot(*zip(*means, strict=True), f"{marker}-", color=color, label=method)
    full = np.mean([row["accuracy"] for row in rows if row["method"] == "full"])
    panels[0].set(title="all sizes", ylabel="accuracy on the test part, %")
    panels[1].set(title=f"within {CLOSE} points of the full model", ylim=(full - CLOSE, full + 1))
    for axes in panels:
        axes.set(xscale="log", xlabel="times smaller")
        axes.set_xticks(TICKS, list(map(str, TICKS)))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
