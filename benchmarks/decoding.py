"""Greedy and beam search with the paper's model #2 and with its SDPA model.

    python benchmarks/decoding.py

Untrained, vocabularies of 8,000, sources of 20 tokens, 30 steps (no end token), no XLA.
`BeamSearch` translates 32 sentences together. The peer is the published loop, made of the same
layers: a sentence at a time, uncompiled, the encoder and the whole prefix anew at each step, each
live hypothesis by itself. It translates one sentence; its tokens must be ours. Ours is timed at its
second call, when it is compiled.
"""

import math
import time

import keras
import numpy as np
from side_by_side import describe_machine

from keras_tnattn.models import PRESETS, translator
from keras_tnattn.models.decoding import BeamSearch

VOCABULARY, SENTENCES, LENGTH, EXTRA = 8000, 32, 20, 10
START, NO_END = 2, -1
BEAMS = (1, 4)


def naive_search(model: keras.Model, source: np.ndarray, beam_size: int) -> list[int]:
    """Translates the ids of one sentence, `(S,)`; without an end token, all hypotheses live on."""
    live = [(0.0, [START])]
    for _ in range(len(source) + EXTRA):
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


def timed(run):
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def main():
    describe_machine()
    rng = np.random.default_rng(0)
    sources = rng.integers(4, VOCABULARY, (SENTENCES, LENGTH)).astype("int32")
    for preset in ("plga-2", "sdpa"):
        model = translator(VOCABULARY, VOCABULARY, **PRESETS[preset])
        for beam_size in BEAMS:
            search = BeamSearch(model, beam_size, START, NO_END, EXTRA)
            found, compiling = timed(lambda search=search: search(sources))
            _, ours = timed(lambda search=search: search(sources))
            naive_search(model, sources[1, :2], 1)  # what a first call costs is not counted
            want, peer = timed(
                lambda model=model, beam_size=beam_size: naive_search(model, sources[0], beam_size)
            )
            ours /= SENTENCES
            same = found.ids[0, 0].tolist() == want
            print(
                f"{preset:7s} beam {beam_size}: {ours:6.3f} s a sentence (first call "
                f"{compiling:.1f} s), published loop {peer:6.2f} s ({peer / ours:5.1f}x), "
                f"same tokens: {same}",
                flush=True,
            )


if __name__ == "__main__":
    main()
