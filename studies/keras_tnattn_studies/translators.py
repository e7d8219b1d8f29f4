"""The study `translators`: what each choice is worth for power law graph attention."""

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from keras_tnattn_studies.many import finish_all
from keras_tnattn_studies.measuring import (
    Columns,
    Measurements,
    measure_missing,
    read_measurements,
    write_measurements,
)
from keras_tnattn_studies.translators_tables import (
    FIXED,
    PEER,
    best_epoch,
    main_table,
    metric_table,
)
from keras_tnattn_train.commands import Command, pop_options
from keras_tnattn_train.data.pairs.loading import check_trainable, has_own_parts
from keras_tnattn_train.options.options import DATA, RUN, TRAINING, Options, Seeds, option
from keras_tnattn_train.runs.run import Run
from keras_tnattn_train.system.files import save_text
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
_PLGA = {"preset": "plga-2", "residual_units": 2, "residual_dim": 128}
_BOUNDED_PLGA = {**_PLGA, "metric_epsilon": 0.01}
_SOURCE_METRIC_PLGA = {**_BOUNDED_PLGA, "cross_metric": "key"}
# Each model, by its other options of `translate`.
MODELS: dict[str, dict[str, Any]] = {
    "sdpa": _SDPA,
    "sdpa-2-layers": {**_SDPA, "num_layers": 2},
    "tsa": {**_SDPA, "encoder_attention": "tsa", "decoder_attention": "tsa"},
    "rgtn": {**_SDPA, "encoder_attention": "rgtn", "decoder_attention": "rgtn"},
    # It has the sizes of `sdpa`, and is no model of `translate`.
    "rnn": {**_SDPA, "learning_rate": 5e-3},
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
# The columns of results.csv, metric.csv and times.csv, with their types.
KEYS: Columns = {"model": str, "seed": int}
MEASUREMENTS: Columns = {
    "weights": int,
    **dict.fromkeys(("loss", "val_loss", "bleu", "exact_match", "seconds"), float),
}
METRICS: Columns = {
    "weights": int,
    **dict.fromkeys(("val_loss", "bleu", "exact_match", "identity_val_loss"), float),
    "identity_bleu": float,
    "spreads": str,
}
TIMES: Columns = {"milliseconds": float, "milliseconds_in_batches": float}


class TranslatorsTraining(Options):
    """The options that all trainings of the study share."""

    corpus: str = option("multi30k_pt_en", DATA, "the corpus, as for translate")
    data_dir: str | None = option(None, DATA, "folder that holds the named corpora", metavar="DIR")
    epochs: int = option(10, TRAINING, "training epochs", ge=1, le=1_000_000)
    cooldown_epochs: int = option(
        3, TRAINING, "number of final epochs over which the learning rate falls to 0", ge=0
    )
    warmup_steps: int = option(
        1000, TRAINING, "steps over which the learning rate rises", ge=1, le=1_000_000_000
    )
    learning_rate: float | None = option(
        None,
        TRAINING,
        "peak learning rate of all models; default: each its own",
        metavar="PEAK",
        gt=0,
    )

    def check_together(self) -> None:
        self.config_of(PEER, 0)

    def config_of(self, model: str, seed: int) -> TranslateConfig:
        """Returns the config of one training."""
        options = {**COMMON, **dict(self), "learning_rate": COMMON["learning_rate"]}
        options |= MODELS[model]
        if self.learning_rate is not None:
            options["learning_rate"] = self.learning_rate
        return TranslateConfig(**options, seed=seed, name=f"{model}-{seed}")


class TranslatorsOptions(Options):
    """The options that say what to train."""

    models: tuple[str, ...] = option(tuple(MODELS), RUN, "models to compare", choices=tuple(MODELS))
    seeds: Seeds = option((0, 1), RUN, "seeds; every model is trained once for each seed")
    run_dir: str = option("runs/translators", RUN, "folder of the runs", metavar="DIR")


def with_prepared(config: TranslateConfig, folder: Path) -> TranslateConfig:
    """Returns the config of a run that shares the tokenized corpus of a study with other runs.

    Other seeds than 0 have a folder of their own if the corpus is rendered or divided by the seed.
    """
    if config.seed and not has_own_parts(str(config.corpus), config.data_dir):
        folder = folder.with_name(f"{folder.name}-{config.seed}")
    return config.model_copy(update={"prepared": str(folder)})


def functions_of(model: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns the functions that train a model of a study, and load it from its run's folder."""
    from keras_tnattn_studies.translators_rnn import load_recurrent, recurrent_translator
    from keras_tnattn_train.translate.loading import load_translator
    from keras_tnattn_train.translate.train import train_translator

    if model == "rnn":
        return functools.partial(train_translator, make=recurrent_translator), load_recurrent
    return train_translator, load_translator


def train_and_measure(model: str, config: TranslateConfig, folder: Path) -> dict[str, Any]:
    """Trains a model to its end, and translates the validation part by greedy search."""
    train, load = functions_of(model)
    (results,) = finish_all([config], folder, train)
    options = EvaluateOptions(
        run=str(folder / config.name), part="validation", tokenize="none", batch_size=64
    )
    evaluated = evaluate_run(options, load=load)
    costs = {"weights": results["parameters"], "seconds": results["seconds"]}
    return {**results, **evaluated, **costs}


def has_metric(config: TranslateConfig) -> bool:
    """Tells whether a model has power law graph attention anywhere."""
    return "plga" in (config.attention, config.encoder_attention, config.target_attention)


def _place(key: tuple[str, int]) -> tuple[int, bool, int]:
    name, seed = key
    return list(MODELS).index(name.removesuffix(FIXED)), name.endswith(FIXED), seed


def measure_times(folder: Path, seeds: Iterable[int]) -> None:
    """Times greedy search of all models of a study, side by side, and writes times.csv."""
    from keras_tnattn_studies.translators_metric import fixed_folder, times_of_sentences

    for seed in seeds:
        rows, fixed, times = read_all(folder)
        runs = {model: folder / f"{model}-{seed}" for model, of in rows if of == seed}
        loaded = {(m, seed): (run, functions_of(m)[1]) for m, run in runs.items()}
        for model in (model for model, of in fixed if of == seed):
            load = functions_of(model)[1]
            loaded[f"{model}{FIXED}", seed] = fixed_folder(runs[model]), load
        if set(loaded) <= set(times):
            continue
        print(f"timing the models of seed {seed}", flush=True)
        times |= times_of_sentences(loaded)
        with Run(folder).waited_for():
            times = read_measurements(folder / "times.csv", KEYS, TIMES) | times
            times = {key: times[key] for key in sorted(times, key=_place)}
            write_measurements(folder / "times.csv", times, KEYS, TIMES)


def read_all(folder: Path) -> tuple[Measurements, Measurements, Measurements]:
    """Returns the rows of results.csv, metric.csv and times.csv."""
    files = {"results.csv": MEASUREMENTS, "metric.csv": METRICS, "times.csv": TIMES}
    rows, fixed, times = (read_measurements(folder / f, KEYS, c) for f, c in files.items())
    return rows, fixed, times


def write_tables(folder: Path) -> str:
    """Writes table.md, and curves.png from the runs that are left; returns the table."""
    from keras_tnattn_studies.plots import by_epoch

    rows, fixed, times = read_all(folder)
    epochs = {(model, seed): best_epoch(folder / f"{model}-{seed}") for model, seed in rows}
    text = main_table(MODELS, rows, fixed, times, epochs)
    if fixed:
        text += "\n\n" + metric_table(MODELS, rows, fixed)
    save_text(folder / "table.md", text)
    curves: dict[str, list[Any]] = {}
    for model, seed in rows:
        if metrics := Run(folder / f"{model}-{seed}").read_metrics():
            curves.setdefault(model, []).append(metrics)
    if curves:
        by_epoch(curves, folder / "curves.png")
    return text


def start(values: dict[str, Any]) -> None:
    """Runs the study with the options that the user typed."""
    options = TranslatorsOptions(**pop_options(values, TranslatorsOptions))
    common = TranslatorsTraining(**values)
    check_trainable(common.corpus, common.data_dir)
    folder = Path(options.run_dir)
    Run(folder).start_study(common, {})
    # One seed after the other, so that an interrupted study has measured every model once.
    wanted = [(model, seed) for seed in options.seeds for model in options.models]

    def train(model: str, seed: int) -> dict[str, Any]:
        config = with_prepared(common.config_of(model, seed), folder / "prepared")
        results = train_and_measure(model, config, folder)
        print(f"{model}, seed {seed}: BLEU {results['bleu']:.1f}", flush=True)
        return results

    def fix(model: str, seed: int) -> dict[str, Any]:
        from keras_tnattn_studies.translators_metric import measure_fixed_metric

        results = measure_fixed_metric(folder / f"{model}-{seed}", seed)
        print(f"{model}{FIXED}, seed {seed}: BLEU {results['bleu']:.1f}", flush=True)
        return results

    def measured(name: str, columns: Columns, keys: Sequence[tuple], measure: Any) -> None:
        measure_missing(
            folder / name, KEYS, columns, keys, measure, _place, lambda rows: write_tables(folder)
        )

    measured("results.csv", MEASUREMENTS, wanted, train)
    with_metric = [key for key in wanted if has_metric(common.config_of(*key))]
    measured("metric.csv", METRICS, with_metric, fix)
    measure_times(folder, options.seeds)
    print(f"\n{write_tables(folder)}\n")


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
    "epsilon, keys, decoder-sdpa and no dropout of the attention; rnn: LSTM layers of Keras with "
    "additive attention and a learning rate of 0.005. The table has the log perplexity (the loss) "
    "and BLEU, by greedy search, "
    "of the validation part; no test part is used. After the trainings the metric of each model "
    "with power law graph attention is fixed in all layers, to its mean over 384 training pairs, "
    "and the processor's time for a sentence, alone and in batches of 32, is measured, with the "
    "models in turn. Writes results.csv, with a row for each finished training, metric.csv, "
    "times.csv, table.md and curves.png, with loss and accuracy over the epochs.",
    {**TranslatorsOptions.model_fields, **TranslatorsTraining.model_fields},
    start,
    """\
example, the figures of docs/studies/translators.md, 10 minutes a training on one core (the causal
ones take about an hour):
    keras-tnattn reproduce translators --data-dir DIR --epochs 6 --cooldown-epochs 2 \\
        --warmup-steps 800 --seeds 0 1 --models sdpa plga-small
Run the same command again to continue an interrupted study, or with more models or seeds.
""",
)
