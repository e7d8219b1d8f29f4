"""Measures how integers, groups and low-rank corrections trade size for error on real kernels.

    python studies/benchmarks/integer_fronts.py --data-dir DIR

For kernels of all-MiniLM-L6-v2 each row has the bits of a weight, with scales and zeros, and the
relative error of the outputs on texts that calibrated nothing: of integers rounded to the nearest
(rtn), one after the other with the second moment of the inputs (gptq), and either with a correction
of low rank in 8 bits, in closed form from the second moment (QERA, Zhang et al., 2024,
https://arxiv.org/abs/2410.06040).
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import keras_hub
import numpy as np
import tokenizers
from compressed_minilm import encoded, part
from keras import ops
from texts import mixed_texts

from keras_small.storage import integer_groups
from keras_small.storage.low_rank_einsum_dense import kernel_matrix
from keras_small.survey.calibration import observe
from keras_small.survey.inventory import places
from keras_small.survey.kinds import has_kernel
from keras_tnattn.ops import low_rank
from keras_tnattn_train.data.foreign_models import fetch

PAIRS = [(2, 32), (2, 16), (3, 64), (3, 32), (3, 16), (4, 128), (4, 64), (4, 32), (6, 64), (8, 128)]
CORRECTED = [(2, 32, 32), (3, 64, 8), (3, 64, 16), (3, 64, 32), (4, 128, 8)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/keras_tnattn").expanduser())
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--every", type=int, default=5, help="of so many kernels one is measured")
    options = parser.parse_args()
    folder = fetch("minilm", options.cache) / "all_minilm_l6_v2"
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    inputs = encoded(tokenizer, mixed_texts(options.data_dir, 2 * options.texts), 64)
    model = keras_hub.models.BertBackbone.from_preset(str(folder))
    layers = {p.path: p.layer for p in places(model) if has_kernel(p.layer)}
    layers = {path: layers[path] for path in sorted(layers)[:: options.every]}
    halves = [part(inputs, i, i + options.texts) for i in (0, options.texts)]
    calibration, validation = (observe(model, layers, [half])[0] for half in halves)
    rows = {}
    for path, layer in layers.items():
        kernel = ops.convert_to_numpy(layer.kernel)
        if kernel.ndim > 2:
            kernel = kernel_matrix(kernel, layer.equation)
        print(path, kernel.shape, flush=True)
        for name, approximation, size in replacements(kernel, calibration[path].moment):
            difference = approximation - kernel
            squares = [np.sum(x * (validation[path].moment @ x)) for x in (difference, kernel)]
            entry = 8 * size / kernel.size, squares[0] / squares[1]
            rows.setdefault(name, []).append(entry)
    for name, entries in sorted(rows.items(), key=lambda row: np.mean(row[1], axis=0)[0]):
        bits, squared = np.mean(entries, axis=0)
        print(f"{name:28} {bits:6.3f} bits, error {np.sqrt(squared):.4f}")


def replacements(kernel, moment):
    """Yields names, matrices and bytes."""
    for way, known in (("rtn", None), ("gptq", moment)):
        for bits, group in PAIRS:
            approximation, size = rounded(kernel, bits, group, known)
            yield f"{way}, {bits} bits, groups of {group}", approximation, size
        for bits, group, rank in CORRECTED:
            approximation, size = rounded(kernel, bits, group, known)
            # In turns: the correction of what was rounded, and the rounding of what it leaves.
            correction, more = corrected(kernel - approximation, rank, moment)
            approximation, size = rounded(kernel - correction, bits, group, known)
            correction, more = corrected(kernel - approximation, rank, moment)
            name = f"{way}, {bits} bits, groups of {group} + rank {rank}"
            yield name, approximation + correction, size + more


def rounded(matrix, bits, group, moment):
    groups = integer_groups.quantize_groups(matrix, bits, group, moment=moment)
    return integer_groups.restored_matrix(groups, len(matrix), bits, group), groups.nbytes


def corrected(error, rank, moment):
    """Returns the correction of a rank that is best for the outputs, in 8 bits, and its bytes."""
    damped = moment + 1e-4 * np.trace(moment) / len(moment) * np.eye(len(moment))
    left, right, _ = low_rank.low_rank_factors(error, low_rank.square_root(damped))
    root = np.sqrt(np.linalg.norm(left[:, :rank], axis=0) + 1e-30)
    factors, size = zip(
        rounded((left[:, :rank] / root).astype("float32"), 8, 128, None),
        rounded((right[:rank] * root[:, None]).astype("float32"), 8, 128, None),
        strict=True,
    )
    return factors[0] @ factors[1], sum(size)


if __name__ == "__main__":
    main()
