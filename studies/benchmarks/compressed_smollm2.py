"""Compresses the language model SmolLM2-135M and compares it with other ways.

    python studies/benchmarks/compressed_smollm2.py --data-dir DIR --table FILE.csv --plot FILE.png

Needs what `smollm2.py` needs. Each row is a model: its bytes, the bits that it needs for a byte of
text on 64 windows of 128 tokens of the test part of Reuters, the seconds of the processor that it
took, and the peak of the process' own memory meanwhile. What is calibrated sees 64 texts of 128
tokens, none of them of Reuters. Rows that the table has already are not made again, so that the
command can be interrupted. The models that `compress` makes are saved in `--models FOLDER`, and
`--generate FILE` only goes on with a text, by the model of such a file and keras-hub's own
`generate`.

Of Keras' GPTQ, which leaves the table of words in floats, the kernels count with the bits that
were asked for (it stores those of 3 and 2 bits in 8), and the table is rounded in groups of as many
bits.
"""

import argparse
import csv
import math
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import ops
from own_memory import sampled_peak
from smollm2 import SmolLM2
from texts import mixed_texts, read_columns

import keras_small
from keras_small.storage.sizes import byte_count, item_size

LENGTH = 128
ROWS = 64
AT_ONCE = 8
GROUP = 32


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/keras_tnattn").expanduser())
    parser.add_argument("--table", type=Path, required=True, help="a CSV file of the rows")
    parser.add_argument("--plot", type=Path, help="a picture of the table")
    parser.add_argument("--megabytes", type=float, nargs="*", default=(60, 45))
    parser.add_argument("--bits", type=int, nargs="*", default=(4, 3, 2))
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--models", type=Path, help="an existing folder for files of models")
    parser.add_argument("--generate", type=Path, help="goes on with a text by the model of a file")
    options = parser.parse_args()
    if options.generate:
        print(generated(options.generate, SmolLM2(options.cache)))
        return
    study = Study(options)
    study.show("original", "floats", study.original)
    for megabytes in options.megabytes:
        study.show("compress", f"{megabytes:g} MB", lambda x=megabytes: study.compressed(x))
        study.show(
            "compress, coded",
            f"{megabytes:g} MB",
            lambda x=megabytes: study.compressed(x, coded=True),
        )
    for bits in options.bits if options.peers else ():
        study.show("rounded in groups", f"{bits} bits", lambda x=bits: study.rounded(x))
        study.show("GPTQ of Keras", f"{bits} bits", lambda x=bits: study.gptq(x))
    for megabytes in options.megabytes if options.peers else ():
        study.show("low rank", f"{megabytes:g} MB", lambda x=megabytes: study.low_rank(x))
    if options.plot:
        draw(read_rows(options.table), options.plot)


class Study:
    """The texts, and the ways of making the model smaller: each returns a model and its bytes."""

    def __init__(self, options):
        self.table = options.table
        self.models = options.models
        self.published = SmolLM2(options.cache)
        path = options.data_dir / "reuters" / "data.tsv.xz"
        splits, texts = read_columns(path, "split", "text")
        test = [text for split, text in zip(splits, texts, strict=True) if split == "test"]
        known = set(texts)
        others = [x for x in mixed_texts(options.data_dir, 40 * ROWS) if x not in known]
        self.held_out = self._windows(test)
        self.calibration = inputs(self._windows(others))

    def _windows(self, texts):
        """Returns the first tokens of the first texts that are long enough."""
        windows = (self.published.ids(text)[:LENGTH] for text in texts)
        long = (ids for ids in windows if len(ids) == LENGTH)
        return np.array([ids for ids, _ in zip(long, range(ROWS), strict=False)], "int32")

    def show(self, way, setting, make):
        known = {(row["way"], row["setting"]) for row in read_rows(self.table)}
        if (way, setting) in known:
            return
        start = time.process_time()
        with sampled_peak() as memory:
            model, size = make()
        seconds = time.process_time() - start
        row = {"way": way, "setting": setting, "bytes": size}
        row |= {"bits_per_byte": f"{self.bits_per_byte(model):.4f}", "seconds": f"{seconds:.0f}"}
        row["peak_megabytes"] = f"{memory['peak'] / 1e6:.0f}"
        print(", ".join(f"{name}: {value}" for name, value in row.items()), flush=True)
        is_new = not self.table.exists()
        with self.table.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if is_new:
                writer.writeheader()
            writer.writerow(row)

    def bits_per_byte(self, model):
        nats = 0.0
        for ids in np.split(self.held_out, range(AT_ONCE, ROWS, AT_ONCE)):
            logits = model(inputs(ids), training=False)[:, :-1]
            of_ids = keras.losses.sparse_categorical_crossentropy(
                ids[:, 1:], logits, from_logits=True
            )
            nats += float(ops.sum(of_ids))
        length = sum(len(self.published.text(window[1:]).encode()) for window in self.held_out)
        return nats / np.log(2) / length

    def original(self):
        model = self.published.model()
        return model, byte_count(model)

    def compressed(self, megabytes, coded=False):
        result = self._result(megabytes, coded=coded)
        if self.models:
            result.save(self.models / f"{megabytes:g}MB.{'tnz' if coded else 'keras'}")
        report = result.report
        return result.model, report.file_bytes if coded else report.bytes_after

    def low_rank(self, megabytes):
        result = self._result(megabytes, bits=32, formats="low_rank")
        return result.model, result.report.bytes_after

    def _result(self, megabytes, **how):
        model = self.published.model()
        factor = byte_count(model) / (1e6 * megabytes)
        return keras_small.compress(model, factor, data=self.calibration, **how)

    def rounded(self, bits):
        result = keras_small.compress(self.published.model(), bits=bits, formats=())
        return result.model, result.report.bytes_after

    def gptq(self, bits):
        model = self.published.model()
        table = model.backbone.token_embedding
        rounding = keras_small.compress(model, bits=bits, formats=(), filters="token_embedding")
        small_table = rounding.model.backbone.token_embedding
        config = keras.quantizers.GPTQConfig(
            dataset=list(self.calibration["token_ids"]),
            tokenizer=self.published,
            weight_bits=bits,
            num_samples=ROWS,
            sequence_length=LENGTH,
            group_size=GROUP,
        )
        model.quantize("gptq", config=config)
        table.embeddings.assign(small_table.embeddings)
        return model, byte_count(small_table) + bytes_without_table(model, bits)


def generated(path, published):
    """Returns how the model of a file goes on with a text."""
    load = keras_small.load if path.suffix == ".tnz" else keras.models.load_model
    model = load(path)
    model.compile(sampler="greedy")
    prompt = published.ids("The capital of France is")
    ids = np.zeros((1, len(prompt) + 20), "int32")
    ids[0, : len(prompt)] = prompt
    mask = (np.arange(ids.shape[1]) < len(prompt))[None].astype("int32")
    made = model.generate({"token_ids": ids, "padding_mask": mask}, stop_token_ids=[2])
    return published.text(np.asarray(made["token_ids"])[0])


def inputs(ids):
    return {"token_ids": ids, "padding_mask": np.ones_like(ids)}


def bytes_without_table(model, bits):
    """Returns the bytes of all weights but the table, with those of GPTQ in so many bits."""
    others = [weight for weight in model.weights if not weight.path.endswith("embeddings")]
    packed = [weight for weight in others if weight.name == "quantized_kernel"]
    floats = [weight for weight in others if weight.name != "quantized_kernel"]
    # Of 4 bits an entry has two numbers already.
    numbers = (2 if bits == 4 else 1) * sum(math.prod(weight.shape) for weight in packed)
    size = sum(math.prod(weight.shape) * item_size(weight.dtype) for weight in floats)
    return numbers * bits // 8 + size


def read_rows(path):
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def draw(rows, path):
    from matplotlib.figure import Figure

    from keras_tnattn_train.runs.plots import distinct_colors

    original, *rows = rows
    ways = list(dict.fromkeys(row["way"] for row in rows))
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for way, color in zip(ways, distinct_colors(len(ways)), strict=True):
        points = sorted(
            (float(row["bytes"]) / 1e6, float(row["bits_per_byte"]))
            for row in rows
            if row["way"] == way
        )
        axes.plot(*zip(*points, strict=True), "o-", color=color, label=way)
    axes.axhline(float(original["bits_per_byte"]), color="gray", linestyle=":", label="original")
    axes.set(xlabel="megabytes", ylabel="bits per byte of text", xlim=(30, 90), ylim=(1.2, 3.5))
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
