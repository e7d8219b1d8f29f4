"""Compares a Tucker decomposition that the heads of an attention share with one SVD per kernel.

    python studies/benchmarks/shared_heads.py

For each attention of all-MiniLM-L6-v2 the kernels of query, key, value and output are one tensor
of model size, head size, kernel and head. Its first three factors are shared by all heads, each of
which has a core of its own (TensorLLM, Gu et al., 2025, https://arxiv.org/abs/2501.15674, sec. 3).
Each row has the relative error of the weights at a number of weights, and that of an SVD of each
kernel of that number: mean over the layers, of the best ranks for each.
"""

import argparse
import itertools
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import keras
import keras_hub
import numpy as np

from keras_small.survey.inventory import places
from keras_tnattn_train.data.foreign_models import fetch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/keras_tnattn").expanduser())
    parser.add_argument("--times", type=float, nargs="+", default=(1.5, 2, 4, 8))
    options = parser.parse_args()
    folder = fetch("minilm", options.cache) / "all_minilm_l6_v2"
    model = keras_hub.models.BertBackbone.from_preset(str(folder))
    tensors = [
        kernels_of(place.layer)
        for place in places(model)
        if isinstance(place.layer, keras.layers.MultiHeadAttention)
    ]
    print(f"{len(tensors)} attentions of shape {tensors[0].shape}")
    for times in options.times:
        budget = tensors[0].size / times
        errors = np.mean([(tucker_error(t, budget), svd_error(t, budget)) for t in tensors], axis=0)
        print(f"{times:4.1f} times fewer weights: Tucker {errors[0]:.3f}, SVD {errors[1]:.3f}")


def kernels_of(attention):
    """Returns a tensor (model size, head size, 4, heads)."""
    query, key, value, output = (
        keras.ops.convert_to_numpy(getattr(attention, f"_{name}_dense").kernel)
        for name in ("query", "key", "value", "output")
    )
    kernels = [query, key, value, output.transpose(2, 0, 1)]  # (model size, heads, head size)
    return np.stack(kernels, axis=-1).transpose(0, 2, 3, 1).astype("float64")


def tucker_error(tensor, budget):
    """Returns the least error of ranks whose factors and cores have at most `budget` weights."""
    width, size, kernels, heads = tensor.shape
    least = 1.0
    for second, third in itertools.product((4, 8, 16, 24, size), range(1, kernels + 1)):
        rest = budget - size * second - kernels * third
        first = min(width, int(rest // (width + heads * second * third)))
        if first > 0:
            least = min(least, error_of(tensor, (first, second, third)))
    return least


def error_of(tensor, ranks):
    """The relative error of shared factors of these ranks, after two sweeps from the HOSVD."""
    factors = [leading(tensor, mode, rank) for mode, rank in enumerate(ranks)]
    for _ in range(2):
        for mode, rank in enumerate(ranks):
            others = [(m, factor) for m, factor in enumerate(factors) if m != mode]
            factors[mode] = leading(projected(tensor, others), mode, rank)
    core = projected(tensor, list(enumerate(factors)))
    return np.sqrt(max(0.0, 1 - np.sum(core**2) / np.sum(tensor**2)))


def projected(tensor, factors):
    for mode, factor in factors:
        tensor = np.moveaxis(np.tensordot(factor.T, tensor, axes=(1, mode)), 0, mode)
    return tensor


def leading(tensor, mode, rank):
    """Returns the leading eigenvectors of a mode."""
    rows = np.moveaxis(tensor, mode, 0).reshape(tensor.shape[mode], -1)
    return np.linalg.eigh(rows @ rows.T)[1][:, -rank:]


def svd_error(tensor, budget):
    """Returns the error of one SVD for each kernel, of one rank."""
    width, size, kernels, heads = tensor.shape
    rank = int(budget / kernels // (width + size * heads))
    squares = [
        np.linalg.svd(tensor[:, :, k].reshape(width, -1), compute_uv=False) ** 2
        for k in range(kernels)
    ]
    return np.sqrt(sum(s[rank:].sum() for s in squares) / sum(s.sum() for s in squares))


if __name__ == "__main__":
    main()
