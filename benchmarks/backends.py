"""Times the training and the decoding of small models on the current backend.

    KERAS_BACKEND=torch python benchmarks/backends.py

The models are a text classifier with tensorized spectral attention (64 texts of 100 words per step)
and translators of one layer and 64 dimensions (16 sentences of 12 tokens, 32 steps of greedy
search). The CPU time of the process, over all its threads, depends little on the other load of the
machine. The time of the first call includes compilation.
"""

import time
from collections.abc import Callable

import keras
import numpy as np

from keras_tnattn.models import text_classifier, translator
from keras_tnattn.search import BeamSearch

VOCABULARY, REPEATS = 500, 5


def report(name: str, run: Callable[[], object]) -> None:
    def timed() -> tuple[float, float]:
        start, process_start = time.perf_counter(), time.process_time()
        run()
        return time.perf_counter() - start, time.process_time() - process_start

    _, first = timed()
    times = [timed() for _ in range(REPEATS)]
    wall, process = (sorted(column)[REPEATS // 2] for column in zip(*times, strict=True))
    print(
        f"{keras.backend.backend():10s} {name:20s} {1000 * process:8.1f} ms of CPU time, "
        f"{1000 * wall:8.1f} ms; first call {first:5.1f} s of CPU time",
        flush=True,
    )


def main() -> None:
    rng = np.random.default_rng(0)
    texts = rng.integers(1, VOCABULARY, (64, 100)).astype("int32")
    classifier = text_classifier(VOCABULARY, 4, "tsa", embedding_dim=64)
    classifier.compile("adam", "sparse_categorical_crossentropy")
    labels = rng.integers(0, 4, 64)
    report("classifier, training", lambda: classifier.train_on_batch(texts, labels))

    sources = rng.integers(4, VOCABULARY, (16, 12)).astype("int32")
    for attention, options in (
        ("plga", {"residual_units": 2, "residual_dim": 32}),
        ("sdpa", {}),
    ):
        sizes = {"model_dim": 64, "num_heads": 4, "feedforward_dim": 128}
        model = translator(VOCABULARY, VOCABULARY, attention, **sizes, **options)
        search = BeamSearch(model, 1, end_id=None, extra_tokens=20)
        report(f"{attention}, greedy search", lambda search=search: search(sources))


if __name__ == "__main__":
    main()
