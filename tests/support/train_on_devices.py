"""Trains a small translator in float64 by the engine; test_devices.py runs this in processes.

    export KERAS_BACKEND=jax JAX_NUM_CPU_DEVICES=4
    python tests/support/train_on_devices.py FOLDER sdpa 5 10 4 2

The numbers are epochs, steps of an epoch, devices and devices of a model. In float64 Adam makes
less of the rounding of sums in another order; in float32 it moves weights whose gradient is 0 but
for that rounding.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "training"))

from keras_tnattn_train.options.options import DeviceOptions
from keras_tnattn_train.processes.devices import use_devices
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.translate.config import TranslateConfig
from keras_tnattn_train.translate.layouts import LAYOUTS

BATCH, VOCABULARY = 12, 40


def main(folder, attention, epochs, steps, devices, parts):
    options = DeviceOptions(devices=devices, model_parallel=parts)
    use_devices(options, BATCH, lambda parts: LAYOUTS)
    import jax
    import keras
    import numpy as np

    from keras_tnattn.models import Translator, translator
    from keras_tnattn_train.data.pairs.batches import BucketedBatches
    from keras_tnattn_train.data.pairs.prepared import Sentences, TokenizedPart
    from keras_tnattn_train.runs.training import fit, reset_session

    jax.config.update("jax_enable_x64", True)
    keras.config.set_floatx("float64")
    reset_session(0)
    rng = np.random.default_rng(0)

    def part(pairs):
        lengths = rng.integers(4, 9, (2, pairs))
        offsets = np.concatenate([np.zeros((2, 1), int), np.cumsum(lengths, axis=1)], axis=1)
        sides = (Sentences(rng.integers(4, VOCABULARY, one[-1], "int32"), one) for one in offsets)
        return TokenizedPart(*sides)

    # The last batch has 7 pairs, and the validation part 5: devices cannot share them evenly.
    train = BucketedBatches(part(BATCH * (steps - 1) + 7), BATCH, seed=0)
    validation = BucketedBatches(part(5), BATCH)
    units = {"residual_units": 1, "residual_dim": 8} if attention == "plga" else {}
    options = {"model_dim": 8, "num_heads": 2, "feedforward_dim": 16, **units}
    options |= {"dropout": 0.2, "attention_dropout": 0.2}
    model = translator(VOCABULARY, VOCABULARY, attention, **options)
    # `translator` computes the logits in float32.
    model = Translator(
        (model.source_embedding, model.source_positions, model.encoders),
        (model.target_embedding, model.target_positions, model.decoders),
        keras.layers.Dense(VOCABULARY, name="logits"),
        dropout=0.2,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(keras.optimizers.Adam(1e-3, 0.9, 0.98, 1e-9), loss)
    if parts > 1:
        split = [weight for weight in model.weights if not weight.value.is_fully_replicated]
        # Two embeddings, two feed-forward nets, and the residual unit of each of three attentions.
        assert len(split) == 2 + 2 * 3 + (3 * 4 if units else 0), [w.path for w in split]
        for weight in split:
            (size,) = {shard.data.size for shard in weight.value.addressable_shards}
            assert size * parts == weight.value.size, weight.path
    config = TranslateConfig(epochs=epochs, model_dim=8)
    run = Run(folder)
    run.start_or_check(config, {})
    fit(model, train, config, run, validation=validation)


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
