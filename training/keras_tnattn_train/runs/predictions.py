"""Predictions for texts, as `predict` writes them."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Prediction:
    """One prediction for a text.

    Args:
        words: What a line of text holds, separated by tabs.
        cells: What a row of a table or an object of JSON holds, by column. In a table each of the
            `probabilities`, if any, has a column, such as `probability of earn`.
    """

    words: tuple[str, ...]
    cells: dict[str, Any]


# From texts to the predictions of each.
Predictor = Callable[[list[str]], list[list[Prediction]]]


def labels(probabilities: Iterable[Any], class_names: Sequence[str]) -> list[list[Prediction]]:
    """Returns the most probable class of each row of `(B, C)`, with all probabilities."""
    predictions = []
    for row in probabilities:
        shares = [round(float(p), 6) for p in row]
        best = int(row.argmax())
        cells = {
            "label": class_names[best],
            "probability": shares[best],
            "probabilities": dict(zip(class_names, shares, strict=True)),
        }
        predictions.append([Prediction((class_names[best], f"{shares[best]:.4f}"), cells)])
    return predictions


def translation(text: str, score: float, **cells: Any) -> Prediction:
    """Returns a translation with its score, and further cells before them."""
    return Prediction((text,), {**cells, "translation": text, "score": round(score, 6)})
