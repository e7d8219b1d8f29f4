"""Tables and pictures of the study `rules`."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from keras_tnattn_train.rules.config import BOUNDARIES, MODEL_DIMS, RulesConfig
from keras_tnattn_train.rules.train import percent
from keras_tnattn_train.runs.plots import save
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.tables import table_of
from keras_tnattn_train.system.files import replacing, save_text


class Finished(NamedTuple):
    """A finished run."""

    config: RulesConfig
    results: dict[str, Any]

    @property
    def accuracies(self) -> dict[int, float]:
        """The share of correct cells at each length, trained or longer."""
        return {int(length): share for length, share in self.results["accuracies"].items()}

    @property
    def exact(self) -> bool:
        """Whether every cell of the test rows is correct at every length."""
        return min(self.accuracies.values()) == 1


def finished_runs(folder: Path) -> list[Finished]:
    """Returns the finished runs in a folder, in the order of the tables."""
    runs = [Run(path.parent) for path in folder.glob("*/results.json")]
    finished_runs = [Finished(run.read_config(RulesConfig, {}), run.results or {}) for run in runs]
    models = list(MODEL_DIMS)
    return sorted(
        finished_runs,
        key=lambda run: (
            run.config.steps,
            models.index(run.config.model),
            run.config.rule,
            BOUNDARIES.index(run.config.boundary),
            run.config.seed,
        ),
    )


def write_csv(runs: Sequence[Finished], path: Path) -> None:
    """Writes a row for each run: what was trained, and its accuracy at each length."""
    lengths = sorted({length for run in runs for length in run.accuracies})
    columns = ("model", "steps", "rule", "boundary", "seed", "epochs", "learning_rate")
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "weights", "seconds", "exact", *(f"at_{n}" for n in lengths)])
        for run in runs:
            values = [getattr(run.config, name) for name in columns]
            measured = [run.results["parameters"]["all"], round(run.results["seconds"], 1)]
            shares = [run.accuracies.get(length, "") for length in lengths]
            writer.writerow([*values, *measured, int(run.exact), *shares])


def report(folder: Path) -> str:
    """Writes CSV, tables and pictures of all finished runs in a folder; returns the tables."""
    runs = finished_runs(folder)
    write_csv(runs, folder / "runs.csv")
    text = f"{exact_table(runs)}\n\n{accuracy_table(runs)}"
    save_text(folder / "table.md", text)
    draw_accuracies(runs, folder / "accuracy_by_length.png")
    draw_exact_shares(runs, folder / "exact_by_steps.png")
    return text


def exact_table(runs: Sequence[Finished]) -> str:
    """Returns a table of the exact runs among all, by network and steps, rule and boundary."""
    columns = sorted(
        {(run.config.rule, run.config.boundary) for run in runs},
        key=lambda column: (column[0], BOUNDARIES.index(column[1])),
    )
    lines = [("steps", "network", *(f"{rule} {ends}" for rule, ends in columns), "all")]
    for (steps, model), of_line in by_steps_and_model(runs).items():
        parts = [
            [r for r in of_line if (r.config.rule, r.config.boundary) == column]
            for column in columns
        ]
        lines.append((str(steps), model, *map(_share_exact, parts), _share_exact(of_line)))
    return table_of(lines)


def accuracy_table(runs: Sequence[Finished]) -> str:
    """Returns a table of means over all runs of a network and a number of steps."""
    lengths = runs[0].config.tested_lengths
    header = ("steps", "network", "weights", "runs", "worst trained length")
    lines: list[tuple[str, ...]] = [
        (*header, *(f"{length:,} cells" for length in lengths), "lowest", "seconds")
    ]
    for (steps, model), of_line in by_steps_and_model(runs).items():
        weights = sorted({run.results["parameters"]["all"] for run in of_line})
        trained = fmean(run.results["trained_accuracy"] for run in of_line)
        longer = (fmean(run.accuracies[length] for run in of_line) for length in lengths)
        lowest = min(run.accuracies[lengths[-1]] for run in of_line)
        lines.append(
            (
                str(steps),
                model,
                " / ".join(f"{number:,}" for number in weights),
                str(len(of_line)),
                *(percent(share) for share in (trained, *longer, lowest)),
                f"{fmean(run.results['seconds'] for run in of_line):.0f}",
            )
        )
    return table_of(lines)


def by_steps_and_model(runs: Iterable[Finished]) -> dict[tuple[int, str], list[Finished]]:
    """Groups runs, which keep their order."""
    groups: dict[tuple[int, str], list[Finished]] = {}
    for run in runs:
        groups.setdefault((run.config.steps, run.config.model), []).append(run)
    return groups


def _share_exact(runs: Sequence[Finished]) -> str:
    return f"{sum(run.exact for run in runs)} of {len(runs)}" if runs else "-"


def draw_accuracies(runs: Sequence[Finished], path: Path) -> None:
    """Draws the mean accuracy of each network against the length, a panel for each steps."""
    steps = sorted({run.config.steps for run in runs})
    figure = Figure(figsize=(1 + 4 * len(steps), 3.8), layout="constrained")
    row = figure.subplots(1, len(steps), sharey=True, squeeze=False)[0]
    panels = dict(zip(steps, row, strict=True))
    for (number, model), of_line in by_steps_and_model(runs).items():
        lengths = sorted(of_line[0].accuracies)
        means = [100 * fmean(run.accuracies[length] for run in of_line) for length in lengths]
        label = f"{model} ({len(of_line)})"
        panels[number].plot(lengths, means, marker=".", color=_color(model), label=label)
    for number, axes in panels.items():
        axes.axvline(runs[0].config.length, color="black", linestyle=":")
        title = f"{number} step{'s' if number > 1 else ''} at once"
        axes.set(xlabel="cells in a row", title=title, ylim=(45, 102))
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
        axes.legend(title="network (runs)", fontsize="small")
    panels[steps[0]].set_ylabel("correct cells, %")
    save(figure, path)


def draw_exact_shares(runs: Sequence[Finished], path: Path) -> None:
    """Draws the share of exact runs of each network against the number of steps."""
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    groups = by_steps_and_model(runs)
    # Each line is thinner than the one before, so that one drawn on another hides no part of it.
    models = list(dict.fromkeys(model for _, model in groups))
    for size, model in zip(range(len(models), 0, -1), models, strict=True):
        steps = [number for number, name in groups if name == model]
        shares = [100 * fmean(run.exact for run in groups[number, model]) for number in steps]
        axes.plot(
            steps,
            shares,
            marker="o",
            markersize=2 + 2 * size,
            linewidth=0.4 + 0.6 * size,
            color=_color(model),
            label=model,
        )
    axes.set(xlabel="steps at once", ylabel="exact runs, %", ylim=(-4, 104))
    axes.set_xticks(sorted({number for number, _ in groups}))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    save(figure, path)


def _color(model: str) -> str:
    """Returns the color of a network, the same in all panels and pictures."""
    return f"C{list(MODEL_DIMS).index(model)}"
