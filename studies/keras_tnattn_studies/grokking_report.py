"""The measurements, the table and the pictures of the study `grokking`."""

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from keras_tnattn_studies.grokking_config import BASE, NETWORKS, GrokkingTraining, Setting, base_of
from keras_tnattn_studies.grokking_training import Trained, shows_whole_rule
from keras_tnattn_studies.measuring import Measurements
from keras_tnattn_train.runs.plots import save
from keras_tnattn_train.runs.tables import table_of
from keras_tnattn_train.system.files import replacing, save_text, writing

ENOUGH = 0.99  # the accuracy that counts as learned
FACTOR_TITLES = {
    "bond_dim": "bond dimension",
    "weight_decay": "weight decay",
    "rows": "training rows",
}
# The rows of results.csv of a setting, by seed.
Group = dict[int, dict[str, Any]]


def measurements_of(
    options: GrokkingTraining,
    setting: Setting,
    seeds: Sequence[int],
    trained: Trained,
    folder: Path,
) -> Measurements:
    """Returns the rows of results.csv of some trainings, and saves their curves."""
    rows: Measurements = {}
    for seed, train, test in zip(seeds, trained.train, trained.test, strict=True):
        key = (*setting, seed)
        epochs = {
            "train_epoch": _first_epoch(train, options.epochs_between),
            "test_epoch": _first_epoch(test, options.epochs_between),
        }
        rows[key] = {
            "weights": trained.weights,
            **{name: epoch for name, epoch in epochs.items() if epoch is not None},
            "train_accuracy": float(train[-1]),
            "test_accuracy": float(test[-1]),
            "best_test_accuracy": float(test.max()),
            "seconds": round(trained.seconds, 3),
        }
        path = _curves_path(folder, key)
        with writing(path.parent):
            path.parent.mkdir(exist_ok=True)
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez_compressed(file, train=train, test=test)
    return rows


def _first_epoch(accuracies: np.ndarray, epochs_between: int) -> int | None:
    enough = accuracies >= ENOUGH
    return int(enough.argmax() + 1) * epochs_between if enough.any() else None


def _curves_path(folder: Path, key: tuple) -> Path:
    return folder / "curves" / f"{'-'.join(map(str, key))}.npz"


def report(rows: Measurements, options: GrokkingTraining, folder: Path) -> str:
    """Writes the table and the pictures of all finished trainings in a folder."""
    groups = by_setting(rows)
    text = table(groups, options)
    save_text(folder / "table.md", text)
    draw_delays(groups, options, folder / "delays.png")
    for boundary in dict.fromkeys(setting.boundary for setting in groups):
        of_ends = {s: group for s, group in groups.items() if s.boundary == boundary}
        draw_curves(of_ends, options, folder, folder / f"curves_{boundary}.png")
    return text


def by_setting(rows: Measurements) -> dict[Setting, Group]:
    """Returns the rows of each setting, by seed."""
    groups: dict[Setting, Group] = {}
    for key, row in rows.items():
        groups.setdefault(Setting(*key[:-1]), {})[key[-1]] = row
    return groups


def epoch_of(row: dict[str, Any], column: str) -> float:
    """Returns when a training reached 99 %; infinity if it never did."""
    return row.get(column, math.inf)


def delays_of(group: Group) -> list[float]:
    """Returns the delays of the trainings that learned their rows; infinity without an end."""
    return sorted(
        epoch_of(row, "test_epoch") - row["train_epoch"]
        for row in group.values()
        if "train_epoch" in row
    )


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the lower quartile, the median and the upper quartile; values may be infinite."""
    lower, upper = np.quantile(values, (0.25, 0.75), method="inverted_cdf")
    return float(lower), statistics.median(values), float(upper)


def table(groups: dict[Setting, Group], options: GrokkingTraining) -> str:
    """Returns a table with a line for each setting: counts, medians and quartiles."""
    header = ("ends", "network", "weights", "bond", "decay", "rows", "whole rule", "99 % training")
    columns = ("99 % test", "at the end", "training epoch", "test epoch", "delay", "test %, end")
    lines: list[tuple[str, ...]] = [(*header, *columns, "test %, best")]
    for setting, group in groups.items():
        rows = list(group.values())
        delays = delays_of(group)
        number = len(rows)
        lines.append(
            (
                setting.boundary,
                setting.network,
                f"{rows[0]['weights']:,}",
                str(setting.bond_dim or "-"),
                f"{setting.weight_decay:g}",
                str(setting.rows),
                f"{sum(shows_whole_rule(options, setting, seed) for seed in group)} of {number}",
                f"{len(delays)} of {number}",
                f"{sum('test_epoch' in row for row in rows)} of {number}",
                f"{sum(row['test_accuracy'] >= ENOUGH for row in rows)} of {number}",
                *(
                    _epochs(statistics.median(epoch_of(row, column) for row in rows))
                    for column in ("train_epoch", "test_epoch")
                ),
                _delay(delays),
                *(
                    f"{100 * statistics.median(row[column] for row in rows):.1f}"
                    for column in ("test_accuracy", "best_test_accuracy")
                ),
            )
        )
    return table_of(lines)


def _epochs(number: float) -> str:
    return f"{number:,.0f}" if math.isfinite(number) else "never"


def _delay(delays: Sequence[float]) -> str:
    if not delays:
        return "-"
    lower, median, upper = map(_epochs, quartiles(delays))
    return f"{median} ({lower} to {upper})"


def draw_curves(
    groups: dict[Setting, Group], options: GrokkingTraining, folder: Path, path: Path
) -> None:
    """Draws the accuracies over the epochs, a row of panels per network: medians and quartiles.

    Bond dimension and weight decay are those of the base.
    """
    lines = settings_by_line(groups, "rows")
    shown = {setting: groups[setting] for settings in lines.values() for setting in settings}
    networks = [n for n in NETWORKS if any(s.network == n for s in shown)]
    columns = sorted({setting.rows for setting in shown})
    figure = Figure(figsize=(3 * len(columns), 0.5 + 2.3 * len(networks)), layout="constrained")
    grid = figure.subplots(len(networks), len(columns), sharex=True, sharey=True, squeeze=False)
    epochs = np.arange(1, 1 + options.epochs // options.epochs_between) * options.epochs_between
    for setting, group in shown.items():
        axes = grid[networks.index(setting.network)][columns.index(setting.rows)]
        curves = [np.load(_curves_path(folder, (*setting, seed))) for seed in group]
        for color, (part, title) in enumerate({"train": "training", "test": "test"}.items()):
            values = 100 * np.array([of_seed[part] for of_seed in curves])
            lower, median, upper = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
            axes.plot(epochs, median, color=f"C{color}", label=title)
            axes.fill_between(epochs, lower, upper, color=f"C{color}", alpha=0.25, linewidth=0)
        axes.set(title=f"{setting.network}, {setting.rows} rows", xscale="log", ylim=(45, 102))
        axes.grid(alpha=0.3)
    for axes in grid.flat:
        axes.tick_params(labelbottom=True, labelleft=True)
        if not axes.lines:
            axes.set_axis_off()
    figure.supxlabel("epoch")
    figure.supylabel("correct cells, %")
    grid[0][0].legend(loc="lower right")
    save(figure, path)


def draw_delays(groups: dict[Setting, Group], options: GrokkingTraining, path: Path) -> None:
    """Draws the delay of every training against each factor, a bar at the median of a setting."""
    figure = Figure(figsize=(14, 4.2), layout="constrained")
    never = 3 * options.epochs  # where a delay without an end is drawn
    grid = figure.subplots(1, len(FACTOR_TITLES), sharey=True, width_ratios=(1, 1, 3))
    for axes, (factor, title) in zip(grid, FACTOR_TITLES.items(), strict=True):
        lines = settings_by_line(groups, factor)
        values = sorted({getattr(s, factor) for settings in lines.values() for s in settings})
        for n, ((network, boundary), settings) in enumerate(lines.items()):
            for setting in settings:
                delays = delays_of(groups[setting])
                width = 0.8 / len(lines)
                middle = values.index(getattr(setting, factor)) - 0.4 + (n + 0.5) * width
                places = middle + np.linspace(-0.35, 0.35, len(delays)) * width
                color = f"C{list(NETWORKS).index(network)}"
                face = color if boundary == BASE.boundary else "none"
                axes.scatter(places, np.minimum(delays, never), 14, facecolor=face, edgecolor=color)
                if delays:
                    ends = middle + np.array([-0.45, 0.45]) * width
                    median = min(statistics.median(delays), never)
                    axes.plot(ends, [median, median], color="black")
            label = f"{network}, {boundary}"
            axes.scatter([], [], 14, facecolor=face, edgecolor=color, label=label)
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axes.set(xlabel=title)
        axes.grid(axis="y", alpha=0.3)
    lowest = min((delay for group in groups.values() for delay in delays_of(group)), default=0)
    grid[0].set_yscale("symlog", linthresh=10)
    grid[0].set_ylim(min(2 * lowest, -5), 2 * never)
    ticks = [0, 10, 100, 1000]
    grid[0].set_yticks([*ticks, never], [*map(str, ticks), "never"])
    grid[0].set_ylabel("delay, epochs")
    grid[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, path)


def settings_by_line(
    groups: Iterable[Setting], factor: str
) -> dict[tuple[str, str], list[Setting]]:
    """Returns the settings in which only a factor differs from the base, by network and ends."""
    lines: dict[tuple[str, str], list[Setting]] = {}
    for setting in groups:
        base = base_of(setting.network, setting.boundary)
        varied = setting._replace(**{factor: getattr(base, factor)}) == base
        if varied and (factor == "rows" or base == BASE):
            lines.setdefault((setting.network, setting.boundary), []).append(setting)
    return lines
