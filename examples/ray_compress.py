"""Makes a trained model small for rows of many files, which several workers look at.

python examples/ray_compress.py model.keras rows/ small.keras 8 2

reads columns of numbers from Parquet files, as many as the model's input has features and in their
order. Each of 2 workers runs the model on about 1,000 rows of its own, drawn from all files, and
returns what the layers read, their second moments; the sum makes the model 8 times smaller. Every
worker has to read `model.keras`.
"""

import sys

import keras
import numpy as np
import ray

import keras_small


@ray.remote
def gather(model, workers, *tables):
    return keras_small.gather_moments(keras.models.load_model(model), as_rows(tables), workers)


def as_rows(tables):
    return np.concatenate([table.to_numpy("float32") for table in tables if len(table)])


def main(model, files, small, target, workers=2, rows_each=1000):
    workers = int(workers)
    dataset = ray.data.read_parquet(files)
    share = min(1, workers * rows_each / max(1, dataset.count()))
    shards = dataset.random_sample(share, seed=0).split(workers, equal=True)
    tables = [shard.to_pandas_refs() for shard in shards]  # stay where they are
    moments = ray.get([gather.remote(model, workers, *shard) for shard in tables])
    sample = as_rows(ray.get(tables[0]))
    data = keras_small.Data(sample, moments=sum(moments[1:], moments[0]))
    result = keras_small.compress(keras.models.load_model(model), float(target), data=data)
    result.save(small)
    print(result.report)


if __name__ == "__main__":
    main(*sys.argv[1:])
