"""A small graph with planted communities, written as the two tables of a folder."""

import numpy as np

NODES = 60


def write(folder, extra_edges=()):
    """Three communities; the words say little, the neighbors nearly all."""
    rng = np.random.default_rng(0)
    communities = np.arange(NODES) % 3
    splits = ["train"] * 12 + ["validation"] * 15 + ["test"] * 24 + ["none"] * 9
    rows = []
    for community, part in zip(communities, splits, strict=True):
        words = {int(word) for word in rng.integers(0, 12, 4)} | {12 + int(community)}
        if rng.random() < 0.4:
            words.discard(12 + int(community))
        row = (part, "abc"[community], " ".join(map(str, sorted(words))))
        rows.append("\t".join(row))
    edges = [
        (i, j)
        for i in range(NODES)
        for j in range(i + 1, NODES)
        if rng.random() < (0.2 if communities[i] == communities[j] else 0.005)
    ]
    lines = [f"{i},{j}" for i, j in [*edges, *extra_edges]]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nodes.tsv").write_text("\n".join(["split\tlabel\twords", *rows]) + "\n")
    (folder / "edges.csv").write_text("\n".join(["source,target", *lines]) + "\n")
    return str(folder)
