"""The tables of the studies of translators."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from keras_tnattn_studies.measuring import Measurements
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.tables import mean_and_deviation, spread, table_of

PEER = "sdpa"
FIXED = ", metric fixed"  # what is added to the name of a model
MISSING = "-"


def best_epoch(run: Path) -> int | None:
    """Returns the epoch of a run's lowest validation loss; `None` if the run is gone."""
    metrics = Run(run).read_metrics()
    return int(min(metrics, key=lambda row: row["val_loss"])["epoch"]) if metrics else None


def epochs_of(epochs: Iterable[int | None]) -> str:
    """Formats the best epochs of several seeds."""
    return " ".join(MISSING if epoch is None else str(epoch) for epoch in epochs)


def main_table(
    models: Iterable[str],
    rows: Measurements,
    fixed: Measurements,
    milliseconds: Measurements,
    epochs: Mapping[tuple, int | None],
) -> str:
    """Returns a table with a line for each model: means over its seeds."""
    header = ["model", "weights", "loss", "log perplexity", "best epoch", "validation BLEU"]
    header += [f"less {PEER}", "exact %", "ms/sentence, alone", f"times {PEER}"]
    header += ["in batches", f"times {PEER}", "training s", "seeds"]
    lines = [header]
    for model in models:
        for name, measured in ((model, rows), (f"{model}{FIXED}", fixed)):
            of_model = {s: measured[m, s] for m, s in sorted(measured) if m == model}
            if of_model:
                best = [epochs.get((model, s)) for s in of_model] if measured is rows else []
                lines.append([name, *_cells(name, of_model, rows, milliseconds, best)])
    return table_of(lines)


def _cells(
    name: str,
    of_model: Mapping[int, Mapping[str, Any]],
    rows: Measurements,
    milliseconds: Measurements,
    best: Sequence[int | None],
) -> Iterable[str]:
    """Yields the cells of a line behind the name."""

    def mean(column: str, form: str) -> str:
        values = [row[column] for row in of_model.values() if column in row]
        return f"{fmean(values):{form}}" if values else MISSING

    yield mean("weights", ",.0f")
    yield mean("loss", ".3f")
    yield mean("val_loss", ".3f")
    yield epochs_of(best) or MISSING
    yield spread([row["bleu"] for row in of_model.values()])
    differences = [
        row["bleu"] - rows[PEER, seed]["bleu"]
        for seed, row in of_model.items()
        if name != PEER and (PEER, seed) in rows
    ]
    yield spread(differences) if differences else MISSING
    yield spread([100 * row["exact_match"] for row in of_model.values()])
    for column in ("milliseconds", "milliseconds_in_batches"):
        times = {
            seed: milliseconds[name, seed][column]
            for seed in of_model
            if (name, seed) in milliseconds
        }
        yield spread(list(times.values())) if times else MISSING
        ratios = [
            time / milliseconds[PEER, seed][column]
            for seed, time in times.items()
            if name != PEER and (PEER, seed) in milliseconds
        ]
        yield mean_and_deviation(ratios, ".2f") if ratios else MISSING
    yield mean("seconds", ",.0f")
    yield " ".join(map(str, of_model))


def metric_table(models: Iterable[str], rows: Measurements, fixed: Measurements) -> str:
    """Returns a table of the models with a metric: live, fixed, and the identity in its place."""
    kinds = ("live", "fixed", "G = I")
    header = ["model", *(f"BLEU, {kind}" for kind in kinds)]
    header += [*(f"log perplexity, {kind}" for kind in kinds), "spread", "seeds"]
    lines = [header]
    for model in models:
        seeds = sorted(seed for name, seed in fixed if name == model)
        if not seeds:
            continue
        line = [model]
        for column, form in (("bleu", ".1f"), ("val_loss", ".3f")):
            for measured, name in ((rows, column), (fixed, column), (fixed, f"identity_{column}")):
                values = [measured[model, seed][name] for seed in seeds]
                line.append(mean_and_deviation(values, form))
        spreads = [dict(_spreads(fixed[model, seed]["spreads"])) for seed in seeds]
        line.append(
            ", ".join(
                f"{path} {mean_and_deviation([each[path] for each in spreads], '.2f')}"
                for path in spreads[0]
            )
        )
        lines.append([*line, " ".join(map(str, seeds))])
    return table_of(lines)


def _spreads(text: str) -> Iterable[tuple[str, float]]:
    """Yields the path and the spread of each attention, as metric.csv has them."""
    for part in text.split():
        path, _, value = part.partition("=")
        yield path, float(value)
