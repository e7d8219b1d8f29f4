"""Compresses a language model of bytes, and compares it with smaller ones and with int4 in groups.

    python studies/benchmarks/compressed_language_model.py --data-dir DIR

Three models of five layers, with 1.05, 0.52 and 0.25 million weights, are trained for the same
number of steps on posts of 20 Newsgroups (`--folder` keeps them, also after an interruption). Each
row is a model: the bytes of its file, coded (`.tnz`), and the bits that it needs for a byte of the
validation part. The peers are the smaller models in integers of 8 bits, and the largest one in
integers of 8 and 4 bits in groups, rounded without data and with them (GPTQ).
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import keras
from texts import read_columns

from keras_small import compress
from keras_small.building.saving import file_bytes
from keras_small.storage.sizes import byte_count
from keras_tnattn_train.language.config import LanguageConfig
from keras_tnattn_train.language.corpus import PackedBatches, read_corpus
from keras_tnattn_train.language.train import measure, train_language_model
from keras_tnattn_train.runs.run import Run

DIMS = (128, 88, 60)
CALIBRATION = 1024  # rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("benchmarks/language"))
    parser.add_argument("--megabytes", type=float, nargs="*", default=(1.0, 0.5, 0.25))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    configs = {dim: config_of(dim, options) for dim in DIMS}
    corpus = read_corpus(configs[DIMS[0]])
    rows, _ = PackedBatches(corpus.parts["train"], 128, CALIBRATION, seed=options.seed)[0]

    def show(name, model, start):
        seconds, size = time.process_time() - start, file_bytes(model, ".tnz")
        bits = measure(model, corpus.parts["validation"], 128, 32)["bits_per_byte"]
        print(f"{name:32} {size:9,} bytes, {bits:.4f} bits per byte, {seconds:.0f} s", flush=True)

    def in_integers(model, bits, data=None):
        return compress(model, bits=bits, formats=(), data=data, verbose=0).model

    models = {dim: trained(config, corpus, options) for dim, config in configs.items()}
    for model in models.values():
        start, name = time.process_time(), f"{model.count_params():,} weights"
        show(f"{name}, floats", model, start)
        show(f"{name}, 8 bits", in_integers(model, 8), start)
    model = models[DIMS[0]]
    for bits, data in ((4, None), (8, rows), (4, rows)):
        start, how = time.process_time(), "rounded" if data is None else "with data"
        show(f"{bits} bits in groups, {how}", in_integers(model, bits, data), start)
    for megabytes in options.megabytes:
        start, target = time.process_time(), byte_count(model) / (1e6 * megabytes)
        result = compress(model, target, data=rows, coded=True, verbose=0)
        show(f"coded, {target:.1f} times smaller", result.model, start)


def config_of(dim, options):
    """Returns the options of a run; the corpus is written into the folder."""
    path = options.folder / "corpus.jsonl"
    if not path.exists():
        source = options.data_dir / "twenty_newsgroups" / "data_stripped.tsv.xz"
        texts = read_columns(source, "text")[0]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts if text))
    return LanguageConfig(
        corpus=(str(path),),
        tokens="bytes",
        held_out=0.01,
        num_layers=5,
        model_dim=dim,
        num_heads=2,
        epochs=2,
        batches_per_epoch=500,
        batch_size=16,
        learning_rate=3e-3,
        seed=options.seed,
        name=f"language-{dim}-{options.seed}",
    )


def trained(config, corpus, options):
    """Returns the model of a run, trained now or earlier."""
    run = Run(options.folder / config.name)
    if not run.results:
        train_language_model(config, run, corpus)
    return keras.models.load_model(run.folder / "model.keras")


if __name__ == "__main__":
    main()
