"""Predictions of trained models, and how `predict` writes those for texts."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True)
class Prediction:
    """One prediction for a text.

    Args:
        words: What a line of text holds, separated by tabs.
        cells: What a row of a table or an object of JSON holds, by column. In a table each of the
            `probabilities`, if any, has a column, such as `probability of earn`.
        warning: What the user should know about it. Default: nothing.
    """

    words: tuple[str, ...]
    cells: dict[str, Any]
    warning: str | None = None


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why there is no prediction for a text, name or path."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Predictor:
    """What predicts.

    Args:
        predict: From texts to the predictions of each, or why there are none.
        columns: The columns of a table of its predictions, which are the cells of each.
    """

    predict: Callable[[list[str]], Sequence[list[Prediction] | Problem]]
    columns: tuple[str, ...]

    def __call__(self, texts: list[str]) -> Sequence[list[Prediction] | Problem]:
        return self.predict(texts)


def label_columns(class_names: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns of a table of `labels`."""
    return ("label", "probability", *map(probability_column, class_names))


def probability_column(class_name: str) -> str:
    """Returns the name of the column with the probabilities of a class."""
    return f"probability of {class_name}"


TRANSLATION_COLUMNS = ("translation", "score")
CONTINUATION_COLUMNS = ("continuation",)
CONTINUED_TOKENS = 50  # tokens that continue a text at most


def labels(
    probabilities: Iterable[Any], class_names: Sequence[str], ids: np.ndarray | None = None
) -> list[list[Prediction]]:
    """Returns the most probable class of each row of `(B, C)`, with all probabilities.

    A text without a known word has a warning, if `ids` `(B, L)` are given: 0 is padding, 1 unknown.
    """
    predictions = []
    known: Any = itertools.repeat(True) if ids is None else (ids > 1).any(axis=1)
    for row, is_known in zip(probabilities, known, strict=False):
        shares = [round(float(p), 6) for p in row]
        best = int(row.argmax())
        cells = {
            "label": class_names[best],
            "probability": shares[best],
            "probabilities": dict(zip(class_names, shares, strict=True)),
        }
        warning = None if is_known else "no word is known, so that the label says nothing"
        words = (class_names[best], f"{shares[best]:.4f}")
        predictions.append([Prediction(words, cells, warning)])
    return predictions


def translation(
    text: str, score: float, finished: bool = True, rank: int | None = None
) -> Prediction:
    """Returns a translation."""
    warning = None if finished else "the translation reached the limit of the search, and is cut"
    ranked = {} if rank is None else {"rank": rank}
    return Prediction((text,), {**ranked, "translation": text, "score": round(score, 6)}, warning)


def continuation(text: str) -> Prediction:
    """Returns what continues a text."""
    return Prediction((text,), {"continuation": text})


def share_out_tokens(max_length: int | None) -> tuple[int, int]:
    """Returns how many tokens of a text are read, its last ones, and how many continue it.

    `max_length` is what the model reads, `None` if it reads any number.
    """
    room = max_length or 2 * CONTINUED_TOKENS
    count = min(CONTINUED_TOKENS, max(1, room // 2))
    return max(1, room - count), count


def predict(model: "keras.Model", ids: np.ndarray) -> np.ndarray:
    """Returns the most probable class `(R,)` for each row of ids `(R, L)`."""
    return probabilities(model, ids).argmax(axis=-1)


def probabilities(model: "keras.Model", ids: np.ndarray, batch_size: int = 256) -> np.ndarray:
    """Returns the outputs `(R, C)` for ids `(R, L)`, which are read batch by batch."""
    # `predict` would copy all ids to the backend first.
    batches = (ids[start : start + batch_size] for start in range(0, len(ids), batch_size))
    return np.concatenate([model.predict_on_batch(np.array(batch)) for batch in batches])
