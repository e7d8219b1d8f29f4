"""Named sets of options for `keras_tnattn.models.translator` and `language_model`."""

from collections.abc import Mapping
from typing import Any

_PLGA = {"attention": "plga", "num_layers": 1, "dropout": 0.4}
_SMALL = {
    "num_layers": 1,
    "model_dim": 128,
    "feedforward_dim": 512,
    "num_heads": 4,
    "dropout": 0.1,
    "attention_dropout": 0.0,
}
# The models of the paper's Table 1, and two for small corpora. The metric of the paper's decoder
# sums over the whole target: loss and accuracy under teacher forcing see later tokens.
# `causal_metric=True` prevents that, and so do `decoder_attention="sdpa"` and `metric_from="key"`
# together.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "plga-1": {**_PLGA, "num_heads": 16, "residual_dim": 128, "residual_units": 10},
    "plga-2": {**_PLGA, "num_heads": 8, "residual_dim": 256, "residual_units": 9},
    "plga-3": {**_PLGA, "num_heads": 8, "residual_dim": 256, "residual_units": 8},
    "plga-4": {**_PLGA, "num_heads": 4, "residual_dim": 512, "residual_units": 5},
    "plga-5": {**_PLGA, "num_heads": 2, "residual_dim": 1024, "residual_units": 2},
    "plga-6": {**_PLGA, "num_heads": 1, "residual_dim": 2048, "residual_units": 1},
    "plga-small": {
        **_SMALL,
        "attention": "plga",
        "residual_dim": 128,
        "residual_units": 2,
        "decoder_attention": "sdpa",
        "metric_from": "key",
        "epsilon": 0.01,
    },
    "sdpa-small": {**_SMALL, "attention": "sdpa"},
    "sdpa": {
        "attention": "sdpa",
        "num_layers": 4,
        "num_heads": 8,
        "dropout": 0.1,
        "attention_dropout": 0.0,
    },
}

# Published language models, for `language_model(vocabulary_size, **options)`. The metric of
# PLDR-LLM sums over the whole sequence, padding and later tokens included. The sizes of v510 are
# the defaults of its published training program (5 layers, 14 heads of 64 features, 8 residual
# units of 2 layers of 170), `max_length` the context length of its launch script.
LANGUAGE_MODELS: Mapping[str, Mapping[str, Any]] = {
    "pldr-v510": {
        "attention": "plga",
        "num_layers": 5,
        "model_dim": 896,
        "num_heads": 14,
        "feedforward_dim": 2389,
        "feedforward": "swiglu",
        "position_encoding": "rotary",
        "embedding_norm": True,
        "max_length": 1024,
        "residual_units": 8,
        "residual_dense_layers": 2,
        "residual_dim": 170,
        "padding_in_metric": True,
    },
}
