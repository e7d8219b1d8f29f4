"""Classifies the texts of many files with an exported classifier, in several processes.

keras-tnattn export runs/mine --onnx portable/mine
python examples/ray_predict.py portable/mine texts/ answers/

reads the column `text` of Parquet files, and writes all columns and `label` as Parquet files.
"""

import sys
from pathlib import Path

import ray


class Classify:
    """Loads the exported classifier once for each process."""

    def __init__(self, folder):
        sys.path.insert(0, folder)  # where reader.py is
        from reader import load

        self.classify = load(folder)

    def __call__(self, batch):
        return {**batch, "label": self.classify(list(batch["text"]))}


def main(model, texts, answers):
    if Path(answers).exists():
        raise FileExistsError(f"Expected a new folder. Received: {answers}")
    folder = str(Path(model).resolve())
    rows = ray.data.read_parquet(texts)
    rows = rows.map_batches(Classify, fn_constructor_args=(folder,), batch_size=256)
    rows.write_parquet(answers)
    print(f"{ray.data.read_parquet(answers).count()} texts classified")


if __name__ == "__main__":
    main(*sys.argv[1:])
