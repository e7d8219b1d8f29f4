"""Times greedy and beam search with the paper's model #2 and with its SDPA model.

    python benchmarks/decoding.py [--quick]

The models are untrained, with vocabularies of 8,000, sources of 20 tokens and 30 steps (no end
token), without XLA. `BeamSearch` translates 32 sentences together. The peer is the published loop
with the same layers: one sentence at a time, not compiled, and at each step it runs the encoder and
the whole prefix of each live hypothesis again. It translates another sentence in each round, and
must find the same tokens. The time of our first call includes compilation.
"""

from side_by_side import describe_machine, medians, quick

# isort: split
import math
import time

import keras
import numpy as np

from keras_tnattn.models import PRESETS, translator
from keras_tnattn.search.beam_search import BeamSearch

VOCABULARY, SENTENCES, LENGTH, EXTRA = 8000, 32, 20, 10
START = 2
BEAMS = (1, 4)


def naive_search(model: keras.Model, source: np.ndarray, beam_size: int, extra: int) -> list[int]:
    """Translates the ids `(S,)` of one sentence; without an end token no hypothesis ends early."""
    live = [(0.0, [START])]
    for _ in range(len(source) + extra):
        extended = []
        for total, ids in live:
            inputs = {"source": source[None], "target": np.array([ids], "int32")}
            logits = keras.ops.convert_to_numpy(model(inputs, training=False))[0, -1]
            log_p = logits - logits.max()
            log_p -= math.log(np.exp(log_p).sum())
            for token in np.argsort(-log_p, kind="stable")[:beam_size]:
                extended.append((total - log_p[token], [*ids, int(token)]))
        live = sorted(extended, key=lambda pair: pair[0])[:beam_size]
    return live[0][1]


def compare(preset: str, sources: np.ndarray, beam_size: int, extra: int, repeats: int) -> None:
    model = translator(VOCABULARY, VOCABULARY, **PRESETS[preset])
    search = BeamSearch(model, beam_size, START, None, extra)
    results, expected = {}, []

    def ours():
        results["ids"] = search(sources).ids[:, 0].tolist()

    def published():  # another sentence in each round
        expected.append(naive_search(model, sources[len(expected)], beam_size, extra))

    start = time.perf_counter()
    ours()
    compiling = time.perf_counter() - start
    seconds = medians({"ours": ours, "published": published}, repeats, warm_ups=1)
    sentence, peer = seconds["ours"] / len(sources), seconds["published"]
    print(
        f"{preset:7s} beam {beam_size}: {sentence:6.3f} s per sentence "
        f"(first call {compiling:.1f} s), published loop {peer:6.2f} s ({peer / sentence:5.1f}x), "
        f"same tokens: {results['ids'][: len(expected)] == expected}",
        flush=True,
    )


def main():
    trying = quick(__doc__)
    sentences, length, extra, repeats = (2, 3, 1, 1) if trying else (SENTENCES, LENGTH, EXTRA, 3)
    describe_machine()
    rng = np.random.default_rng(0)
    sources = rng.integers(4, VOCABULARY, (sentences, length)).astype("int32")
    for preset in ("plga-2", "sdpa"):
        for beam_size in BEAMS:
            compare(preset, sources, beam_size, extra, repeats)


if __name__ == "__main__":
    main()
