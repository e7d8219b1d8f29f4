"""A translator's run folder, made in a second: untrained, of a corpus of a few words."""

import json

import numpy as np

from keras_tnattn.models import translator
from keras_tnattn_train.data.pairs.corpus import ParallelCorpus
from keras_tnattn_train.data.pairs.prepared import Preparing, prepare
from keras_tnattn_train.runs.run import to_json
from keras_tnattn_train.translate.config import TranslateConfig

NUMBERS = [("um", "one"), ("dois", "two"), ("três", "three"), ("quatro", "four")]
NOUNS = [("gatos", "cats"), ("cães", "dogs"), ("rios", "rivers")]
PAIRS = [(f"Eu, vi {n} {x}.", f"I, saw {m} {y}.") for n, m in NUMBERS for x, y in NOUNS]
CORPUS = ParallelCorpus(
    ("pt", "en"), PAIRS, PAIRS[:2], [*PAIRS[2:7], ("vi dois rios", "I, saw two rivers")]
)
SIZES = {"model_dim": 8, "feedforward_dim": 16}
SMALL = {
    "plga": {"num_heads": 2, "residual_units": 1, "residual_dim": 8},
    "sdpa": {"num_heads": 2, "num_layers": 2, "attention": "sdpa"},
}


def small_translator(source_size, target_size, attention="plga", **options):
    """An untrained translator that has preferences: the weights of its logits are large."""
    model = translator(
        source_size,
        target_size,
        **{**SIZES, **SMALL.get(attention, {"attention": attention}), **options},
    )
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(
                rng.normal(size=weight.shape) * (0.3 if "logits" not in weight.path else 1.0)
            )
    return model


def make_run(folder, attention="plga", max_length=128, **options):
    """Writes the folder of a finished run; returns its model and prepared corpus."""
    folder.mkdir()
    corpus = prepare(CORPUS, folder / "prepared", Preparing(80, max_length))
    preset = {"plga": "plga-2", "sdpa": "sdpa"}[attention]
    config = TranslateConfig(
        preset=preset, **SIZES, **SMALL[attention], max_length=max_length, **options
    )
    if config.position_encoding == "learned":
        options["max_length"] = max_length
    model = small_translator(*corpus.vocabulary_sizes, attention, **options)
    (folder / "config.json").write_text(to_json(config), encoding="utf-8")
    (folder / "data.json").write_text(json.dumps({"digest": corpus.digest}), encoding="utf-8")
    (folder / "checkpoints").mkdir()
    model.save(folder / "model.keras")
    return model, corpus
