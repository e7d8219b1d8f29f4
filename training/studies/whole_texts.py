"""The study `whole-texts`: classifiers that read long documents to their end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from training.base.options import (
    DATA,
    MODEL,
    RUN,
    TRAINING,
    FitConfig,
    Options,
    Seeds,
    batch_size_option,
    epochs_option,
    name_option,
    option,
)
from training.classify.command import load
from training.classify.config import ClassifyConfig
from training.data.reading import short_name
from training.engine.backend import start_backend
from training.engine.commands import Command
from training.engine.devices import check_one_process
from training.engine.runs import Run, finish_all, write_text
from training.studies import processes

# What mixes the words, by the name of the attention in `classify`.
MODELS = {"tsa": "tsa", "mha": "sdpa", "gru": "none", "none": "none"}
HEADER = ("data", "model", "validation %", "test %", "epochs", "s/epoch", "MiB in training")
OUT_OF_MEMORY = "out of memory"


class WholeTextsTraining(Options):
    """The options that all trainings of the study share.

    Raises:
        InputError: If a value is out of its range.
    """

    data_dir: str | None = option(
        None, DATA, "folder that holds the files of the named data sets", metavar="DIR"
    )
    max_words: int = option(4096, DATA, "maximum number of words of a text", ge=1, le=100_000)
    word_dropout: float = option(0.5, MODEL, "share of the words dropped in training", ge=0, lt=1)
    dropout_rate: float = option(
        0.1, MODEL, "rate of the dropout after the average over the words", ge=0, lt=1
    )
    damping: float = option(0.9, MODEL, "damping of the time graph (tsa)", ge=0, lt=1)
    epochs: int = epochs_option(8)
    batch_size: int = batch_size_option(64, "maximum number of rows")
    max_tokens: int = option(
        32_768, TRAINING, "maximum number of tokens in a batch", ge=1, le=2**24
    )
    learning_rate: float = option(
        2e-3, TRAINING, "initial learning rate of Adam, with cosine decay to 0", gt=0
    )
    early_stopping: int = option(
        3,
        TRAINING,
        "stop after this many epochs without a lower validation loss, and keep the best epoch",
        ge=1,
        le=100_000,
    )
    gigabytes: float = option(12.0, TRAINING, "memory that a training may allocate", gt=0)


class WholeTextsConfig(WholeTextsTraining, FitConfig):
    """The options of one training.

    Raises:
        InputError: If a value is out of its range.
    """

    dataset: str = option("ohsumed", DATA, "the data set, as for classify")
    model: str = option("tsa", MODEL, "what mixes the words", choices=tuple(MODELS))
    name: str = name_option(
        lambda values: f"{short_name(values['dataset'])}-{values['model']}-{values['seed']}",
        "DATASET-MODEL-SEED",
    )

    @property
    def classifier(self) -> ClassifyConfig:
        """The options of `classify` for the same texts and model.

        The recipe is the tuned one with random initial weights, and with the dropout that this has
        without an attention.
        """
        names = (
            *("dataset", "data_dir", "max_words", "word_dropout", "dropout_rate", "epochs"),
            *("batch_size", "learning_rate", "early_stopping", "seed"),
        )
        options = {name: getattr(self, name) for name in names}
        options["initial_weights"] = "random"
        if self.model == "tsa":
            options["damping"] = self.damping
        # XLA would compile every length anew.
        return ClassifyConfig(**options, attention=MODELS[self.model], jit_compile="off")


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
    found = [Finished(run.read_config(WholeTextsConfig, {}), run.results or {}) for run in runs]
    models = list(MODELS)
    return sorted(
        found, key=lambda run: (run.config.dataset, models.index(run.config.model), run.config.seed)
    )


def table(runs: Sequence[Finished]) -> str:
    """Returns a table with a line for each data set and model: means over its seeds."""
    from training.engine.tables import attention_title, spread, table_of

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
        some = "" if len(done) == len(measured) else f" ({len(done)} of {len(measured)} seeds)"
        lines.append((dataset, f"{attention_title(model)}{some}", *map(spread, columns)))
    return table_of(lines)


def train(config: WholeTextsConfig, run: Run) -> None:
    """Trains one model in a process of its own, and notes if its memory is not enough."""
    from training.studies.whole_texts_training import train_whole

    results = processes.run_alone(train_whole, config, str(run.folder), gigabytes=config.gigabytes)
    if results is None:
        if not run.exists:
            run.start(config, {})
        run.finish({"outcome": OUT_OF_MEMORY})
        print(
            f"{config.name}: out of memory with gigabytes={config.gigabytes}. This is a result; "
            f"to train it again, delete {run.folder}",
            flush=True,
        )


def start(values: dict[str, Any]) -> None:
    """Runs the study with the options that the user typed."""
    check_one_process("whole-texts")
    processes.check_platform()
    typed = {name: values.pop(name) for name in WholeTextsOptions.model_fields if name in values}
    options, common = WholeTextsOptions(**typed), WholeTextsTraining(**values)
    configs = [
        WholeTextsConfig(**values, dataset=dataset, model=model, seed=seed)
        for dataset in options.datasets
        for seed in options.seeds
        for model in options.models
    ]
    for config in {config.dataset: config for config in configs}.values():
        load(config.classifier)  # invalid data are reported first
    start_backend()
    folder = Path(options.run_dir)
    Run(folder).start_study(common, {})
    finish_all(configs, folder, train)
    with Run(folder).waited_for():
        text = table(finished_runs(folder))
        write_text(folder / "table.md", text)
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
    python training/reproduce.py whole-texts --data-dir DIR --datasets ohsumed --seeds 0 1 2
Run the same command again to continue an interrupted study.
""",
)
