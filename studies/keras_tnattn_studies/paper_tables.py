"""The studies `table-1`, `rules-table` and `table-2`: a table of each paper, in minutes or whole.

With `--quick` each trains a few small models on data at hand, and prints the paper's rows beside
ours; without, it starts the long study of the paper's table.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_tnattn_studies import compare, paper_translators, rules, tensorized, translators
from keras_tnattn_studies.many import finish_all
from keras_tnattn_studies.papers import POWER_LAW_TABLE_2, TENSORIZED_TABLE_1
from keras_tnattn_train.classify.config import ClassifyConfig
from keras_tnattn_train.classify.texts import read_texts
from keras_tnattn_train.commands import Command
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import DATA, RUN, Options, option
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.runs.tables import attention_title, table_of
from keras_tnattn_train.system.files import save_text
from keras_tnattn_train.translate.evaluate import EvaluateOptions, evaluate_run

# What the short trainings of each table have in common.
TEXTS: dict[str, Any] = {
    "dataset": "docstrings",
    "recipe": "paper",
    "epochs": 5,
    "test_fraction": 0.4,
    "max_words": 100,
}
AUTOMATA: dict[str, Any] = {
    "models": ("tn", "lstm", "transformer"),
    "rules": (30,),
    "steps": (1,),
    "boundaries": ("periodic",),
    "seeds": (0,),
}
CORPUS = "cldr:pt-en"
TRANSLATORS: dict[str, Any] = {
    "model_dim": 48,
    "epochs": 2,
    "cooldown_epochs": 1,
    "warmup_steps": 200,
    "learning_rate": 3e-3,
}
TRANSLATED = ("plga-2", "sdpa")
# Three of four pairs are no longer. All have this length, which JAX compiles once.
LONGEST = 16  # word pieces
# No dropout, because the same content is always rendered the same way.
PAIRS: dict[str, Any] = {"max_length": LONGEST, "batch_size": 32, "dropout": 0.0}
SENTENCES = 256  # that are translated


class QuickOptions(Options):
    """The options of a table that needs no data of its own."""

    quick: bool = option(
        False, RUN, "train a few small models on data at hand, in minutes, in place of the study"
    )
    run_dir: str | None = option(
        None, RUN, "folder of the runs (default: runs/NAME, or runs/NAME-quick)", metavar="DIR"
    )


class TableOptions(QuickOptions):
    """The options of a table whose long study reads data sets."""

    data_dir: str | None = option(
        None, DATA, "folder that holds the data of the long study", metavar="DIR"
    )

    def check_together(self) -> None:
        if self.quick and self.data_dir is not None:
            raise ValueError(
                "Expected no --data-dir with --quick, which takes data at hand. "
                f"Received: data_dir={self.data_dir}"
            )


def texts_table(folder: Path) -> str:
    """Trains attentions of about 300 weights; returns Table 1 beside their accuracies."""
    common = ClassifyConfig(**TEXTS)
    configs = compare.table_configs(TEXTS, (*TENSORIZED_TABLE_1, "none"), (0,))
    results = compare.compare(configs, folder, read_texts(common))
    sets = list(next(iter(TENSORIZED_TABLE_1.values())))
    ours = ("features", "attention weights", "all weights", "docstrings")
    header = ("attention", *ours, *(f"paper, {name}" for name in sets))
    lines: list[tuple[str, ...]] = [header]
    for config, result in zip(configs, results, strict=True):
        weights = (f"{result['parameters'][name]:,}" for name in ("attention", "all"))
        accuracies = f"{100 * result['train_accuracy']:.1f} / {100 * result['test_accuracy']:.1f}"
        papers = ["-"] * len(sets)
        if rows := TENSORIZED_TABLE_1.get(config.attention):
            papers = [f"{rows[name].train:.1f} / {rows[name].test:.1f}" for name in sets]
        title = attention_title(config.attention)
        lines.append((title, str(config.embedding_dim), *weights, accuracies, *papers))
    return table_of(lines)


def automata_table(folder: Path) -> str:
    """Trains networks on a rule; returns what the papers say beside their accuracies."""
    rules.start({**AUTOMATA, "run_dir": str(folder)})
    from keras_tnattn_studies.rules_report import finished_runs
    from keras_tnattn_train.rules.train import percent

    header = ("network", "weights", "longest trained, %", "longest tested, %", "exact", "paper")
    lines: list[tuple[str, ...]] = [header]
    for run in finished_runs(folder):
        config = run.config
        shares = (run.accuracies[length] for length in (config.length, config.tested_lengths[-1]))
        lines.append(
            (
                config.model,
                f"{run.results['parameters']['all']:,}",
                *map(percent, shares),
                "yes" if run.exact else "no",
                "exact at other lengths" if config.model == "tn" else "-",
            )
        )
    return table_of(lines)


def translators_table(folder: Path) -> str:
    """Trains small translators; returns Table 2 beside their BLEU and log perplexity."""
    common = paper_translators.PaperTranslatorsTraining(**TRANSLATORS)
    start_backend()  # takes seconds
    Run(folder).start_study(common, {})
    ours = {}
    for model in TRANSLATED:
        config = common.config_of(CORPUS, model, 0).model_copy(update=PAIRS)
        config = translators.with_prepared(config, folder / "prepared")
        train, _ = translators.functions_of(model)
        (trained,) = finish_all([config], folder, functools.partial(train, multiple=LONGEST))
        translated = evaluate_run(
            EvaluateOptions(
                run=str(folder / config.name),
                part="validation",
                limit=SENTENCES,
                batch_size=SENTENCES,
            )
        )
        ours[model] = trained | translated
    header = ("model", "our weights", "our BLEU", "our log perplexity")
    papers = [f"paper, {task}: {x}" for task in ("pt-en", "tr-en") for x in ("BLEU", "log perpl.")]
    lines: list[tuple[str, ...]] = [(*header, *papers)]
    for model in POWER_LAW_TABLE_2["pt_en"]:
        cells = ["-", "-", "-"]
        if results := ours.get(model):
            weights, bleu, loss = (results[name] for name in ("parameters", "bleu", "val_loss"))
            cells = [f"{weights:,}", f"{bleu:.1f}", f"{loss:.2f}"]
        for task in POWER_LAW_TABLE_2.values():
            row = task.get(model)
            cells += [f"{row.bleu:.2f}", f"{row.log_perplexity:.2f}"] if row else ["-", "-"]
        lines.append((model, *cells))
    return table_of(lines)


def _command(
    name: str,
    options: type[QuickOptions],
    summary: str,
    table: Callable[[Path], str],
    study: Callable[[dict[str, Any]], None],
    long: str,
) -> Command:
    """Returns the command of a table; `long` says what its study needs."""

    def start(values: dict[str, Any]) -> None:
        typed = options(**values)
        if not typed.quick:
            given = {"data_dir": typed.data_dir} if isinstance(typed, TableOptions) else {}
            study({**given, "run_dir": typed.run_dir or f"runs/{name}"})
            return
        folder = Path(typed.run_dir or f"runs/{name}-quick")
        text = f"{table(folder)}\n\n{long}"
        with Run(folder).waited_for():
            save_text(folder / "paper.md", text)
        print(f"\n{text}\n\nwrote {folder / 'paper.md'}\n")

    description = (
        "With --quick it trains a few small models on data at hand, prints the paper's rows beside "
        f"ours, and writes them to paper.md. {long}"
    )
    examples = f"example, in minutes:\n    keras-tnattn reproduce {name} --quick\n"
    return Command(name, summary, description, dict(options.model_fields), start, examples)


def _with_data(values: dict[str, Any]) -> dict[str, Any]:
    if values["data_dir"] is None:
        raise InputError(
            "Expected --data-dir with the papers' data sets, or --quick. Received: data_dir=None"
        )
    return values


def _long_texts(values: dict[str, Any]) -> None:
    tensorized.start(
        {**_with_data(values), "settings": ("paper",), "attentions": tuple(TENSORIZED_TABLE_1)}
    )


TABLE_1 = _command(
    "table-1",
    TableOptions,
    "Table 1 of the paper on tensorized spectral attention",
    texts_table,
    _long_texts,
    "Cells are training / test accuracy in percent: ours on docstrings of installed libraries, one "
    "seed and five epochs, after which attention of few features still learns. As in the paper, "
    "attentions have about equally many weights, and so different embeddings; the row without "
    "attention is ours, and table.md beside this file has an SVM. The paper's are on Reuters (RN), "
    "20 Newsgroups (NG), drug reviews (DR), research articles (RA) and Spooky (SA). The long study "
    "trains five data sets with five seeds: keras-tnattn reproduce table-1 --data-dir DIR, with "
    "the folders that docs/studies/tensorized.md names; by our estimate a day or more on two "
    "cores.",
)
RULES_TABLE = _command(
    "rules-table",
    QuickOptions,
    "What the papers on deep tensor networks say of cellular automata",
    automata_table,
    rules.start,
    "The post on tensor-network attention has no table; the papers that it names say that uniform "
    "tensor networks learn cellular automata and stay right at other lengths. Tasks and baselines "
    "are ours. The long study trains 800 networks on four rules: keras-tnattn reproduce "
    "rules-table, without data; each takes 3 to 50 seconds on one core, all of them hours.",
)
TABLE_2 = _command(
    "table-2",
    TableOptions,
    "Table 2 of the paper on the power law graph transformer",
    translators_table,
    lambda values: paper_translators.start(_with_data(values)),
    f"BLEU is by greedy search. Ours is of {SENTENCES} rendered dates and names of CLDR, learned "
    f"in two epochs from those of at most {LONGEST} pieces, with a tenth of the paper's sizes "
    "and one seed, so that it says little of the order of the models; the paper's is on TED talks. "
    "The long study trains all rows on Multi30k and Tatoeba: keras-tnattn reproduce table-2 "
    "--data-dir DIR, with the folders that docs/guides/translate.md names; two and a half hours on "
    "one core.",
)
