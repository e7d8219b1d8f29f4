"""The command `compare-nodes`: several layers over several seeds, in one table."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.base.errors import InputError
from training.base.files import replacing
from training.base.options import RUN, Options, option
from training.engine.backend import start_backend
from training.engine.commands import Command
from training.engine.devices import check_one_process
from training.engine.runs import Run, write_text
from training.nodes.command import load
from training.nodes.config import LAYERS, NodesConfig

HEADER = ("layer", "weights", "seeds", "test %", "lowest", "highest", "epochs", "seconds")
# The columns of seeds.csv besides the layer and the seed, with their types.
MEASURED: dict[str, Callable[[str], float]] = {
    "weights": int,
    "test_accuracy": float,
    "validation_accuracy": float,
    "train_accuracy": float,
    "epochs": int,
    "seconds": float,
}
COLUMNS = ("layer", "seed", *MEASURED)

# The options of `nodes` that `compare-nodes` lacks: those that the table varies, and those that
# only some of the layers have.
LEFT_OUT = {"layer", "seed", "name"}
LEFT_OUT |= {"num_heads", "output_heads", "filter_order"}

Rows = dict[tuple[str, int], dict[str, Any]]


class CompareNodesOptions(Options):
    """The options that only `compare-nodes` has."""

    layers: tuple[str, ...] = option(tuple(LAYERS), RUN, "layers to compare", choices=tuple(LAYERS))
    seeds: tuple[int, ...] = option(tuple(range(10)), RUN, "seeds to train each layer with")
    run_dir: str | None = option(
        None, RUN, "folder of the table (default: runs/compare-nodes-DATASET)", metavar="DIR"
    )


def read_rows(path: Path) -> Rows:
    """Reads the measurements by layer and seed."""
    if not path.exists():
        return {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return {
                (row["layer"], int(row["seed"])): {
                    name: number(row[name]) for name, number in MEASURED.items()
                }
                for row in csv.DictReader(file)
            }
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise InputError(
            f"Expected a row for each layer and seed. Received: {path} ({error}). Delete it to "
            "train all of them again"
        ) from error


def write_rows(path: Path, rows: Rows) -> None:
    """Writes the measurements, sorted by layer and seed."""
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for (layer, seed), row in sorted(rows.items()):
            writer.writerow((layer, seed, *(row[name] for name in MEASURED)))


def table(rows: Rows) -> str:
    """Returns a table with a line for each layer: means and standard deviations over its seeds."""
    from training.engine.tables import spread, table_of

    lines: list[tuple[str, ...]] = [HEADER]
    for layer in LAYERS:
        of_layer = [row for (name, _), row in rows.items() if name == layer]
        if of_layer:
            accuracies = [100 * row["test_accuracy"] for row in of_layer]
            lines.append(
                (
                    layer.upper(),
                    f"{of_layer[0]['weights']:,}",
                    str(len(of_layer)),
                    spread(accuracies),
                    f"{min(accuracies):.1f}",
                    f"{max(accuracies):.1f}",
                    spread([row["epochs"] for row in of_layer]),
                    spread([row["seconds"] for row in of_layer]),
                )
            )
    return table_of(lines)


def start(values: dict[str, Any]) -> None:
    """Runs `compare-nodes` with the options that the user typed."""
    check_one_process("compare-nodes")
    typed = {name: values.pop(name) for name in CompareNodesOptions.model_fields if name in values}
    options, common = CompareNodesOptions(**typed), NodesConfig(**values)
    configs = [
        NodesConfig(**values, layer=layer, seed=seed)
        for seed in options.seeds
        for layer in options.layers
    ]
    graph = load(common)
    start_backend()  # takes seconds, so invalid input is reported first
    from training.nodes.train import data_description, measure_once

    run = Run(options.run_dir or f"runs/compare-{common.name.removesuffix('-gat-0')}")
    if run.exists:
        run.read_config(NodesConfig, dict(common))
    run.start_or_check(common, data_description(graph))
    path = run.folder / "seeds.csv"
    rows = read_rows(path)
    for i, config in enumerate(configs):
        if (config.layer, config.seed) in rows:
            continue
        results = measure_once(config, graph)
        results["weights"] = results["parameters"]["all"]
        print(
            f"{i + 1} of {len(configs)}: {config.layer}, seed {config.seed}: "
            f"{results['test_accuracy']:.1%} after {results['epochs']} epochs, "
            f"{results['seconds']:.0f} s",
            flush=True,
        )
        rows[config.layer, config.seed] = {name: results[name] for name in MEASURED}
        write_rows(path, rows)
        write_text(run.folder / "table.md", table(rows))
    print(f"\n{table(rows)}\n")


COMMAND = Command(
    "compare-nodes",
    "Train several layers of a classifier of nodes with several seeds, and print one table",
    "Writes seeds.csv, with a row for each finished layer and seed, and table.md, with means and "
    "standard deviations. A layer and seed in seeds.csv is not trained again, so the command can "
    "add seeds to a finished table.",
    {
        **CompareNodesOptions.model_fields,
        **{n: f for n, f in NodesConfig.model_fields.items() if n not in LEFT_OUT},
    },
    start,
    """\
example:
    python training/train.py compare-nodes --dataset cora --data-dir DIR --layers gat --seeds 0 1 2
""",
)
