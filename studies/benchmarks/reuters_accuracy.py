"""Which choices move the accuracy of the papers' classifier on Reuters?

    python studies/benchmarks/reuters_accuracy.py --data-dir DIR
    python studies/benchmarks/reuters_accuracy.py --data-dir DIR --variants papers --seeds 0 1 2

The papers report 73.9 % on the test part and 85.3 % on the training part with tensorized spectral
attention, and 58.2 and 55.7 % with dot products. Each line is a variant of `keras-tnattn classify
--dataset reuters --recipe paper --test-fraction 0.4 --max-words 200` with, for each epoch, the
accuracy on the training part, as Keras reports it, and that on the test part. The test part is
looked at after each epoch, because the question is what the papers did; no choice of this project
comes from it.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from keras_tnattn.estimator.building import compiled_model
from keras_tnattn_train.classify.config import TABLE_DIMS, ClassifyConfig
from keras_tnattn_train.classify.texts import read_texts
from keras_tnattn_train.classify.train import prepare_parts

# Options of `classify`, or what is done with the rows.
VARIANTS = {
    "papers": {},
    "unmasked_at_the_end": {"padding": "end"},
    "unmasked_in_front": {"padding": "front"},
    "vocabulary_1000": {"vocabulary_size": 1000},
    "words_50": {"max_words": 50},
    # As many steps as with the larger training part.
    "test_part_of_80_percent": {"test_fraction": 0.8, "epochs": 30},
    "classes_of_100_texts": {"fewest": 100},
    "batches_of_512": {"batch_size": 512},
}
PAPERS = {"recipe": "paper", "test_fraction": 0.4, "max_words": 200}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--attentions", nargs="+", default=["tsa", "dpa"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    for variant in options.variants:
        for attention in options.attentions:
            for seed in options.seeds:
                show(variant, attention, seed, options.data_dir)


def show(variant, attention, seed, data_dir):
    changes = dict(VARIANTS[variant])
    padding, fewest = changes.pop("padding", None), changes.pop("fewest", 0)
    config = ClassifyConfig(
        dataset="reuters",
        data_dir=data_dir,
        attention=attention,
        embedding_dim=TABLE_DIMS.get(attention, 64),
        seed=seed,
        **{**PAPERS, **changes},
    )
    data = read_texts(config)
    vectorizer, parts = prepare_parts(config, data)
    counts = np.bincount(parts["train"].labels, minlength=len(data.class_names))
    rows = {name: counts[part.labels] >= fewest for name, part in parts.items()}
    sets = {name: (part.ids[rows[name]], part.labels[rows[name]]) for name, part in parts.items()}
    size = vectorizer.vocabulary_size()
    if padding:  # an id like those of the words
        sets = {name: (padded(ids, size, padding), y) for name, (ids, y) in sets.items()}
        size += 1
    keras.utils.set_random_seed(seed)
    steps = -(-len(sets["train"][1]) // config.batch_size)
    model = compiled_model(config.settings, size, len(counts), steps)
    history = model.fit(
        *sets["train"],
        epochs=config.epochs,
        batch_size=config.batch_size,
        validation_data=sets["test"],
        validation_batch_size=256,
        verbose=0,
    ).history
    accuracies = zip(history["accuracy"], history["val_accuracy"], strict=True)
    log = [f"{100 * train:.1f}/{100 * test:.1f}" for train, test in accuracies]
    print(f"{variant} {attention} seed {seed}: training/test {' '.join(log)}", flush=True)


def padded(ids, padding, side):
    """Returns ids whose padding is an id like others, at the end of the rows or in front."""
    ids = np.where(ids == 0, padding, ids)
    if side == "front":
        ids = np.stack([np.roll(row, np.count_nonzero(row == padding)) for row in ids])
    return ids


if __name__ == "__main__":
    main()
