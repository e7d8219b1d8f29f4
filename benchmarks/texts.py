"""Reads texts of the data sets `FOLDER/NAME/data.tsv.xz`, a header and tab-separated columns."""

import lzma
from pathlib import Path

import numpy as np

SETS = ("reuters", "drug_review", "spooky_authors", "twenty_newsgroups", "ohsumed")


def read_columns(path: Path, *names: str) -> list[list[str]]:
    """Returns columns of a file of tab-separated values by their names."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        header, *lines = file.read().rstrip("\n").split("\n")
    rows = [line.split("\t") for line in lines]
    places = [header.split("\t").index(name) for name in names]
    return [[row[place] for row in rows] for place in places]


def mixed_texts(folder: Path, count: int, seed: int = 0) -> list[str]:
    """Returns texts of all five data sets in turn, shuffled within each."""
    rng = np.random.default_rng(seed)
    texts = []
    for name in SETS:
        file = "data_stripped" if name == "twenty_newsgroups" else "data"
        (column,) = read_columns(folder / name / f"{file}.tsv.xz", "text")
        texts.append([column[i] for i in rng.permutation(len(column))])
    rounds = -(-count // len(SETS))
    return [column[i] for i in range(rounds) for column in texts][:count]
