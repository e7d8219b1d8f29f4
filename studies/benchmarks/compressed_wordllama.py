"""Compresses the table of word vectors of WordLlama and compares it with other small tables.

    python studies/benchmarks/compressed_wordllama.py --data-dir DIR

Needs the packages tokenizers and safetensors. The model is an embedding of 32,000 x 256 numbers
and the mean over the tokens of a text. Each row is a model: how many times smaller it is than in
float32, and the accuracy of a logistic regression on its vectors of 20 Newsgroups, with a 95 %
interval of the difference to the original by a paired bootstrap. `compress` sees the tokens of the
training part; the strength of the regression is chosen on a fifth of it, and the test part is used
once for each model.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import keras
import numpy as np
import tokenizers
from keras import ops
from safetensors.numpy import load_file
from scipy import sparse
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression
from texts import read_columns

from keras_small import compress
from keras_tnattn import MaskedAveragePooling1D
from keras_tnattn_train.data.foreign_models import fetch

CENTROIDS = 2000
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/keras_tnattn").expanduser())
    parser.add_argument("--length", type=int, default=512, help="the most tokens of a text")
    parser.add_argument("--targets", type=float, nargs="*", default=(16, 56))
    parser.add_argument("--bits", type=int, nargs="*", default=(4, 2))
    parser.add_argument("--coded", action="store_true", help="count the bytes of coded files")
    options = parser.parse_args()
    folder = fetch("wordllama", options.cache) / "wordllama"
    weights = load_file(str(folder / "weights" / "l2_supercat_256.safetensors"))
    (table,) = (array.astype("float32") for array in weights.values())
    texts = Texts(folder, options, len(table))
    expected = texts.right(table)

    def show(name, size, small):
        seconds = time.process_time() - start
        right = texts.right(small)
        low, high = interval(right.astype(float) - expected)
        print(
            f"{name:34} {table.nbytes / size:6.2f} times smaller, accuracy "
            f"{100 * right.mean():.1f} % ({100 * (right.mean() - expected.mean()):+.1f}, "
            f"{100 * low:+.1f} to {100 * high:+.1f}), made in {seconds:.0f} s",
            flush=True,
        )

    start = time.process_time()
    show("float16", table.nbytes / 2, table.astype("float16").astype("float32"))
    start = time.process_time()
    show("Keras int8", *keras_int8(table))
    start = time.process_time()
    show("int4 rows", *int4_rows(table))
    start = time.process_time()
    show(f"k-means of {CENTROIDS} rows in int8", *centroids(table))
    model = averaging(table)
    for bits in (None,) if options.coded else options.bits:
        for target in options.targets:
            start = time.process_time()
            name = f"compress to {target:g}, {'coded' if options.coded else f'{bits} bits'}"
            how = {"bits": bits, "coded": options.coded, "verbose": 0}
            try:
                result = compress(model, target, data=texts.inputs, **how)
            except ValueError as error:
                print(f"{name:34} {error}", flush=True)
                continue
            report = result.report
            size = report.file_bytes if options.coded else report.bytes_after
            show(name, size, rows_of(result.model))
            print(report, flush=True)


def averaging(table):
    """Returns the model: ids, 0 for padding, to the mean of the rows of the table."""
    rows = keras.layers.Embedding(*table.shape, mask_zero=True, name="table")
    inputs = keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, MaskedAveragePooling1D()(rows(inputs)))
    rows.set_weights([table])
    return model


def rows_of(model):
    """Returns the table that the embedding of a model stands for."""
    (layer,) = (x for x in model.layers if hasattr(x, "input_dim"))
    parts = np.array_split(np.arange(layer.input_dim), 64)
    return np.concatenate([ops.convert_to_numpy(layer(part)) for part in parts])


def keras_int8(table):
    model = averaging(table)
    model.quantize("int8")
    return len(table) * (table.shape[1] + 4), rows_of(model)


def int4_rows(table):
    return len(table) * (table.shape[1] // 2 + 2), rounded(table, 7)


def centroids(table):
    """Returns the bytes and rows of a table of centroids, rounded to 8 bits, and their numbers."""
    means = MiniBatchKMeans(CENTROIDS, random_state=0, batch_size=4096, n_init=1).fit(table)
    size = CENTROIDS * (table.shape[1] + 2) + 2 * len(table)
    return size, rounded(means.cluster_centers_.astype("float32"), 127)[means.labels_]


def rounded(table, largest):
    """Returns rows rounded to whole numbers with a scale in float16 each."""
    scales = (np.abs(table).max(axis=1, keepdims=True) / largest).astype("float16") + 1e-30
    return (np.rint(table / scales).clip(-largest, largest) * scales).astype("float32")


def interval(differences):
    """Returns the 2.5th and 97.5th percentile of the mean of differences by a bootstrap."""
    rng = np.random.default_rng(0)
    some = rng.integers(len(differences), size=(1000, len(differences)))
    return np.percentile(differences[some].mean(axis=1), (2.5, 97.5))


class Texts:
    """The tokens of 20 Newsgroups, and the accuracy of a regression on their mean vectors."""

    def __init__(self, folder, options, num_ids):
        path = options.data_dir / "twenty_newsgroups" / "data_stripped.tsv.xz"
        splits, labels, texts = read_columns(path, "split", "label", "text")
        file = folder / "tokenizers" / "l2_supercat_tokenizer_config.json"
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
        tokenizer.no_padding()
        tokenizer.enable_truncation(options.length)
        encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
        ids = np.zeros((len(texts), options.length), "int32")
        for row, encoding in zip(ids, encodings, strict=True):
            row[: len(encoding.ids)] = encoding.ids
        self.labels, lengths = np.array(labels), (ids > 0).sum(axis=1)
        shares = 1.0 / np.repeat(np.maximum(lengths, 1), lengths)
        rows = np.repeat(np.arange(len(ids)), lengths)
        shape = (len(ids), num_ids)
        self.shares = sparse.csr_matrix((shares.astype("float32"), (rows, ids[ids > 0])), shape)
        train = np.array([i for i, split in enumerate(splits) if split == "train"])
        self.test = np.array([i for i, split in enumerate(splits) if split == "test"])
        self.inputs, self.train = ids[train], np.random.default_rng(0).permutation(train)

    def right(self, table):
        """Returns for each text of the test part whether the regression on a table is right."""
        vectors = self.shares @ table
        known = vectors[self.train]
        vectors = (vectors - known.mean(axis=0)) / (known.std(axis=0) + 1e-9)
        count = len(self.train) // 5
        chosen, rest = self.train[:count], self.train[count:]

        def fitted(strength, rows):
            regression = LogisticRegression(C=strength, max_iter=300, tol=1e-3)
            return regression.fit(vectors[rows], self.labels[rows])

        scores = {c: fitted(c, rest).score(vectors[chosen], self.labels[chosen]) for c in STRENGTHS}
        regression = fitted(max(scores, key=scores.get), self.train)
        return regression.predict(vectors[self.test]) == self.labels[self.test]


if __name__ == "__main__":
    main()
