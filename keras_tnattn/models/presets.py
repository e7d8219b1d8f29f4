"""Named sets of options for `keras_tnattn.models.translator` and `language_model`.

`PRESETS` are the models of the paper's Table 1, and two for small corpora. The metric of the
paper's decoder sums over the whole target: loss and accuracy under teacher forcing see later
tokens. `causal_metric=True` prevents that, and so do `decoder_attention="sdpa"` and
`metric_from="key"` together.

`LANGUAGE_MODELS` are published ones. The metric of PLDR-LLM sums over the whole sequence, padding
and later tokens included. The sizes of v510 are the defaults of its published training program (5
layers, 14 heads of 64 features, 8 residual units of 2 layers of 170), `max_length` the context
length of its launch script.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# A file of its own, because the commands read it without importing Keras.
_ALL = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
PRESETS: Mapping[str, Mapping[str, Any]] = _ALL["translators"]
LANGUAGE_MODELS: Mapping[str, Mapping[str, Any]] = _ALL["language_models"]
