"""The index page of the pictures of a translator's attentions."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SCORES = "how much the token of a row takes from the token of a column; a row sums to 1"
MEANINGS = {
    "scores": _SCORES,
    "E_LM": _SCORES,
    "E": "the energies, of which a softmax makes the scores",
    "P": "learned: the exponents to which the entries of A_LM are raised",
    "a": "learned: the couplings by which the powers are multiplied",
    "b_a": "learned: what is added to the powers",
    "A_LM": "the metric that the residual units infer from the sentence; all entries are positive",
    "G_LM": "a (A_LM ** P) + b_a, the metric between queries and keys",
    "tail": "how many entries exceed a magnitude; a power law is a straight line right of the "
    "dotted line, where the fit begins",
    "histogram": "how often a value occurs",
    "learned": "what one head learned, the same for all sentences",
    "inferred": "what one head infers from this sentence",
}


def index_page(explanation: dict[str, Any], files: Sequence[str]) -> str:
    """Returns a page in HTML that shows all pictures, block by block, and says what they are."""
    names = {Path(file).stem for file in files}
    shown = names | {name.rpartition("_")[2] for name in names}
    meanings = {name: text for name, text in MEANINGS.items() if name in shown}
    lines = [
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>Attentions</title>',
        "<style>body{font-family:sans-serif;max-width:75rem;margin:auto;padding:1rem}"
        "img{max-width:100%}</style>",
        f"<h1>{html.escape(explanation['source'])}</h1>",
        f"<p>{html.escape(explanation['target'])}</p>",
        "<dl>",
        *(f"<dt>{name}</dt><dd>{html.escape(text)}</dd>" for name, text in meanings.items()),
        "</dl>",
    ]
    earlier = None
    for file in files:
        block, name = file.split("/")
        if block != earlier:
            what = ", between the sentences" if block.endswith(".cross") else ""
            lines.append(f"<h2>{block}{what}</h2>")
        earlier = block
        lines.append(f'<h3>{name.removesuffix(".png")}</h3><img src="{file}" alt="{file}">')
    return "\n".join([*lines, "</html>", ""])
