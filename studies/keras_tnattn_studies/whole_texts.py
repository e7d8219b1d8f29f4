"""The study `whole-texts`: classifiers that read long documents to their end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_tnattn_studies import alone
from keras_tnattn_studies.many import finish_all
from keras_tnattn_studies.whole_texts_config import MODELS, WholeTextsConfig, WholeTextsTraining
from keras_tnattn_train.classify.texts import read_texts
from keras_tnattn_train.commands import Command, pop_options
from keras_tnattn_train.options.options import RUN, Options, Seeds, option
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.system.files import save_text

HEADER = ("data", "model", "validation %", "test %", "epochs", "s/epoch", "MiB in training")
OUT_OF_MEMORY = "out of memory"


class WholeTextsOptions(Options):
    """The options that say what to measure."""

    datasets: tuple[str, ...] = option(("newsgroups", "ohsumed"), RUN, "data sets, as for classify")
    models: tuple[str, ...] = option(tuple(MODELS), RUN, "models to compare", choices=tuple(MODELS))
    seeds: Seeds = option((0,), RUN, "seeds; every model is trained once for each seed")
    run_dir: str = option("runs/whole-texts", RUN, "folder of the runs", metavar="DIR")


class Finished(NamedTuple):
    """A finished run."""

    config: WholeTextsConfig
    results: dict[str, Any]


def finished_runs(folder: Path) -> list[Finished]:
    """Returns the finished runs in the folder of a study, in the order of the table."""
    runs = [Run(path.parent) for path in folder.glob("*/results.json")]
    trained = [Finished(run.read_config(WholeTextsConfig, {}), run.results or {}) for run in runs]
    models = list(MODELS)
    return sorted(
        trained,
        key=lambda run: (run.config.dataset, models.index(run.config.model), run.config.seed),
    )


def table(runs: Sequence[Finished]) -> str:
    """Returns a table with a line for each data set and model: means over its seeds."""
    from keras_tnattn_train.runs.tables import attention_title, spread, table_of

    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for config, results in runs:
        groups.setdefault((config.dataset, config.model), []).append(results)
    lines: list[tuple[str, ...]] = [HEADER]
    for (dataset, model), measured in groups.items():
        done = [results for results in measured if "test_accuracy" in results]
        if not done:
            lines.append((dataset, attention_title(model), "-", OUT_OF_MEMORY, "-", "-", "-"))
            continue
        columns = [
            [100 * results["validation_accuracy"] for results in done],
            [100 * results["test_accuracy"] for results in done],
            [results["epochs"] for results in done],
            [results["seconds_per_epoch"] for results in done],
            [results["megabytes"] for results in done],
        ]
        count = "" if len(done) == len(measured) else f" ({len(done)} of {len(measured)} seeds)"
        lines.append((dataset, f"{attention_title(model)}{count}", *map(spread, columns)))
    return table_of(lines)


def train(config: WholeTextsConfig, run: Run) -> None:
    """Trains one model in a process of its own, and notes if its memory is not enough."""
    from keras_tnattn_studies.whole_texts_training import train_whole

    results = alone.run_alone(train_whole, config, str(run.folder), gigabytes=config.gigabytes)
    if results is None:
        if not run.exists:
            run.start_or_check(config, {})
        run.finish({"outcome": OUT_OF_MEMORY})
        print(
            f"{config.name}: out of memory with gigabytes={config.gigabytes}. This is a result; "
            f"to train it again, delete {run.folder}",
            flush=True,
        )


def start(values: dict[str, Any]) -> None:
    """Runs the study with the options that the user typed."""
    alone.check_platform()
    options = WholeTextsOptions(**pop_options(values, WholeTextsOptions))
    common = WholeTextsTraining(**values)
    configs = [
        WholeTextsConfig(**values, dataset=dataset, model=model, seed=seed)
        for dataset in options.datasets
        for seed in options.seeds
        for model in options.models
    ]
    for config in {config.dataset: config for config in configs}.values():
        read_texts(config.classifier)  # invalid data are reported first
    start_backend()
    folder = Path(options.run_dir)
    Run(folder).start_study(common, {})
    finish_all(configs, folder, train)
    with Run(folder).waited_for():
        text = table(finished_runs(folder))
        save_text(folder / "table.md", text)
    print(f"\n{text}\n")


COMMAND = Command(
    "whole-texts",
    "Compare classifiers of whole documents: accuracy, time and memory",
    "The classifier of classify with its tuned recipe, the dropout that this has without an "
    "attention, and early stopping, where the attention is tsa; mha, "
    "keras.layers.MultiHeadAttention; gru, a recurrent layer; or none. Texts of similar lengths "
    "share batches. Each training has a process of its own and a run folder; finished "
    "runs are not trained again. Writes table.md, for all runs that are finished in DIR: seconds "
    "of the processor, and the peak of the memory in training less the memory before, compilation "
    "included. Linux only.",
    {**WholeTextsOptions.model_fields, **WholeTextsTraining.model_fields},
    start,
    """\
example:
    keras-tnattn reproduce whole-texts --data-dir DIR --datasets ohsumed --seeds 0 1 2
Run the same command again to continue an interrupted study.
""",
)
