"""The study `translators`: what each choice is worth for power law graph attention."""

from pathlib import Path
from statistics import fmean
from typing import Any

from keras_tnattn_train.commands import Command, taken
from keras_tnattn_train.data.pairs.loading import check_trainable
from keras_tnattn_train.options.options import DATA, RUN, TRAINING, Options, Seeds, option
from keras_tnattn_train.runs.many import finish_all, save_text
from keras_tnattn_train.runs.measuring import measure_missing
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.system.files import Columns, Measurements
from keras_tnattn_train.translate.config import TranslateConfig
from keras_tnattn_train.translate.evaluate import EvaluateOptions, evaluate_run

# What all models have in common.
COMMON: dict[str, Any] = {
    "vocabulary_size": 4000,
    "max_length": 64,
    "lower_case": True,
    "model_dim": 128,
    "num_heads": 4,
    "feedforward_dim": 512,
    "dropout": 0.1,
    "learning_rate": 8e-4,
}
_SDPA = {"preset": "sdpa", "num_layers": 1}
_PLGA = {"residual_units": 2, "residual_dim": 128}
_BOUNDED_PLGA = {**_PLGA, "metric_epsilon": 0.01}
_SOURCE_METRIC_PLGA = {**_BOUNDED_PLGA, "cross_metric": "key"}
# Each model, by its other options of `translate`.
MODELS: dict[str, dict[str, Any]] = {
    "sdpa": _SDPA,
    "sdpa-2-layers": {**_SDPA, "num_layers": 2},
    "tsa": {**_SDPA, "encoder_attention": "tsa", "decoder_attention": "tsa"},
    "rgtn": {**_SDPA, "encoder_attention": "rgtn", "decoder_attention": "rgtn"},
    "plga": _PLGA,
    "sdpa-encoder-plga": {**_SDPA, "encoder_attention": "plga"},
    "plga-decoder-sdpa": {**_PLGA, "decoder_attention": "sdpa"},
    "plga-encoder-sdpa": {**_PLGA, "encoder_attention": "sdpa"},
    "plga-causal": {**_PLGA, "causal_metric": True},
    "plga-keys-decoder-sdpa": {**_PLGA, "cross_metric": "key", "decoder_attention": "sdpa"},
    "plga-epsilon": _BOUNDED_PLGA,
    "plga-epsilon-decoder-sdpa": {**_BOUNDED_PLGA, "decoder_attention": "sdpa"},
    "plga-epsilon-keys": _SOURCE_METRIC_PLGA,
    "plga-epsilon-keys-decoder-sdpa": {**_SOURCE_METRIC_PLGA, "decoder_attention": "sdpa"},
    "plga-small": {"preset": "plga-small"},
    "plga-small-decoder-causal": {
        "preset": "plga-small",
        "decoder_attention": "plga",
        "causal_metric": True,
    },
    "plga-no-dropout": {**_PLGA, "attention_dropout": 0.0},
    "plga-half-rate": {**_PLGA, "learning_rate": 4e-4},
    "plga-double-rate": {**_PLGA, "learning_rate": 1.6e-3},
    "plga-8-units": {**_PLGA, "residual_units": 8},
    "plga-no-units": {**_PLGA, "residual_units": 0},
    "plga-2-layers": {**_PLGA, "num_layers": 2},
}
PEER = "sdpa"
# The columns of results.csv, with their types.
KEYS: Columns = {"model": str, "seed": int}
MEASUREMENTS: Columns = {
    "weights": int,
    "loss": float,
    "val_loss": float,
    "bleu": float,
    "exact_match": float,
    "seconds": float,
}


class TranslatorsTraining(Options):
    """The options that all trainings of the study share.

    Raises:
        InputError: If a value is out of its range.
    """

    corpus: str = option("multi30k_pt_en", DATA, "the corpus, as for translate")
    data_dir: str | None = option(None, DATA, "folder that holds the named corpora", metavar="DIR")
    epochs: int = option(10, TRAINING, "training epochs", ge=1, le=1_000_000)
    cooldown_epochs: int = option(
        3, TRAINING, "number of final epochs over which the learning rate falls to 0", ge=0
    )
    warmup_steps: int = option(
        1000, TRAINING, "steps over which the learning rate rises", ge=1, le=1_000_000_000
    )

    def check_together(self) -> None:
        self.config_of(PEER, 0)

    def config_of(self, model: str, seed: int) -> TranslateConfig:
        """Returns the config of one training."""
        options = {**COMMON, **dict(self), **MODELS[model]}
        return TranslateConfig(**options, seed=seed, name=f"{model}-{seed}")


class TranslatorsOptions(Options):
    """The options that say what to train."""

    models: tuple[str, ...] = option(tuple(MODELS), RUN, "models to compare", choices=tuple(MODELS))
    seeds: Seeds = option((0, 1), RUN, "seeds; every model is trained once for each seed")
    run_dir: str = option("runs/translators", RUN, "folder of the runs", metavar="DIR")


def table(rows: Measurements) -> str:
    """Returns a table with a line for each model: means over its seeds."""
    from keras_tnattn_train.runs.tables import spread, table_of

    header = ("model", "weights", "loss", "validation loss", "validation BLEU")
    lines: list[tuple[str, ...]] = [(*header, f"less {PEER}", "exact %", "seconds", "seeds")]
    for model in MODELS:
        of_model = {seed: row for (name, seed), row in rows.items() if name == model}
        if not of_model:
            continue
        differences = [
            row["bleu"] - rows[PEER, seed]["bleu"]
            for seed, row in of_model.items()
            if model != PEER and (PEER, seed) in rows
        ]
        lines.append(
            (
                model,
                f"{fmean(row['weights'] for row in of_model.values()):,.0f}",
                f"{fmean(row['loss'] for row in of_model.values()):.3f}",
                f"{fmean(row['val_loss'] for row in of_model.values()):.3f}",
                spread([row["bleu"] for row in of_model.values()]),
                spread(differences) if differences else "-",
                spread([100 * row["exact_match"] for row in of_model.values()]),
                f"{fmean(row['seconds'] for row in of_model.values()):,.0f}",
                " ".join(map(str, sorted(of_model))),
            )
        )
    return table_of(lines)


def train_and_measure(config: TranslateConfig, folder: Path) -> dict[str, Any]:
    """Trains a model to its end, and translates the validation part by greedy search."""
    from keras_tnattn_train.translate.train import train_translator

    (results,) = finish_all([config], folder, train_translator)
    options = EvaluateOptions(
        run=str(folder / config.name), part="validation", tokenize="none", batch_size=64
    )
    evaluated = evaluate_run(options)
    costs = {"weights": results["parameters"], "seconds": results["seconds"]}
    return {**results, **evaluated, **costs}


def _place(key: tuple[str, int]) -> tuple[int, int]:
    return list(MODELS).index(key[0]), key[1]


def start(values: dict[str, Any]) -> None:
    """Runs the study with the options that the user typed."""
    options = TranslatorsOptions(**taken(values, TranslatorsOptions))
    common = TranslatorsTraining(**values)
    check_trainable(common.corpus, common.data_dir)
    folder = Path(options.run_dir)
    Run(folder).start_study(common, {})
    # One seed after the other, so that an interrupted study has measured every model once.
    wanted = [(model, seed) for seed in options.seeds for model in options.models]

    def measure(model: str, seed: int) -> dict[str, Any]:
        config = common.config_of(model, seed)
        config = config.model_copy(update={"prepared": str(folder / "prepared")})
        results = train_and_measure(config, folder)
        print(f"{model}, seed {seed}: BLEU {results['bleu']:.1f}", flush=True)
        return results

    def report(rows: Measurements) -> None:
        save_text(folder / "table.md", table(rows))

    path = folder / "results.csv"
    rows = measure_missing(path, KEYS, MEASUREMENTS, wanted, measure, _place, report)
    print(f"\n{table(rows)}\n")


COMMAND = Command(
    "translators",
    "Compare translators of power law graph attention with scaled dot-product attention",
    "sdpa: one layer of scaled dot-product attention; plga: one of power law graph attention, as "
    "published; tsa and rgtn: one of tensorized spectral attention or of a recurrent graph tensor "
    "network in encoder and decoder, with dot products from target to source. The names of the "
    "others say what they change: encoder-plga and encoder-sdpa the attention of the encoder; "
    "decoder-sdpa that of the target to itself; causal computes the metric at each decoder "
    "position from the tokens up to it, which takes five times as long; "
    "epsilon bounds the powers of the metric (--metric-epsilon 0.01 of translate); keys takes the "
    "metric of the attention to the source from the source. plga-small is the preset of that name: "
    "epsilon, keys, decoder-sdpa and no dropout of the attention. The table has BLEU of the "
    "validation part, by greedy search; no test part is used. Writes results.csv, with a row for "
    "each finished training, and table.md.",
    {**TranslatorsOptions.model_fields, **TranslatorsTraining.model_fields},
    start,
    """\
example, the figures of docs/studies/translators.md, 10 minutes a training on one core (the causal
ones take about an hour):
    python training/reproduce.py translators --data-dir DIR --epochs 6 --cooldown-epochs 2 \\
        --warmup-steps 800 --seeds 0 1 --models sdpa plga-small
Run the same command again to continue an interrupted study, or with more models or seeds.
""",
)
