"""The study `whole-texts`: classifiers that read long documents to their end."""

from pathlib import Path
from typing import Any

from training.base.options import (
    DATA,
    MODEL,
    RUN,
    TRAINING,
    FitConfig,
    Options,
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

MODELS = ("tsa", "mha", "gru", "none")
HEADER = ("data", "model", "validation %", "test %", "epochs", "s/epoch", "MB")


class WholeTextsConfig(FitConfig):
    """The options of one training.

    Raises:
        InputError: If a value is out of its range.
    """

    dataset: str = option("ohsumed", DATA, "the data set, as for classify")
    data_dir: str | None = option(
        None, DATA, "folder that holds the files of the named data sets", metavar="DIR"
    )
    max_words: int = option(4096, DATA, "maximum number of words of a text", ge=1, le=100_000)
    model: str = option("tsa", MODEL, "what mixes the words", choices=MODELS)
    word_dropout: float = option(0.5, MODEL, "rate of whole words dropped", ge=0, lt=1)
    damping: float = option(0.9, MODEL, "damping of the time graph (tsa)", ge=0, lt=1)
    epochs: int = epochs_option(30)
    batch_size: int = batch_size_option(32)
    max_tokens: int = option(
        32_768, TRAINING, "maximum number of tokens in a batch", ge=1, le=2**24
    )
    learning_rate: float = option(1e-3, TRAINING, "learning rate of Adam", gt=0)
    early_stopping: int = option(
        3,
        TRAINING,
        "stop after this many epochs without a lower validation loss, and keep the best epoch",
        ge=1,
        le=100_000,
    )
    gigabytes: float = option(12.0, TRAINING, "memory that a training may allocate", gt=0)
    name: str = name_option(
        lambda values: f"{short_name(values['dataset'])}-{values['model']}-{values['seed']}",
        "DATASET-MODEL-SEED",
    )

    @property
    def texts(self) -> ClassifyConfig:
        """The options of `classify` that prepare the same texts."""
        names = ("dataset", "data_dir", "max_words", "seed", "early_stopping")
        return ClassifyConfig(**{name: getattr(self, name) for name in names})


class WholeTextsOptions(Options):
    """The options that say what to measure."""

    datasets: tuple[str, ...] = option(
        ("twenty_newsgroups", "ohsumed"), RUN, "data sets, as for classify"
    )
    models: tuple[str, ...] = option(MODELS, RUN, "models to compare", choices=MODELS)
    seeds: tuple[int, ...] = option((0,), RUN, "seeds; each model is trained with each")
    run_dir: str = option("runs/whole-texts", RUN, "folder of the runs", metavar="DIR")


# What the study varies, and files that it does not write.
LEFT_OUT = {"dataset", "model", "seed", "name", "tensorboard"}


def table(configs: list[WholeTextsConfig], results: list[dict[str, Any]]) -> str:
    """Returns a table with a line for each data set and model: means over its seeds."""
    from training.engine.tables import spread, table_of

    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for config, result in zip(configs, results, strict=True):
        groups.setdefault((config.dataset, config.model), []).append(result)
    lines: list[tuple[str, ...]] = [HEADER]
    for (dataset, model), measured in groups.items():
        done = [result for result in measured if "test_accuracy" in result]
        if not done:
            lines.append((dataset, model.upper(), "-", "out of memory", "-", "-", "-"))
            continue
        columns = [
            [100 * result["validation_accuracy"] for result in done],
            [100 * result["test_accuracy"] for result in done],
            [result["epochs"] for result in done],
            [result["seconds_per_epoch"] for result in done],
            [result["megabytes"] for result in done],
        ]
        lines.append((dataset, model.upper(), *map(spread, columns)))
    return table_of(lines)


def train(config: WholeTextsConfig, run: Run) -> None:
    """Trains one model in a process of its own, and notes if its memory is not enough."""
    from training.studies.processes import run_alone
    from training.studies.whole_texts_training import train_whole

    results = run_alone(train_whole, config, str(run.folder), gigabytes=config.gigabytes)
    if results is None:
        if not run.exists:
            run.start(config, {})
        run.finish({"outcome": "out of memory"})


def start(values: dict[str, Any]) -> None:
    """Runs the study with the options that the user typed."""
    check_one_process("whole-texts")
    typed = {name: values.pop(name) for name in WholeTextsOptions.model_fields if name in values}
    options = WholeTextsOptions(**typed)
    configs = [
        WholeTextsConfig(**values, dataset=dataset, model=model, seed=seed)
        for dataset in options.datasets
        for seed in options.seeds
        for model in options.models
    ]
    for config in {config.dataset: config for config in configs}.values():
        load(config.texts)  # invalid data are reported first
    start_backend()
    folder = Path(options.run_dir)
    results = finish_all(configs, folder, train)
    text = table(configs, results)
    write_text(folder / "table.md", text)
    print(f"\n{text}\n")


COMMAND = Command(
    "whole-texts",
    "Compare classifiers of whole documents: accuracy, time and memory",
    "The classifier of classify with word dropout and early stopping, where the attention is tsa; "
    "mha, keras.layers.MultiHeadAttention; gru, a recurrent layer; or none. Texts of similar "
    "lengths share batches. Each training has a process of its own and a run folder; finished "
    "runs are not trained again. Writes table.md. Linux only.",
    {
        **WholeTextsOptions.model_fields,
        **{n: f for n, f in WholeTextsConfig.model_fields.items() if n not in LEFT_OUT},
    },
    start,
    """\
example:
    python training/reproduce.py whole-texts --data-dir DIR --datasets ohsumed --seeds 0 1 2
Run the same command again to continue an interrupted study.
""",
)
