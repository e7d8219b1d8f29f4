"""Times generation with power law attention, with its metric fixed, and with dot products.

    python studies/benchmarks/frozen_metric.py [--quick]

Untrained language models of the study `language`: four layers of width 128 with four heads, bytes,
rotary positions. One prompt of 16 tokens is continued by 96, greedily. The last column is the time
over that of scaled dot-product attention.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from side_by_side import describe_machine, medians, quick

# isort: split
import math

import numpy as np

from keras_tnattn import freeze_metric
from keras_tnattn.models import language_model
from keras_tnattn.search import Generator

VOCABULARY, PROMPT = 259, 16
SIZES = {"num_layers": 4, "model_dim": 128, "num_heads": 4, "max_length": 128}
PLGA = {"residual_units": 2, "residual_dim": 64}


def main():
    few = quick(__doc__)
    describe_machine()
    new_tokens, repeats = (4, 1) if few else (96, 9)
    ids = np.random.default_rng(0).integers(3, VOCABULARY, (8, PROMPT))
    live = language_model(VOCABULARY, "plga", feedforward_dim=341, **PLGA, **SIZES)
    models = {
        "sdpa": language_model(VOCABULARY, "sdpa", feedforward_dim=460, **SIZES),
        "plga, fixed metric": freeze_metric(live, ids, bound=math.inf).model,
        "plga": live,
    }
    contenders = {}
    for name, model in models.items():
        generate = Generator(model, max_new_tokens=new_tokens)
        contenders[name] = lambda generate=generate: generate(ids[:1])
    seconds = medians(contenders, repeats, warm_ups=1)
    print("| attention | ms per token | times sdpa |\n| --- | ---: | ---: |")
    for name, value in seconds.items():
        print(f"| {name} | {1000 * value / new_tokens:.2f} | {value / seconds['sdpa']:.2f} |")


if __name__ == "__main__":
    main()
