"""Makes a trained model small for rows drawn from many files.

python examples/ray_compress.py model.keras rows/ small.keras 8

reads columns of numbers from Parquet files, as many as the model's input has features and in their
order, draws about 2,000 rows from all files, and makes the model 8 times smaller for them.
"""

import sys

import keras
import ray

import keras_small


def main(model, files, small, target, rows=2000):
    dataset = ray.data.read_parquet(files)
    share = min(1, rows / max(1, dataset.count()))
    data = dataset.random_sample(share, seed=0).to_pandas().to_numpy("float32")
    result = keras_small.compress(keras.models.load_model(model), float(target), data=data)
    result.save(small)
    print(result.report)


if __name__ == "__main__":
    main(*sys.argv[1:])
