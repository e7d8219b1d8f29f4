"""The study `paper-translators`: Tables 1 to 3 of the power law graph transformer, smaller."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from keras_tnattn_studies.many import finish_all
from keras_tnattn_studies.measuring import Columns, Measurements, measure_missing
from keras_tnattn_studies.papers import POWER_LAW_TABLE_2, POWER_LAW_TABLE_3
from keras_tnattn_studies.translators import COMMON, functions_of, with_prepared
from keras_tnattn_studies.translators_tables import best_epoch, epochs_of
from keras_tnattn_train.commands import Command, pop_options
from keras_tnattn_train.data.pairs.loading import check_trainable, load_pairs
from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import DATA, MODEL, RUN, TRAINING, Options, Seeds, option
from keras_tnattn_train.processes.backend import start_backend
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.system.files import save_text
from keras_tnattn_train.translate.config import TranslateConfig
from keras_tnattn_train.translate.evaluate import EvaluateOptions, evaluate_run


@dataclasses.dataclass(frozen=True)
class Task:
    """What stands in for a task of the paper, whose training part may not be at hand.

    Args:
        ted: The corpus of the paper, of which only the test part is used.
        tokenize: How sacrebleu splits the sentences of both corpora into words.
        languages: The task's key in the paper's tables.
    """

    ted: str
    tokenize: str
    languages: str

    @property
    def greedy(self) -> dict[str, float]:
        """The paper's BLEU of each model by greedy search."""
        return {name: row.bleu for name, row in POWER_LAW_TABLE_2[self.languages].items()}

    @property
    def beam(self) -> dict[str, float]:
        """The paper's BLEU of each model with a beam of four."""
        return POWER_LAW_TABLE_3[self.languages]

    @property
    def models(self) -> tuple[str, ...]:
        """The models that the paper has for the task."""
        return tuple(dict.fromkeys((*self.greedy, *self.beam)))


TASKS = {
    "multi30k_pt_en": Task(
        "ted_hrlr_pt_en",
        "none",
        "pt_en",
    ),
    "tatoeba_tr_en": Task(
        "ted_hrlr_tr_en",
        "13a",
        "tr_en",
    ),
}
MODELS = TASKS["multi30k_pt_en"].models
PAPER_DIM = 512
BEAM = 4
# The columns of results.csv, with their types. BLEU has the name of the test part and the beam.
KEYS: Columns = {"corpus": str, "model": str, "seed": int}
BLEU = ("own_1", "own_4", "ted_1", "ted_4")
MEASUREMENTS: Columns = {
    "weights": int,
    "val_loss": float,
    **dict.fromkeys(BLEU, float),
    "seconds": float,
}


class PaperTranslatorsTraining(Options):
    """The options that all trainings of the study share."""

    data_dir: str | None = option(
        None, DATA, "folder that holds the corpora and the test parts of TED", metavar="DIR"
    )
    model_dim: int = option(
        64,
        MODEL,
        f"size of embeddings and layers, {PAPER_DIM} in the paper; the other sizes are in "
        "proportion",
        ge=16,
        le=PAPER_DIM,
    )
    epochs: int = option(8, TRAINING, "training epochs", ge=1, le=1_000_000)
    cooldown_epochs: int = option(
        2, TRAINING, "number of final epochs over which the learning rate falls to 0", ge=0
    )
    warmup_steps: int = option(
        800, TRAINING, "steps over which the learning rate rises", ge=1, le=1_000_000_000
    )
    learning_rate: float = option(
        1e-3, TRAINING, "peak learning rate of Adam", metavar="PEAK", gt=0
    )

    def check_together(self) -> None:
        if self.model_dim % 16:  # the heads of model #1
            raise ValueError(
                "Expected a model_dim that is a multiple of 16. "
                f"Received: model_dim={self.model_dim}"
            )
        TranslateConfig(**self._options)

    @property
    def _options(self) -> dict[str, Any]:
        """The options of `translate` that all models share."""
        return {**COMMON, **dict(self), "feedforward_dim": 4 * self.model_dim}

    def config_of(self, corpus: str, model: str, seed: int) -> TranslateConfig:
        """Returns the config of one training."""
        from keras_tnattn.models import PRESETS

        options = self._options
        name = f"{corpus}-{model}-{seed}".replace(":", "-")  # of cldr:pt-en
        options |= {"corpus": corpus, "seed": seed, "name": name}
        if model == "rnn":  # it is no model of `translate`; its size is that of the others
            return TranslateConfig(**options, preset="sdpa", num_layers=1)
        preset = PRESETS[model]
        options |= {"preset": model, "num_heads": preset["num_heads"]}
        if "residual_dim" in preset:
            options["residual_dim"] = preset["residual_dim"] * self.model_dim // PAPER_DIM
        return TranslateConfig(**options)


class PaperTranslatorsOptions(Options):
    """The options that say what to train."""

    corpora: tuple[str, ...] = option(
        tuple(TASKS), DATA, "corpora to train on", choices=tuple(TASKS)
    )
    models: tuple[str, ...] = option(
        MODELS, RUN, "models to train, as far as the paper has them for a corpus", choices=MODELS
    )
    seeds: Seeds = option((0,), RUN, "seeds; every model is trained once for each seed")
    run_dir: str = option("runs/paper-translators", RUN, "folder of the runs", metavar="DIR")


def table(rows: Measurements, corpus: str, folder: Path) -> str:
    """Returns a table with a line for each model: Table 1, our BLEU and the paper's."""
    from keras_tnattn.models import PRESETS
    from keras_tnattn_train.runs.tables import spread, table_of

    task = TASKS[corpus]
    header = ["model", "layers", "heads", "residual units", "weights", "log perplexity"]
    header.append("best epoch")
    header += [f"{part}, {search}" for part in ("own", "TED") for search in ("greedy", "beam")]
    lines: list[list[str]] = [[*header, "paper, greedy", "paper, beam", "seeds"]]
    for model in task.models:
        preset = PRESETS.get(model, {"num_layers": 1})
        of_model = {seed: row for (c, m, seed), row in rows.items() if (c, m) == (corpus, model)}
        if not of_model:
            continue
        lines.append(
            [
                model,
                str(preset["num_layers"]),
                str(preset.get("num_heads", "-")),
                str(preset.get("residual_units", "-")),
                f"{max(row['weights'] for row in of_model.values()):,}",
                f"{fmean(row['val_loss'] for row in of_model.values()):.3f}",
                epochs_of(best_epoch(folder / f"{corpus}-{model}-{seed}") for seed in of_model),
                *(
                    spread(scores) if (scores := _scores_of(of_model, name)) else "-"
                    for name in BLEU
                ),
                f"{task.greedy[model]:.1f}" if model in task.greedy else "-",
                f"{task.beam[model]:.1f}" if model in task.beam else "-",
                " ".join(map(str, sorted(of_model))),
            ]
        )
    return table_of(lines)


def _scores_of(rows: Mapping[int, Mapping[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows.values() if name in row]


def _place(key: tuple[str, str, int]) -> tuple[int, int, int]:
    corpus, model, seed = key
    return list(TASKS).index(corpus), MODELS.index(model), seed


def train_and_measure(model: str, config: TranslateConfig, folder: Path) -> dict[str, Any]:
    """Trains a model to its end, and translates both test parts."""
    train, load = functions_of(model)
    (results,) = finish_all([config], folder, train)
    task = TASKS[str(config.corpus)]
    measured = {name: results[name] for name in ("val_loss", "seconds")}
    measured["weights"] = results["parameters"]
    options: dict[str, Any] = {"run": str(folder / config.name), "tokenize": task.tokenize}
    ted: dict[str, Any] = {"corpus": task.ted, "data_dir": config.data_dir}
    for beam in (1, BEAM) if model in task.beam else (1,):
        for part, other in (("own", dict[str, Any]()), ("ted", ted)):
            search = EvaluateOptions(**options, **other, beam=beam, batch_size=64)
            evaluated = evaluate_run(search, load=load)
            measured[f"{part}_{beam}"] = evaluated["bleu"]
    return measured


def start(values: dict[str, Any]) -> None:
    """Runs the study with the options that the user typed."""
    options = PaperTranslatorsOptions(**pop_options(values, PaperTranslatorsOptions))
    common = PaperTranslatorsTraining(**values)
    for corpus in options.corpora:
        check_trainable(corpus, common.data_dir)
        load_pairs(TASKS[corpus].ted, common.data_dir, cut=False).part("test")
    wanted = [
        (corpus, model, seed)
        for seed in options.seeds
        for corpus in options.corpora
        for model in options.models
        if model in TASKS[corpus].models
    ]
    if not wanted:
        raise InputError(
            "Expected models that the paper has for these corpora. Received: "
            f"models={' '.join(options.models)}, corpora={' '.join(options.corpora)}"
        )
    start_backend()  # takes seconds, so invalid input is reported first
    folder = Path(options.run_dir)
    Run(folder).start_study(common, {})

    def measure(corpus: str, model: str, seed: int) -> dict[str, Any]:
        config = common.config_of(corpus, model, seed)
        config = with_prepared(config, folder / f"prepared-{corpus}")
        return train_and_measure(model, config, folder)

    def report(rows: Measurements) -> None:
        for corpus in options.corpora:
            save_text(folder / f"{corpus}.md", table(rows, corpus, folder))

    path = folder / "results.csv"
    rows = measure_missing(path, KEYS, MEASUREMENTS, wanted, measure, _place, report, blanks=True)
    for corpus in options.corpora:
        print(f"\n{table(rows, corpus, folder)}\n")


COMMAND = Command(
    "paper-translators",
    "Train the translators of the power law graph transformer's paper, smaller",
    "Models #1 to #6 and SDPA of the paper's Table 1, and for the recurrent one of Table 3 an LSTM "
    "for each direction of the source and one with additive attention for the target, with all "
    "sizes divided by 512 / --model-dim, dropout 0.1, at most 4,000 word pieces, and lower case. "
    "Multi30k stands in for the paper's Portuguese-English task and Tatoeba for the "
    "Turkish-English one, for which the paper has models #2, #3, SDPA and the recurrent one. The "
    "tables have the log perplexity (the loss) of the validation part, and BLEU on the corpus' own "
    "test part and on that of the paper's TED talks, by greedy search and, for the models of Table "
    "3, a beam of four; beside them the paper's BLEU. Writes results.csv, and CORPUS.md for each "
    "corpus.",
    {**PaperTranslatorsOptions.model_fields, **PaperTranslatorsTraining.model_fields},
    start,
    """\
example, all models, two and a half hours on one core:
    keras-tnattn reproduce paper-translators --data-dir DIR
Run the same command again to continue an interrupted study, or with more models or seeds.
""",
)
