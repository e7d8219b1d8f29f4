"""Builds the translator of a config."""

from collections.abc import Callable

import keras

from keras_tnattn.metrics import TokenAccuracy
from keras_tnattn.models import PRESETS, translator
from keras_tnattn.schedules import WarmupInverseSquareRoot
from keras_tnattn_train.options.errors import input_errors
from keras_tnattn_train.translate.config import (
    METRIC_ARGUMENTS,
    PLGA_ONLY,
    TranslateConfig,
    fitting_warmup,
)

ModelMaker = Callable[[TranslateConfig, tuple[int, int]], keras.Model]


def build_translator(config: TranslateConfig, sizes: tuple[int, int]) -> keras.Model:
    """Builds the translator of a config."""
    options = {**PRESETS[config.preset], **config.overrides}
    if config.attention != "plga":
        names = {METRIC_ARGUMENTS.get(name, name) for name in PLGA_ONLY} & set(options)
        of_plga = {name: options.pop(name) for name in names}
        of_plga.pop("metric_from", None)  # of the attention to the source only
        if config.decoder_attention == "plga":
            options["decoder_options"] = dict(of_plga)
        of_plga.pop("causal_metric", None)
        if config.encoder_attention == "plga":
            options["encoder_options"] = of_plga
    return translator(*sizes, **options)


def check_sizes(config: TranslateConfig) -> None:
    """Builds a model of few words, before a corpus is prepared for sizes that do not fit."""
    keras.utils.set_random_seed(config.seed)  # so that all processes have the same weights
    with input_errors():
        build_translator(config, (16, 16))


def compile_translator(
    config: TranslateConfig,
    sizes: tuple[int, int],
    steps_per_epoch: int,
    make: ModelMaker = build_translator,
) -> keras.Model:
    """Builds a compiled translator."""
    model = make(config, sizes)
    schedule = WarmupInverseSquareRoot(
        config.model_dim,
        fitting_warmup(config, config.epochs * steps_per_epoch),
        config.learning_rate,
        config.epochs * steps_per_epoch,
        config.cooldown_epochs * steps_per_epoch,
    )
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
        metrics=[TokenAccuracy()],
    )
    return model
