"""Measures the classifiers of model_compression.py after tensorly-torch has converted their layers.

    KERAS_BACKEND=torch python studies/benchmarks/tensorly_torch.py FOLDER/reuters-tsa-0.keras ...

tensorly-torch (`pip install tensorly-torch`) converts one layer of PyTorch at a time. Here it
factorizes each dense kernel and each table of the model, with the same share of the weights for
all, as tensor trains ("blocktt") and as Tucker tensors. The reconstructed weights are put back into
the model, which is as fast as before. A factorization that needs more weights than it replaces is
not used. The test parts are the .npz files beside the models.

Writes FOLDER/DATASET-MODEL-tensorly-torch.csv, with the columns of model_compression.py.
"""

import argparse
import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import keras
import numpy as np
import tltorch
import torch

import keras_tnattn  # noqa: F401  registers its layers

COLUMNS = ("seed", "method", "asked", "bytes", "ratio", "accuracy", "lost", "speed")
SHARES = (0.5, 0.25, 0.125, 0.06, 0.03)
SMALLEST = 4096  # kernels with fewer numbers stay


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+")
    args = parser.parse_args()
    tables = {}
    for path in args.models:
        stem, seed = path.stem.rsplit("-", 1)
        table = path.with_name(f"{stem}-tensorly-torch.csv")
        for row in measured(path):
            tables.setdefault(table, []).append({"seed": int(seed), **row})
            print(tables[table][-1], flush=True)
    for table, rows in tables.items():
        with table.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    return 0


def measured(path):
    """Yields a row for each factorization and share of the weights."""
    model = keras.models.load_model(path)
    with np.load(path.with_suffix(".npz")) as arrays:
        inputs, labels = arrays["inputs"], arrays["labels"]

    def accuracy():
        predictions = model.predict(inputs, batch_size=256, verbose=0).argmax(-1)
        return 100 * float(np.mean(predictions == labels))

    base, full = accuracy(), 4 * model.count_params()
    kernels = [weight for weight in model.weights if np.prod(weight.shape) >= SMALLEST]
    originals = [keras.ops.convert_to_numpy(kernel) for kernel in kernels]
    for factorization in ("blocktt", "tucker"):
        for share in SHARES:
            size = full
            for kernel, original in zip(kernels, originals, strict=True):
                approximation, weights = factorized(original, factorization, share)
                if weights < original.size:
                    kernel.assign(approximation.reshape(original.shape))
                    size += 4 * (weights - original.size)
            now = accuracy()
            yield {
                "method": f"tensorly-torch, {factorization}",
                "asked": share,
                "bytes": size,
                "ratio": round(full / size, 2),
                "accuracy": round(now, 2),
                "lost": round(base - now, 2),
                "speed": "",
            }
            for kernel, original in zip(kernels, originals, strict=True):
                kernel.assign(original)


def factorized(kernel, factorization, share):
    """Returns a kernel or table that tensorly-torch approximated, and its number of weights."""
    sizes = [int(np.prod(kernel.shape[:axis])) for axis in range(1, kernel.ndim)]
    rows = min(sizes, key=lambda size: max(size, kernel.size // size))  # the squarest matrix
    matrix = torch.tensor(kernel.reshape(rows, -1))
    shape = tuple(tltorch.utils.get_tensorized_shape(*matrix.shape, order=3, verbose=False))
    weight = tltorch.TensorizedTensor.from_matrix(
        matrix, *shape, rank=share, factorization=factorization
    )
    weights = sum(parameter.numel() for parameter in weight.parameters())
    return weight.to_matrix().detach().numpy()[: len(matrix)], weights


if __name__ == "__main__":
    sys.exit(main())
