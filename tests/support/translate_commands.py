"""Command lines that train a translator in seconds."""

import itertools

import numpy as np

NUMBERS = {"um": "one", "dois": "two", "três": "three", "quatro": "four", "cinco": "five"}
NOUNS = {"gatos": "cats", "cães": "dogs", "rios": "rivers", "livros": "books"}
COLORS = {"azuis": "blue", "verdes": "green", "novos": "new"}
VERBS = {"vi": "saw", "tenho": "have"}
SMALL = {
    **{"preset": "plga-2", "model-dim": 8, "num-heads": 2, "feedforward-dim": 16},
    **{"residual-units": 1, "residual-dim": 8, "vocabulary-size": 90},
    **{"batch-size": 27, "epochs": 4, "warmup-steps": 10},
}
RESIDUAL = ("residual-units", "residual-dim")


def small(*without):
    """The options of a small model, but for some."""
    return [word for k, v in SMALL.items() if k not in without for word in (f"--{k}", str(v))]


def table(path, pairs=120):
    """A TSV of Portuguese and English sentences, all different."""
    lines = [
        f"Eu {verb} {number} {noun} {color}.\t"
        f"I {VERBS[verb]} {NUMBERS[number]} {COLORS[color]} {NOUNS[noun]}."
        for number, noun, color, verb in itertools.product(NUMBERS, NOUNS, COLORS, VERBS)
    ]
    order = np.random.default_rng(0).permutation(len(lines))[:pairs]
    path.write_text("\n".join(["pt\ten", *(lines[i] for i in order)]) + "\n", encoding="utf-8")
    return str(path)


def command(corpus, folder, *more):
    return ["translate", "--corpus", corpus, "--run-dir", str(folder), *small(), *more]
