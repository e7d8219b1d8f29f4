"""The figures of the papers, by the numbers of their tables."""

from typing import NamedTuple


class Accuracies(NamedTuple):
    """Training and test accuracy in percent, of one attention on one data set."""

    train: float
    test: float


class Translated(NamedTuple):
    """BLEU by greedy search and log perplexity, of one model on one task."""

    bleu: float
    log_perplexity: float


# Xu et al., "A Tensorized Spectral Attention Mechanism for Efficient Natural Language Processing",
# Table 1: attentions of about 300 weights, means over the runs. The names of its data sets are
# Reuters, 20 Newsgroups, drug reviews, Research Articles and Spooky.
TENSORIZED_TABLE_1: dict[str, dict[str, Accuracies]] = {
    "tsa": {
        "RN": Accuracies(85.3, 73.9),
        "NG": Accuracies(96.9, 82.8),
        "DR": Accuracies(96.3, 87.7),
        "RA": Accuracies(90.2, 72.7),
        "SA": Accuracies(97.4, 80.6),
    },
    "dpa": {
        "RN": Accuracies(55.7, 58.2),
        "NG": Accuracies(46.0, 49.0),
        "DR": Accuracies(74.7, 75.7),
        "RA": Accuracies(80.3, 71.8),
        "SA": Accuracies(92.6, 81.3),
    },
    "ada": {
        "RN": Accuracies(57.5, 58.4),
        "NG": Accuracies(48.7, 49.0),
        "DR": Accuracies(77.0, 77.6),
        "RA": Accuracies(76.0, 71.9),
        "SA": Accuracies(93.9, 81.3),
    },
}

# Gokden, "Power Law Graph Transformer for Machine Translation and Representation Learning",
# Table 2: greedy search, 120 epochs.
POWER_LAW_TABLE_2: dict[str, dict[str, Translated]] = {
    "pt_en": {
        "plga-1": Translated(26.96, 2.74),
        "plga-2": Translated(27.79, 2.64),
        "plga-3": Translated(27.66, 2.68),
        "plga-4": Translated(27.55, 2.64),
        "plga-5": Translated(16.74, 3.42),
        "plga-6": Translated(16.02, 3.40),
        "sdpa": Translated(27.97, 2.15),
    },
    "tr_en": {
        "plga-2": Translated(17.58, 2.66),
        "plga-3": Translated(17.61, 2.67),
        "sdpa": Translated(16.82, 2.43),
    },
}

# Table 3 of the same paper: BLEU with a beam of four. That of `rnn` is of another paper, which does
# not tell the search.
POWER_LAW_TABLE_3: dict[str, dict[str, float]] = {
    "pt_en": {"plga-2": 28.33, "sdpa": 29.57, "rnn": 26.2},
    "tr_en": {"plga-2": 17.79, "sdpa": 18.31, "rnn": 14.9},
}
