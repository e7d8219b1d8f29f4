"""Builds the translator of a config."""

import keras

from keras_tnattn.models import PRESETS, translator
from keras_tnattn_train.translate.config import METRIC_ARGUMENTS, PLGA_ONLY, TranslateConfig


def untrained(config: TranslateConfig, sizes: tuple[int, int]) -> keras.Model:
    """Builds the translator of a config, in its precision.

    Args:
        config: The options.
        sizes: The sizes of the source and the target vocabulary.

    Raises:
        ValueError: If the sizes do not fit together.
    """
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
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16" if config.mixed_precision else "float32")
    try:
        return translator(*sizes, **options)
    finally:
        keras.config.set_dtype_policy(before)
