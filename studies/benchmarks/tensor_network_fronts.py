"""When does a tensor network win? Error against bytes, for kernels, tables and a language model.

    python studies/benchmarks/tensor_network_fronts.py --data-dir DIR --folder FOLDER

Needs the extras `hub` and `plot` and the package tokenizers. Each kernel and table is approximated
by tensor trains, low rank, factors that the heads of an attention share, a state for each token,
and integers, and each of the first in integers of 8 bits, too (`approximations.py`). Integers and
factors of kernels see the same second moment of the inputs, factors of tables the counts of tokens;
the others see no data. The relative error of the outputs is that on other texts. The kernels are
those of all-MiniLM-L6-v2 and of a language model of bytes; the tables those of MiniLM and of a
classifier of Reuters. `--whole` makes the language model smaller by each way, and trains it
afterwards towards its own outputs. `FOLDER` keeps the trained model, the rows (fronts.csv,
whole.csv) and the picture.
"""

import argparse
import csv
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import compressed_language_model as language
import keras
import keras_hub
import numpy as np
import tokenizers
from approximations import of_heads, of_kernel, of_table
from compressed_minilm import encoded, part
from keras import ops
from scipy.special import log_softmax
from texts import mixed_texts, read_columns

from keras_small import compress
from keras_small.storage.low_rank_einsum_dense import kernel_matrix
from keras_small.storage.sizes import byte_count
from keras_small.survey.calibration import observe
from keras_small.survey.inventory import places
from keras_small.survey.kinds import has_kernel
from keras_tnattn import TextClassifier
from keras_tnattn_train.data.foreign_models import fetch
from keras_tnattn_train.language.corpus import PackedBatches, read_corpus

COLUMNS = ("model", "what", "way", "setting", "share", "error")
WHOLE_COLUMNS = ("way", "times", "bytes", "bits", "accuracy", "trained_bits", "trained_accuracy")
OF_HEADS = ("_query_dense", "_key_dense", "_value_dense", "_output_dense")
LENGTH = 128
ROWS = 1024
WAYS = {
    "integers": {"formats": ()},
    "coded integers": {"coded": True},
    "low rank": {"bits": 32, "formats": "low_rank"},
    "low rank, 8 bits": {"bits": 8, "formats": "low_rank"},
    "tensor train": {"bits": 32, "formats": "tensor_train"},
    "tensor train, 8 bits": {"bits": 8, "formats": "tensor_train"},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/keras_tnattn").expanduser())
    parser.add_argument("--texts", type=int, default=128, help="for calibration; as many are held")
    parser.add_argument("--every", type=int, default=5, help="which kernels are approximated")
    parser.add_argument("--whole", type=float, nargs="*", default=(), help="times smaller")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    table = options.folder / "fronts.csv"
    if not table.exists():
        rows = [*rows_of_minilm(options), *rows_of_language(options), *rows_of_classifier(options)]
        write(table, COLUMNS, rows)
    for row in means(read(table)):
        print("{:16} {:8} {:24} {:.3f} of the bytes: error {:.3f}".format(*row))
    draw(means(read(table)), options.folder / "fronts.png")
    if options.whole:
        whole(options)


def rows_of_minilm(options):
    folder = fetch("minilm", options.cache) / "all_minilm_l6_v2"
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = mixed_texts(options.data_dir, 40 * options.texts)
    inputs = encoded(tokenizer, texts[: 2 * options.texts], 64)
    halves = [part(inputs, i, i + options.texts) for i in (0, options.texts)]
    model = keras_hub.models.BertBackbone.from_preset(str(folder))
    yield from rows_of_kernels("MiniLM", model, halves, options.every)
    ids = encoded(tokenizer, texts, 64)["token_ids"]
    table = ops.convert_to_numpy(model.token_embedding.embeddings)
    middle = len(ids) // 2
    yield from rows_of_table("MiniLM", table, ids[:middle], ids[middle:])


def rows_of_language(options):
    model, corpus = language_model(options)
    batches = PackedBatches(corpus.parts["train"], LENGTH, 2 * options.texts, seed=1)
    (ids, _) = batches[0]
    halves = [ids[: options.texts], ids[options.texts :]]
    yield from rows_of_kernels("language model", model, halves, max(options.every // 2, 1))


def rows_of_classifier(options):
    path = options.data_dir / "reuters" / "data.tsv.xz"
    columns = read_columns(path, "split", "text", "label")
    rows = list(zip(*columns, strict=True))
    texts = [text for split, text, _ in rows if split == "train"]
    labels = [label for split, _, label in rows if split == "train"]
    held = [text for split, text, _ in rows if split == "test"]
    keras.utils.set_random_seed(0)
    classifier = TextClassifier(random_state=0).fit(texts, labels)
    layer = next(x for x in classifier.model.layers if hasattr(x, "embeddings"))
    table = ops.convert_to_numpy(layer.embeddings)
    ids = [ops.convert_to_numpy(classifier.vectorizer_(list(x))) for x in (texts, held)]
    yield from rows_of_table("classifier", table, *ids)


def rows_of_kernels(name, model, halves, every):
    """Yields a row for each approximation of some kernels, and of attentions as a whole."""
    layers = {p.path: p.layer for p in places(model) if has_kernel(p.layer)}
    moments = [observe(model, layers, [half])[0] for half in halves]
    kernels = {path: matrix_of(layer) for path, layer in layers.items()}
    for path in sorted(layers)[::every]:
        print(name, path, kernels[path].shape, flush=True)
        calibration, held = (moment[path].moment for moment in moments)
        for found in of_kernel(kernels[path], calibration):
            error = error_of(kernels[path], found.matrix, held)
            share = found.bytes / (4 * kernels[path].size)
            yield name, "kernel", found.way, found.setting, share, np.sqrt(error)
    for place in places(model):
        if isinstance(place.layer, keras.layers.MultiHeadAttention):
            held = [moments[1][f"{place.path}/{kernel}"].moment for kernel in OF_HEADS]
            yield from rows_of_attention(name, place.layer, held)


def rows_of_attention(name, attention, held):
    layers = [getattr(attention, name) for name in OF_HEADS]
    query, key, value, output = (ops.convert_to_numpy(layer.kernel) for layer in layers)
    parts = [query, key, value, output.transpose(2, 0, 1)]  # each (model size, heads, head size)
    tensor = np.stack(parts, axis=-1).transpose(0, 2, 3, 1).astype("float64")

    def matrices(tensor):
        width = len(tensor)
        *three, last = np.moveaxis(tensor.transpose(0, 3, 1, 2), -1, 0)
        return [x.reshape(width, -1) for x in three] + [last.reshape(width, -1).T]

    for found in of_heads(tensor):
        pairs = list(zip(matrices(tensor), matrices(found.matrix), held, strict=True))
        error = np.mean([error_of(exact, other, moment) for exact, other, moment in pairs])
        share = found.bytes / (4 * tensor.size)
        yield name, "kernel", found.way, found.setting, share, np.sqrt(error)


def rows_of_table(name, table, ids, held_ids):
    counts, held = (np.bincount(np.ravel(x), minlength=len(table)) for x in (ids, held_ids))
    counts[0] = held[0] = 0  # the padding
    for found in of_table(table, counts.astype("float64")):
        squares = np.sum((found.matrix - table) ** 2, axis=1), np.sum(table**2, axis=1)
        error = np.sqrt(held @ squares[0] / (held @ squares[1]))
        yield name, "table", found.way, found.setting, found.bytes / (4 * table.size), error


def matrix_of(layer):
    kernel = ops.convert_to_numpy(layer.kernel)
    return kernel_matrix(kernel, layer.equation) if kernel.ndim > 2 else kernel


def error_of(exact, other, moment):
    """The mean square of the outputs' errors, as a share of that of the outputs."""
    squares = [np.sum(x * (moment @ x)) for x in (other - exact, exact)]
    return squares[0] / squares[1]


def language_model(options):
    """Returns the model of bytes, trained now or earlier, and its corpus."""
    how = SimpleNamespace(data_dir=options.data_dir, folder=options.folder, seed=0)
    config = language.config_of(language.DIMS[0], how)
    corpus = read_corpus(config)
    return language.trained(config, corpus, how), corpus


def whole(options):
    """Prints and writes what the language model predicts, before and after training."""
    model, corpus = language_model(options)
    data, _ = PackedBatches(corpus.parts["train"], LENGTH, ROWS, seed=0)[0]
    more, _ = PackedBatches(corpus.parts["train"], LENGTH, 4 * ROWS, seed=2)[0]

    held = PackedBatches(corpus.parts["validation"], LENGTH, ROWS)[0]
    path = options.folder / "whole.csv"
    rows = (
        read(path) if path.exists() else [("original", 1, byte_count(model), *scores(model, *held))]
    )
    for way, how in WAYS.items():
        for times in options.whole:
            if (way, times) in {(row[0], float(row[1])) for row in rows}:
                continue
            try:
                result = compress(model, times, data=data, verbose=0, **how)
            except ValueError as error:
                print(f"{way}, {times:g} times: {error}", flush=True)
                continue
            report = result.report
            size = report.file_bytes if how.get("coded") else report.bytes_after
            before = scores(result.model, *held)
            result.heal(more, epochs=1)
            rows.append((way, times, size, *before, *scores(result.model, *held)))
            print(*rows[-1], flush=True)
            write(path, WHOLE_COLUMNS, rows)


def scores(model, inputs, labels):
    """Returns the bits for a byte, and the share of the bytes that are the likeliest."""
    logits = model.predict(inputs, batch_size=32, verbose=0).astype("float64")
    real = labels != 0
    likelihoods = np.take_along_axis(log_softmax(logits, axis=-1), labels[..., None], axis=-1)
    bits = -likelihoods[..., 0][real].mean() / np.log(2)
    return bits, np.mean((logits.argmax(axis=-1) == labels)[real])


def means(rows):
    """Returns the mean share of the bytes and the root mean square of the errors of all kernels."""
    groups = {}
    for *key, share, error in rows:
        groups.setdefault(tuple(key), []).append((float(share), float(error) ** 2))
    found = []
    for (model, what, way, _), entries in groups.items():
        share, square = np.mean(entries, axis=0)
        found.append((model, what, way, share, np.sqrt(square)))
    return sorted(found)


def draw(rows, path):
    from matplotlib.figure import Figure

    from keras_tnattn_train.runs.plots import distinct_colors

    kinds = list(dict.fromkeys((model, what) for model, what, *_ in rows))
    families = list(dict.fromkeys(way.removesuffix(", 8 bits") for _, _, way, *_ in rows))
    colors = dict(zip(families, distinct_colors(len(families)), strict=True))
    figure = Figure(figsize=(9, 8), layout="constrained")
    lines: dict = {}
    for axes, (model, what) in zip(figure.subplots(2, 2).flat, kinds, strict=False):
        ways = {way for m, w, way, *_ in rows if (m, w) == (model, what)}
        for way in sorted(ways):
            family = way.removesuffix(", 8 bits")
            points = sorted(
                (share, error)
                for m, w, other, share, error in rows
                if (m, w, other) == (model, what, way)
            )
            in_floats = family == way and "integers" not in way
            axes.plot(
                *zip(*points, strict=True),
                marker=".",
                linestyle=":" if in_floats else "-",
                color=colors[family],
                label=f"{way}, floats" if in_floats else way,
            )
        axes.set(title=f"{model}: {what}", xscale="log", yscale="log", xlim=(0.02, 0.6))
        axes.set(xlabel="share of the bytes", ylabel="relative error of the outputs")
        axes.set_xticks([0.02, 0.05, 0.1, 0.2, 0.5], ["1/50", "1/20", "1/10", "1/5", "1/2"])
        axes.minorticks_off()
        lines |= {line.get_label(): line for line in axes.lines}
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=120)


def read(path):
    with path.open(newline="") as file:
        return [tuple(row) for row in list(csv.reader(file))[1:]]


def write(path, columns, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


if __name__ == "__main__":
    main()
