"""Measures trained models, and formats tables of results."""

import math
import statistics
from collections.abc import Sequence

import keras
import numpy as np


def predict(model: keras.Model, ids: np.ndarray) -> np.ndarray:
    """Returns the most probable class `(R,)` for each row of ids `(R, L)`."""
    return probabilities(model, ids).argmax(axis=-1)


def probabilities(model: keras.Model, ids: np.ndarray, batch_size: int = 256) -> np.ndarray:
    """Returns the outputs `(R, C)` for ids `(R, L)`, which are read batch by batch."""
    # `predict` would copy all ids to the backend first.
    batches = (ids[start : start + batch_size] for start in range(0, len(ids), batch_size))
    return np.concatenate([model.predict_on_batch(np.array(batch)) for batch in batches])


def parameter_counts(model: keras.Model) -> dict[str, int]:
    """Counts the weights of the attention layers, of the embedding and of the whole model."""
    attentions = [layer for layer in model.layers if layer.name.startswith("attention")]
    return {
        "attention": sum(layer.count_params() for layer in attentions),
        "embedding": model.get_layer("embedding").count_params(),
        "all": model.count_params(),
    }


def attention_scores(model: keras.Model, ids: np.ndarray) -> np.ndarray:
    """Computes the scores `(H, L, L)` of the first attention layer for one text.

    Args:
        model: A text classifier whose attention layer returns its scores on request.
        ids: Integers `(L,)`, without padding.
    """
    attention = next(layer for layer in model.layers if layer.name.startswith("attention"))
    embedded = keras.tree.flatten(attention.input)[0]  # the mask may come after it
    inputs = keras.Model(model.input, embedded)(ids[None])
    _, scores = attention(inputs, return_attention_scores=True)
    return keras.ops.convert_to_numpy(scores)[0]


def table_of(lines: Sequence[Sequence[str]]) -> str:
    """Formats rows of cells, the header first, as a Markdown table."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    header, *rest = lines
    ruled = [header, ["-" * width for width in widths], *rest]
    return "\n".join("| " + " | ".join(map(str.rjust, line, widths)) + " |" for line in ruled)


def attention_title(name: str) -> str:
    """Returns how tables and pictures call an attention of an option: `TSA`, `no attention`."""
    return "no attention" if name == "none" else name.upper()


def spread(values: Sequence[float]) -> str:
    """Formats the mean of some values and, if there are several, their standard deviation."""
    mean = f"{statistics.mean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def half_width(values: Sequence[float], shared: float = 0.0) -> float:
    """Returns half the width of the 95 % confidence interval of a mean, by Student's t.

    Args:
        values: One for each split, at least two.
        shared: How many test rows there are to a training row, if splits of the same rows give
            values that are not independent: the correction of Nadeau and Bengio ("Inference for
            the generalization error", 2003). Default: no correction.
    """
    from scipy import stats

    n = len(values)
    return float(stats.t.ppf(0.975, n - 1) * statistics.stdev(values) * math.sqrt(1 / n + shared))


def interval(values: Sequence[float], form: str, shared: float = 0.0) -> str:
    """Formats the mean of some values and, if there are several, its 95 % confidence interval.

    Args:
        values: One for each split.
        form: How to format the mean, such as `".2f"`, or `"+.2f"` with its sign.
        shared: As for `half_width`.
    """
    mean = f"{statistics.fmean(values):{form}}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {half_width(values, shared):{form.lstrip('+')}}"
