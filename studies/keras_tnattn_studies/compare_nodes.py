"""The study `compare-nodes`: several layers over several seeds, in one table."""

from typing import Any

from keras_tnattn_studies.measuring import Columns, Measurements, measure_missing
from keras_tnattn_train.commands import Command, pop_options
from keras_tnattn_train.nodes.command import load
from keras_tnattn_train.nodes.config import LAYERS, NodesConfig
from keras_tnattn_train.options.options import RUN, Options, Seeds, option
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.system.files import save_text

HEADER = ("layer", "weights", "seeds", "test %", "lowest", "highest", "epochs", "seconds")
# The columns of seeds.csv, with their types.
KEYS: Columns = {"layer": str, "seed": int}
MEASUREMENTS: Columns = {
    "weights": int,
    "test_accuracy": float,
    "validation_accuracy": float,
    "train_accuracy": float,
    "epochs": int,
    "seconds": float,
}

# The options of `nodes` that `compare-nodes` lacks: those that the table varies, and those that
# only some of the layers have.
OMISSIONS = {"layer", "seed", "name"}
OMISSIONS |= {"num_heads", "output_heads", "filter_order"}


class CompareNodesOptions(Options):
    """The options that only `compare-nodes` has."""

    layers: tuple[str, ...] = option(tuple(LAYERS), RUN, "layers to compare", choices=tuple(LAYERS))
    seeds: Seeds = option(tuple(range(10)), RUN, "seeds to train each layer with")
    run_dir: str | None = option(
        None, RUN, "folder of the table (default: runs/compare-nodes-DATASET)", metavar="DIR"
    )


def table(rows: Measurements) -> str:
    """Returns a table with a line for each layer: means and standard deviations over its seeds."""
    from keras_tnattn_train.runs.tables import spread, table_of

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
    options = CompareNodesOptions(**pop_options(values, CompareNodesOptions))
    common = NodesConfig(**values)
    configs = {
        (layer, seed): NodesConfig(**values, layer=layer, seed=seed)
        for seed in options.seeds
        for layer in options.layers
    }
    graph = load(common)
    start_backend()  # takes seconds, so invalid input is reported first
    from keras_tnattn_train.nodes.train import data_description, measure_once

    run = Run(options.run_dir or f"runs/compare-{common.name.removesuffix('-gat-0')}")
    run.start_study(common, data_description(graph))
    path = run.folder / "seeds.csv"
    wanted = list(configs)

    def measure(layer: str, seed: int) -> dict[str, Any]:
        results = measure_once(configs[layer, seed], graph)
        print(
            f"{wanted.index((layer, seed)) + 1} of {len(wanted)}: {layer}, seed {seed}: "
            f"{results['test_accuracy']:.1%} after {results['epochs']} epochs, "
            f"{results['seconds']:.0f} s",
            flush=True,
        )
        return {**results, "weights": results["parameters"]["all"]}

    def report(rows: Measurements) -> None:
        save_text(run.folder / "table.md", table(rows))

    rows = measure_missing(path, KEYS, MEASUREMENTS, wanted, measure, lambda key: key, report)
    print(f"\n{table(rows)}\n")


COMMAND = Command(
    "compare-nodes",
    "Train several layers of a classifier of nodes with several seeds, and print one table",
    "Writes seeds.csv, with a row for each finished layer and seed, and table.md, with means and "
    "standard deviations. A layer and seed in seeds.csv is not trained again, so the command can "
    "add seeds to a finished table.",
    {
        **CompareNodesOptions.model_fields,
        **{n: f for n, f in NodesConfig.model_fields.items() if n not in OMISSIONS},
    },
    start,
    """\
example:
    keras-tnattn reproduce compare-nodes --dataset cora --data-dir DIR --layers gat --seeds 0 1 2
""",
)
